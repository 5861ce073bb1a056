"""``/embedding``, ``/embeddings``, ``/v1/embeddings`` and the ``/rerank`` family."""

import math

from quart import Response
from quart_trio import QuartTrio

from daemon.embedding import (
    encode_inputs,
    encode_pairs,
    native_embeddings,
    openai_embeddings,
    ranking,
    read_documents,
    read_inputs,
    too_long,
)
from daemon.errors import ApiError, invalid
from daemon.exchange import current_exchange
from daemon.replies import json_reply, read_request
from daemon.requests import EmbeddingsRequest, RerankRequest
from daemon.service import Service
from runtime.engine import Embedded, EmbedRequest
from runtime.engine.messages import Tokens
from runtime.errors import ContextExceeded
from runtime.pooling import Pooling
from runtime.readout import Readout


def register(app: QuartTrio, service: Service) -> None:
    @app.post("/embedding", endpoint="embedding")
    @app.post("/embeddings", endpoint="embeddings")
    async def native() -> Response:
        return await _embeddings(native_only=True)

    @app.post("/v1/embeddings", endpoint="v1_embeddings")
    async def openai() -> Response:
        return await _embeddings(native_only=False)

    async def _embeddings(native_only: bool) -> Response:
        ready = service.ready
        if ready.readout is None:
            raise ApiError(501, "This server does not support embeddings. Start it with `--embeddings`")
        body = await read_request(EmbeddingsRequest, service.workers)
        pooling = ready.readout.pooling
        if not native_only and pooling is Pooling.NONE:
            raise invalid("Pooling type 'none' is not OAI compatible. Please use a different pooling type")
        inputs, is_native = read_inputs(body)
        prompts = await service.workers.run(encode_inputs, inputs, ready.model.tokenizer)
        embedded = await _embed(prompts, ready.readout)
        kind = service.config.embd_normalize if body.embd_normalize is None else body.embd_normalize
        if native_only or is_native:
            return json_reply(await service.workers.run(native_embeddings, embedded, pooling, kind))
        name = body.model or ready.model.name
        as_base64 = body.encoding_format == "base64"
        return json_reply(
            await service.workers.run(openai_embeddings, embedded, pooling, kind, name, as_base64)
        )

    @app.post("/rerank", endpoint="rerank")
    @app.post("/reranking", endpoint="reranking")
    @app.post("/v1/rerank", endpoint="v1_rerank")
    @app.post("/v1/reranking", endpoint="v1_reranking")
    async def rerank() -> Response:
        ready = service.ready
        if ready.readout is None or ready.readout.pooling is not Pooling.RANK:
            raise ApiError(501, "This server does not support reranking. Start it with `--reranking`")
        body = await read_request(RerankRequest, service.workers)
        query, documents = read_documents(body)
        prompts = await service.workers.run(encode_pairs, query, documents, ready.model)
        embedded = await _embed(prompts, ready.readout)
        return json_reply(ranking(embedded, body, documents, body.model or ready.model.name))

    async def _embed(prompts: tuple[Tokens, ...], readout: Readout) -> Embedded:
        client = service.ready.client
        request = EmbedRequest(client.next_request_id(), prompts, readout)
        generation = client.generate([request], service.config.request_timeout or math.inf)
        current_exchange().on_end(generation.close)
        try:
            _, event = await generation.receive()
        except ContextExceeded as error:
            raise too_long(error) from None
        if not isinstance(event, Embedded):
            raise TypeError(f"the engine answered a request for embeddings with {type(event).__name__}")
        return event
