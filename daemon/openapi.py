"""An OpenAPI document of the routes, with the schemas that requests are checked against."""

import re
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from daemon.build_info import VERSION
from daemon.requests import (
    ChatRequest,
    CompletionRequest,
    ControlRequest,
    DeletePromptRequest,
    DetokenizeRequest,
    EmbeddingsRequest,
    ForgetRequest,
    InfillRequest,
    MessagesRequest,
    PropsRequest,
    RenamePromptRequest,
    RerankRequest,
    ResponsesRequest,
    SlotActionRequest,
    TextCompletionRequest,
    TokenizeRequest,
)
from daemon.unsupported import FIELDS

BODIES: dict[str, type[msgspec.Struct]] = {
    "/completion": CompletionRequest,
    "/completions": CompletionRequest,
    "/v1/completions": TextCompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/chat/completions": ChatRequest,
    "/v1/chat/completions/input_tokens": ChatRequest,
    "/chat/completions/input_tokens": ChatRequest,
    "/v1/chat/completions/control": ControlRequest,
    "/apply-template": ChatRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": MessagesRequest,
    "/v1/responses": ResponsesRequest,
    "/responses": ResponsesRequest,
    "/v1/responses/input_tokens": ResponsesRequest,
    "/responses/input_tokens": ResponsesRequest,
    "/infill": InfillRequest,
    "/embedding": EmbeddingsRequest,
    "/embeddings": EmbeddingsRequest,
    "/v1/embeddings": EmbeddingsRequest,
    "/rerank": RerankRequest,
    "/reranking": RerankRequest,
    "/v1/rerank": RerankRequest,
    "/v1/reranking": RerankRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/props": PropsRequest,
    "/slots/<id_slot>": SlotActionRequest,
    "/delete_prompt": DeletePromptRequest,
    "/rename_prompt": RenamePromptRequest,
    "/store/forget": ForgetRequest,
}
"""What the body of a POST to each route is."""

_REQUIRED = {
    "CompletionRequest": ["prompt"],
    "TextCompletionRequest": ["prompt"],
    "ChatRequest": ["messages"],
    "MessagesRequest": ["messages"],
    "ResponsesRequest": ["input"],
    "InfillRequest": ["input_prefix", "input_suffix"],
    "ControlRequest": ["id", "action"],
    "RerankRequest": ["query"],
}
"""Fields without which a request is refused; decoding leaves them out so that the error is llama-server's."""

_QUERIES: dict[str, dict[str, Any]] = {
    "/slots/<id_slot>": {"action": {"enum": ["save", "restore", "erase"]}},
}

_PARAMETER = re.compile(r"<(?:[^:>]+:)?([^>]+)>")
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "code": {"type": "integer"},
                "message": {"type": "string"},
                "type": {"type": "string"},
            },
        }
    },
}


def describe_api(routes: Iterable[tuple[str, Collection[str]]], prefix: str = "") -> dict[str, Any]:
    """The document for `routes`, pairs of a path and its methods; files of the page are left out."""
    paths: dict[str, Any] = {}
    for path, methods in sorted(routes, key=lambda route: route[0]):
        if path in ("/", "/<path:path>"):
            continue
        operations = paths.setdefault(_PARAMETER.sub(r"{\1}", path), {})
        for method in sorted(set(methods) - {"HEAD", "OPTIONS"}):
            operations[method.lower()] = _operation(path, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "emberd", "version": VERSION},
        "servers": [{"url": prefix or "/"}],
        "paths": paths,
        "components": {
            "schemas": {**_schemas(), "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _schemas() -> dict[str, Any]:
    """Of all bodies. A field of a feature that is absent is shown with the values that pass."""
    types = list(dict.fromkeys(BODIES.values()))
    _, schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    for name, schema in schemas.items():
        if name in _REQUIRED:
            schema["required"] = _REQUIRED[name]
        for field, (neutral, what) in FIELDS.items():
            if field in schema["properties"]:
                values = [None] if neutral.example is None else [neutral.example, None]
                schema["properties"][field] = {"description": what, "enum": values, "default": None}
    return schemas


def _operation(path: str, method: str) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation: dict[str, Any] = {
        "responses": {
            "200": {"description": "The answer"},
            "default": {"description": "What went wrong", "content": error},
        }
    }
    parameters = [(name, "path", {"type": "string"}) for name in _PARAMETER.findall(path)]
    parameters += [(name, "query", schema) for name, schema in _QUERIES.get(path, {}).items()]
    if parameters:
        operation["parameters"] = [
            {"name": name, "in": place, "required": True, "schema": schema}
            for name, place, schema in parameters
        ]
    if method == "POST" and path in BODIES:
        schema = {"$ref": f"#/components/schemas/{BODIES[path].__name__}"}
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation
