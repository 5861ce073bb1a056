"""``/metrics`` for Prometheus."""

from quart import Response
from quart_trio import QuartTrio

from daemon.errors import ApiError
from daemon.metrics import Throughput, exposition
from daemon.service import Service


def register(app: QuartTrio, service: Service) -> None:
    throughput = Throughput()

    @app.get("/metrics")
    async def metrics() -> Response:
        if not service.config.metrics:
            raise ApiError(501, "This server does not support metrics endpoint. Start it with `--metrics`")
        ready = service.ready
        store = await service.workers.run(ready.saves.statistics)
        state = ready.saves.health().status
        text = exposition(ready.client.statistics(), throughput, store, state)
        response = Response(text, content_type="text/plain; version=0.0.4")
        response.headers["Process-Start-Time-Unix"] = str(int(service.started))
        return response
