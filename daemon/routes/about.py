"""``/openapi.json`` and ``/version``."""

from quart import Response
from quart_trio import QuartTrio

from daemon.openapi import describe_api
from daemon.replies import json_reply
from daemon.service import Service


def register(app: QuartTrio, service: Service) -> None:
    @app.get("/openapi.json")
    async def openapi() -> Response:
        routes = [(rule.rule, rule.methods or set()) for rule in app.url_map.iter_rules()]
        return json_reply(describe_api(routes, service.config.api_prefix))

    @app.get("/version")
    async def version() -> Response:
        # 4 is the number ik_llama.cpp's page asks for; without its database there is nothing more to say
        return json_reply({"version": 4, "features": {"sql": False, "zstd_compression": False}})
