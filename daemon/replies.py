"""Responses in the shapes all routes use."""

from typing import Any

import msgspec
from quart import Response, request

from daemon.errors import ApiError

_encode = msgspec.json.Encoder().encode


async def request_body() -> bytes:
    """The body of the request at hand. Raises RequestEntityTooLarge and RequestTimeout."""
    data = await request.get_data(cache=False, as_text=False, parse_form_data=False)
    return bytes(data)


def json_reply(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status=status, content_type="application/json; charset=utf-8")


def error_reply(error: ApiError) -> Response:
    response = json_reply(error.body, error.code)
    if error.code == 503:
        response.headers["Retry-After"] = "1"
    if error.code == 501:
        # the official clients take every 5xx for a passing weakness and ask again
        response.headers["X-Should-Retry"] = "false"
    return response
