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
    return response
