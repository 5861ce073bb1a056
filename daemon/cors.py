"""Cross-origin headers (http-api.md 4)."""

from urllib.parse import urlsplit

from quart import Request, Response

from daemon.config import Config

_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def add_headers(response: Response, request: Request, config: Config) -> None:
    """Let browsers of the configured origins read `response`."""
    origin = request.headers.get("Origin", "")
    allowed = allowed_origin(config, origin)
    if allowed:
        response.headers["Access-Control-Allow-Origin"] = allowed
        response.vary.add("Origin")
    if request.method == "OPTIONS":
        response.headers["Access-Control-Allow-Credentials"] = str(config.cors_credentials).lower()
        response.headers["Access-Control-Allow-Methods"] = config.cors_methods
        response.headers["Access-Control-Allow-Headers"] = config.cors_headers


def allowed_origin(config: Config, origin: str) -> str:
    """Value of Access-Control-Allow-Origin, "" to leave it out."""
    if config.cors_origins == "localhost":
        try:
            host = urlsplit(origin).hostname
        except ValueError:
            return ""
        return origin if host in _LOCAL_HOSTS else ""
    if config.cors_origins == "*" and config.cors_credentials:
        return origin
    return config.cors_origins
