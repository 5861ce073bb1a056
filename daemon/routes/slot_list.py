"""``GET /slots/list``: what each slot remembers, as text."""

from typing import Any

import trio
from quart import Response
from quart_trio import QuartTrio

from daemon.errors import ApiError
from daemon.replies import json_reply
from daemon.service import Service
from runtime.engine.commands import CaptureSlot, SlotCaptured
from runtime.engine.messages import SlotState

_PATIENCE_SECONDS = 1.0


def register(app: QuartTrio, service: Service) -> None:
    @app.get("/slots/list")
    async def slot_list() -> Response:
        if not service.config.slots:
            raise ApiError(501, "This server does not support slots endpoint. Start it with `--slots`")
        return json_reply([await _shown(state) for state in service.ready.client.statistics().slots])

    async def _shown(state: SlotState) -> dict[str, Any]:
        text = None if state.is_processing or not state.n_tokens else await _text(state.id)
        return {"slot_id": state.id, "token_count": state.n_tokens, "prompt": text or ""}

    async def _text(id_slot: int) -> str:
        """The slot's text; "" when the slot got busy meanwhile, whose tokens only its request knows."""
        with trio.move_on_after(_PATIENCE_SECONDS):
            captured = await service.ready.client.ask(lambda ticket: CaptureSlot(ticket, id_slot))
            if isinstance(captured, SlotCaptured) and captured.snapshot is not None:
                tokens = captured.snapshot.tokens.copy()
                captured.snapshot.release()
                return await service.workers.run(service.ready.model.decode, tokens)
        return ""
