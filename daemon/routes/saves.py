"""Saved prompts as ik_llama.cpp lists them: ``GET /list``, ``POST /delete_prompt`` and ``/rename_prompt``.

Errors here are ``{"error": "<text>"}``, as that API has them.
"""

import time
from typing import TypeVar

import msgspec
from quart import Response
from quart_trio import QuartTrio

from daemon.replies import json_reply, request_body
from daemon.requests import DeletePromptRequest, RenamePromptRequest
from daemon.routes.slots import is_valid_name
from daemon.saves import SavedPrompt, SaveError, SaveExists, UnknownSave
from daemon.service import Service

T = TypeVar("T", bound=msgspec.Struct)


class _Refused(Exception):
    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text


def register(app: QuartTrio, service: Service) -> None:
    @app.errorhandler(_Refused)
    async def refused(error: _Refused) -> Response:
        return json_reply({"error": error.text}, error.code)

    @app.get("/list")
    async def saved() -> Response:
        saves = await service.ready.saves.saved()
        return json_reply([await _listed(service, save) for save in saves])

    @app.post("/delete_prompt")
    async def delete() -> Response:
        name = _checked(_decode(await request_body(), DeletePromptRequest).filename)
        try:
            await service.ready.saves.delete(name)
        except UnknownSave:
            raise _Refused(404, "File not found.") from None
        except SaveError as error:
            raise _Refused(500, str(error)) from None
        return json_reply({"status": "deleted", "filename": name})

    @app.post("/rename_prompt")
    async def rename() -> Response:
        body = _decode(await request_body(), RenamePromptRequest)
        old, new = _checked(body.old_filename), _checked(body.new_filename)
        try:
            await service.ready.saves.rename(old, new)
        except UnknownSave:
            raise _Refused(404, "Source file not found.") from None
        except SaveExists:
            raise _Refused(409, "Destination filename already exists.") from None
        except SaveError as error:
            raise _Refused(500, str(error)) from None
        return json_reply({"status": "renamed", "old_filename": old, "new_filename": new})


async def _listed(service: Service, save: SavedPrompt) -> dict[str, object]:
    """One item of the list. The text is empty for a save whose ids are not of the loaded vocabulary."""
    try:
        prompt = service.ready.model.decode((await service.ready.saves.saved_tokens(save.name)).tolist())
    except (SaveError, IndexError):
        prompt = ""
    return {
        "filename": save.name,
        "filesize": save.n_bytes,
        "mtime": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(save.created)),
        "token_count": save.n_tokens,
        "prompt": prompt,
        "model": save.model,
    }


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _Refused(400, f"Missing or wrong key in request body: {error}") from None
    except (msgspec.DecodeError, RecursionError):
        raise _Refused(400, "Invalid JSON request body.") from None


def _checked(name: str) -> str:
    if not is_valid_name(name):
        raise _Refused(400, "Invalid filename format.")
    return name
