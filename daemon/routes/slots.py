"""``GET /slots`` and ``POST /slots/{id}?action=save|restore|erase``."""

import re
import time
import unicodedata
from dataclasses import replace
from typing import Any

from quart import Response, request
from quart_trio import QuartTrio

from daemon.errors import ApiError, invalid
from daemon.native_format import settings_json
from daemon.replies import json_reply, request_body
from daemon.requests import SlotActionRequest, decode
from daemon.saves import (
    DamagedSave,
    EmptySlot,
    ForeignSave,
    SaveError,
    SavesNotYet,
    SavesUnavailable,
    UnknownSave,
)
from daemon.service import Service
from daemon.settings import Defaults
from runtime.engine.messages import SlotState

MAX_NAME = 255
_NUMBER = re.compile("[0-9]{1,9}")
_FORBIDDEN = set('/\\:*?"<>|\uff0e\u2215\u2216\ufffd\ufeff')


def register(app: QuartTrio, service: Service) -> None:
    @app.get("/slots")
    async def slots() -> Response:
        if not service.config.slots:
            raise ApiError(501, "This server does not support slots endpoint. Start it with `--slots`")
        states = service.ready.client.statistics().slots
        if "fail_on_no_slot" in request.args and all(state.is_processing for state in states):
            raise ApiError(503, "no slot available")
        return json_reply([_slot(state, service.ready.defaults) for state in states])

    @app.post("/slots/<id_slot>")
    async def act(id_slot: str) -> Response:
        if not _NUMBER.fullmatch(id_slot):
            raise invalid("Invalid slot ID")
        slot = int(id_slot)
        action = request.args.get("action", "")
        if action not in ("save", "restore", "erase"):
            raise invalid("Invalid action")
        name = await _file_name() if action != "erase" else ""
        if not 0 <= slot < service.config.n_parallel:
            raise invalid("Invalid slot ID")
        try:
            return json_reply(await _act(action, slot, name))
        except SaveError as error:
            raise _api_error(error) from error

    async def _act(action: str, slot: int, name: str) -> dict[str, Any]:
        saves = service.ready.saves
        start = time.perf_counter()
        if action == "save":
            saved = await saves.save(slot, name)
            return {
                "id_slot": slot,
                "filename": name,
                "n_saved": saved.n_tokens,
                "n_written": saved.n_bytes,
                "n_resumable": saved.n_resumable,
                "bytes_shared": saved.bytes_shared,
                "timings": {"save_ms": _ms_since(start)},
            }
        if action == "restore":
            restored = await saves.restore(slot, name)
            return {
                "id_slot": slot,
                "filename": name,
                "n_restored": restored.n_tokens,
                "n_read": restored.n_bytes,
                "n_resumable": restored.n_resumable,
                "timings": {"restore_ms": _ms_since(start)},
            }
        return {"id_slot": slot, "n_erased": await saves.erase(slot)}


async def _file_name() -> str:
    body = await request_body()
    name = decode(body or b"{}", SlotActionRequest).filename
    if name is None:
        raise invalid("Field 'filename': is required")
    if not is_valid_name(name):
        raise invalid("Invalid filename")
    return name


def is_valid_name(name: str) -> bool:
    """Whether `name` may name a save: not a path, nor what file systems or terminals take otherwise."""
    if not name or len(name.encode(errors="replace")) > MAX_NAME:
        return False
    if name != name.strip(" ") or name.endswith(".") or ".." in name:
        return False
    return not any(char in _FORBIDDEN or unicodedata.category(char) in ("Cc", "Cs") for char in name)


def _api_error(error: SaveError) -> ApiError:
    if isinstance(error, UnknownSave):
        return ApiError(404, str(error))
    if isinstance(error, ForeignSave):
        return ApiError(409, str(error), field=error.field)
    if isinstance(error, DamagedSave):
        return invalid(f"Unable to restore slot: {error}")
    if isinstance(error, EmptySlot):
        return invalid(f"Unable to save slot: {error}")
    if isinstance(error, SavesNotYet):
        return ApiError(503, str(error))
    if isinstance(error, SavesUnavailable):
        return ApiError(501, str(error))
    return ApiError(500, f"Unable to save slot: {error}")


def _ms_since(start: float) -> float:
    return (time.perf_counter() - start) * 1e3


def _slot(state: SlotState, defaults: Defaults) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": state.id,
        "n_ctx": state.n_ctx,
        "speculative": False,
        "is_processing": state.is_processing,
    }
    if state.id_task < 0:
        return shown
    params = settings_json(
        replace(defaults.settings, sampling=state.sampling, stop=state.stop, n_predict=state.n_predict),
        short=True,
    )
    return shown | {
        "id_task": state.id_task,
        "n_prompt_tokens": state.n_prompt_tokens,
        "n_prompt_tokens_processed": state.n_prompt_tokens_processed,
        "n_prompt_tokens_cache": state.n_prompt_tokens_cache,
        "n_tokens": state.n_tokens,
        "cache_source": str(state.cache_source),
        "cache_reason": state.cache_reason,
        "n_checkpoints": state.n_checkpoints,
        "params": params,
        "next_token": [
            {
                "has_next_token": state.has_next_token,
                "has_new_line": state.has_new_line,
                "n_remain": state.n_remain,
                "n_decoded": state.n_decoded,
            }
        ],
    }
