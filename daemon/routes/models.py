"""``/v1/models`` and ``/props``."""

from dataclasses import asdict
from typing import Any

from quart import Response
from quart_trio import QuartTrio
from werkzeug.routing import PathConverter

from daemon.build_info import BUILD
from daemon.codex import codex_record
from daemon.errors import NOT_FOUND, ApiError
from daemon.model import ServedModel
from daemon.native_format import settings_json
from daemon.replies import json_reply, request_body
from daemon.requests import PropsRequest, decode
from daemon.service import Ready, Service


class _Anything(PathConverter):
    """A path that may begin with a slash."""

    regex = ".+?"
    part_isolating = False


def register(app: QuartTrio, service: Service) -> None:
    @app.get("/v1/models", endpoint="v1_models")
    @app.get("/models", endpoint="models")
    async def models() -> Response:
        return json_reply(_models(service.ready))

    app.url_map.converters["anything"] = _Anything

    @app.get("/v1/models/<anything:name>", endpoint="v1_model")
    @app.get("/models/<anything:name>", endpoint="model")
    async def model(name: str) -> Response:
        if name != service.ready.model.name and name not in service.ready.model.aliases:
            raise NOT_FOUND
        return json_reply(_model_item(service.ready.model))

    @app.get("/props")
    async def props() -> Response:
        return json_reply(_props(service))

    @app.post("/props", endpoint="set_props")
    async def set_props() -> Response:
        if not service.config.props:
            raise ApiError(
                501, "This server does not support changing global properties. Start it with `--props`"
            )
        body = decode(await request_body() or b"{}", PropsRequest)
        await service.take_system_prompt(body.system_prompt)
        return json_reply({"success": True})

    @app.get("/v1/props", endpoint="v1_props")
    async def v1_props() -> Response:
        model = service.ready.model
        return json_reply(
            {
                "model_name": model.name,
                "model_path": model.path,
                "modalities": {"vision": False, "audio": False},
                "n_ctx": model.n_ctx,
            }
        )


def _models(ready: Ready) -> dict[str, Any]:
    model = ready.model
    return {
        "object": "list",
        "models": [_ollama_record(model) | codex_record(model)],
        "data": [_model_item(model)],
    }


def _model_item(model: ServedModel) -> dict[str, Any]:
    meta = asdict(model.meta)
    del meta["architecture"]
    return {
        "id": model.name,
        "aliases": list(model.aliases),
        "tags": list(model.tags),
        "object": "model",
        "created": model.created,
        "owned_by": "llamacpp",
        "max_model_len": model.n_ctx,
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "meta": meta | {"n_ctx": model.n_ctx},
    }


def _ollama_record(model: ServedModel) -> dict[str, Any]:
    """As llama.cpp's server has it."""
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "tags": list(model.tags) or [""],
        "capabilities": ["completion"],
        "parameters": "",
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": model.meta.architecture,
            "families": [model.meta.architecture],
            "parameter_size": "",
            "quantization_level": model.meta.ftype,
        },
    }


def _props(service: Service) -> dict[str, Any]:
    ready, config = service.ready, service.config
    model = ready.model
    settings = settings_json(ready.defaults.settings, short=True)
    shown: dict[str, Any] = {
        "default_generation_settings": settings | {"params": settings, "n_ctx": model.n_ctx},
        "total_slots": config.n_parallel,
        "model_alias": model.name,
        "model_name": model.path.rsplit("/", 1)[-1],
        "model_path": model.path,
        "model_ftype": model.meta.ftype,
        "modalities": {"vision": False, "audio": False, "video": False},
        "n_ctx": model.n_ctx * config.n_parallel,
        "endpoint_slots": config.slots,
        "endpoint_props": config.props,
        "endpoint_metrics": config.metrics,
        "ui": config.ui,
        "ui_settings": {},
        "chat_template": ready.template.source,
        "chat_template_caps": asdict(ready.template.caps),
        "bos_token": model.bos_text,
        "eos_token": model.eos_text,
        "build_info": BUILD,
        "is_sleeping": False,
        "cors_proxy_enabled": False,
        "system_prompt": service.system_prompt.prompt,
        "user_name": service.system_prompt.anti_prompt,
        "assistant_name": service.system_prompt.assistant_name,
    }
    if model.template_tool_use:
        shown["chat_template_tool_use"] = model.template_tool_use
    return shown
