"""``/health`` and ``GET /store``."""

from typing import Any

from quart import Response
from quart_trio import QuartTrio

from daemon.replies import json_reply
from daemon.service import Service


def register(app: QuartTrio, service: Service) -> None:
    @app.get("/health", endpoint="health")
    @app.get("/v1/health", endpoint="v1_health")
    async def health() -> Response:
        slots = service.ready.client.statistics().slots
        busy = sum(slot.is_processing for slot in slots)
        body: dict[str, Any] = {
            "status": "ok",
            "slots_idle": len(slots) - busy,
            "slots_processing": busy,
        }
        store = service.ready.saves.health()
        body["store"] = store.status
        if store.reason:
            body["store_reason"] = store.reason
        return json_reply(body)

    @app.get("/store")
    async def store() -> Response:
        state = service.ready.saves.health()
        statistics = await service.workers.run(service.ready.saves.statistics)
        return json_reply({"status": state.status, "reason": state.reason, **statistics})
