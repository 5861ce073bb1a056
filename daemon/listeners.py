"""The sockets that emberd listens on."""

import contextlib
import socket
import stat
from pathlib import Path

from daemon.config import Config

BACKLOG = 512


def bind_all(config: Config) -> list[socket.socket]:
    """A listening socket for each --host. Raises OSError whose text names the address."""
    sockets: list[socket.socket] = []
    try:
        for host in config.hosts:
            sockets.append(_bind_unix(host) if host.endswith(".sock") else _bind_tcp(host, config))
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bind_tcp(host: str, config: Config) -> socket.socket:
    address = f"{host} port {config.port}"
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise OSError(f"cannot listen on {address}: {error.strerror}") from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if config.reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(where)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise OSError(f"cannot listen on {address}: {error.strerror}") from None
    return sock


def _bind_unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(Path(path))
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise OSError(f"cannot listen on {path}: {error.strerror or error}") from None
    return sock


def _remove_stale(path: Path) -> None:
    """Remove a socket file that nobody listens on any more, as a killed daemon leaves it."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()


def urls(sockets: list[socket.socket], *, tls: bool) -> list[str]:
    """What to type into a browser."""
    scheme = "https" if tls else "http"
    found = []
    for sock in sockets:
        if sock.family == socket.AF_UNIX:
            found.append(f"unix:{sock.getsockname()}")
            continue
        host, port = sock.getsockname()[:2]
        found.append(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
    return found
