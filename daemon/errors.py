"""Errors as llama-server answers them: ``{"error": {"code", "message", "type"}}``."""

from typing import Any

from runtime.errors import (
    ContextExceeded,
    InvalidRequest,
    NothingToSample,
    PoolExhausted,
    QueueFull,
    RuntimeFault,
)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    408: "invalid_request_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class ApiError(Exception):
    """An answer other than the one asked for. `fields` are added to the error object."""

    def __init__(self, code: int, message: str, *, type: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.type = type or _TYPES.get(code, "server_error")
        self.fields = fields

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message, "type": self.type, **self.fields}}


def invalid(message: str) -> ApiError:
    return ApiError(400, message)


def invalid_field(name: str, message: str) -> ApiError:
    return ApiError(400, f"Field '{name}': {message}")


def not_supported(name: str, what: str) -> ApiError:
    """A field that asks for something emberd cannot do (yet)."""
    return ApiError(501, f"Field '{name}': {what}")


NOT_FOUND = ApiError(404, "File Not Found")
LOADING = ApiError(503, "Loading model")
TOO_SLOW = ApiError(504, "The answer took longer than --request-timeout allows")
SHUTTING_DOWN = ApiError(503, "The server is shutting down")


def from_exception(error: BaseException) -> ApiError:
    """The answer to a request that failed with `error`; unexpected ones say nothing of the inside."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextExceeded):
        return ApiError(
            400,
            str(error),
            type="exceed_context_size_error",
            n_prompt_tokens=error.n_prompt,
            n_ctx=error.n_ctx,
        )
    if isinstance(error, InvalidRequest | NothingToSample):
        return ApiError(400, str(error))
    if isinstance(error, QueueFull | PoolExhausted):
        return ApiError(503, str(error))
    if isinstance(error, RuntimeFault):
        return ApiError(500, str(error))
    return ApiError(500, "Internal error, see the server's log")
