"""Bodies of requests and responses, as all routes read and write them."""

from typing import Any, TypeVar

import msgspec
from quart import Response, request

from daemon.errors import ApiError
from daemon.requests import decode
from daemon.workers import Workers

T = TypeVar("T", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode

_SMALL_BODY = 128 * 2**10
"""Bytes that are decoded within a millisecond or so, whatever they say."""


async def request_body() -> bytes:
    """The body of the request at hand. Raises RequestEntityTooLarge and RequestTimeout."""
    body: Any = request.body
    data: bytes | None = body.take()
    if data is None:
        data = bytes(await request.get_data(cache=False, as_text=False, parse_form_data=False))
    return data


async def read_request(type: type[T], workers: Workers) -> T:
    """The body of the request at hand as a `type`. Raises ApiError 400, and what `request_body` does.

    Millions of numbers take seconds to be checked: large bodies do not hold up the event loop.
    """
    body = await request_body()
    return decode(body, type) if len(body) <= _SMALL_BODY else await workers.run(decode, body, type)


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
