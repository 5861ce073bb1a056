"""Embeddings and rankings: from a request to prompts, and from vectors to answers (http-api.md 23, 24)."""

import base64
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from daemon.errors import ApiError, invalid
from daemon.model import ServedModel
from daemon.requests import EmbeddingsRequest, RerankRequest
from daemon.text import as_tokens, encode_prompt, encode_text, split_prompts
from runtime.engine import Embedded
from runtime.engine.messages import Tokens
from runtime.errors import ContextExceeded
from runtime.pooling import Pooling, Vectors, normalise
from runtime.tokenizers import Tokenizer

MAX_INPUTS = 4096

_SLOT = re.compile(r"\{(query|document)\}")


def read_inputs(body: EmbeddingsRequest) -> tuple[list[Any], bool]:
    """The single inputs of a request, and whether it asks for the native shape. Raises ApiError 400."""
    if body.encoding_format not in (None, "float", "base64"):
        raise invalid("The format to return the embeddings in. Can be either float or base64")
    given = body.input if body.input is not None else body.content
    if given is None:
        raise invalid('"input" or "content" must be provided')
    if given == []:
        raise invalid('"input" must not be empty')
    singles, _ = split_prompts(given)
    if len(singles) > MAX_INPUTS:
        raise invalid(f'"input" has more than {MAX_INPUTS} elements')
    return singles, body.input is None


def encode_inputs(inputs: Sequence[Any], tokenizer: Tokenizer) -> tuple[Tokens, ...]:
    """Tokens of each input with the special ones the model wants around it. Raises ApiError 400."""
    prompts = tuple(encode_prompt(one, tokenizer) for one in inputs)
    if not all(len(prompt) for prompt in prompts):
        raise invalid("Input content cannot be empty")
    return prompts


def too_long(error: ContextExceeded) -> ApiError:
    sizes = f"input ({error.n_prompt} tokens) is larger than the max context size ({error.n_ctx} tokens)"
    return ApiError(
        400,
        f"{sizes}. skipping",
        type="exceed_context_size_error",
        n_prompt_tokens=error.n_prompt,
        n_ctx=error.n_ctx,
    )


def native_embeddings(embedded: Embedded, pooling: Pooling, kind: int) -> list[dict[str, Any]]:
    """A list of vectors for each input: one, or without pooling one per token, which are not normalised."""
    return [
        {"index": i, "embedding": _normal(vectors, pooling, kind).tolist()}
        for i, vectors in enumerate(embedded.vectors)
    ]


def openai_embeddings(
    embedded: Embedded, pooling: Pooling, kind: int, model: str, as_base64: bool
) -> dict[str, Any]:
    data = []
    for i, vectors in enumerate(embedded.vectors):
        vector = _normal(vectors, pooling, kind)[0]
        shown: dict[str, Any] = {"object": "embedding", "index": i, "embedding": vector.tolist()}
        if as_base64:
            shown["embedding"] = base64.b64encode(vector.astype("<f4").tobytes()).decode()
            shown["encoding_format"] = "base64"
        data.append(shown)
    return {"object": "list", "model": model, "data": data, "usage": _usage(embedded)}


def _normal(vectors: Vectors, pooling: Pooling, kind: int) -> Vectors:
    return vectors if pooling is Pooling.NONE else normalise(vectors, kind)


def _usage(embedded: Embedded) -> dict[str, int]:
    return {"prompt_tokens": embedded.n_tokens, "total_tokens": embedded.n_tokens}


def read_documents(body: RerankRequest) -> tuple[str, list[str]]:
    """The query and what is to be ranked. Raises ApiError 400."""
    if body.query is None:
        raise invalid('"query" must be provided')
    if not isinstance(body.query, str):
        raise invalid('"query" must be a string')
    documents = body.documents if body.texts is None else body.texts
    if not (isinstance(documents, list) and documents and all(isinstance(one, str) for one in documents)):
        raise invalid('"documents" must be a non-empty string array')
    if len(documents) > MAX_INPUTS:
        raise invalid(f'"documents" has more than {MAX_INPUTS} elements')
    return body.query, documents


def encode_pairs(query: str, documents: Sequence[str], model: ServedModel) -> tuple[Tokens, ...]:
    """One prompt per document: the model's own template, else the two texts between special tokens."""
    tokenizer = model.tokenizer
    if model.template_rerank:
        texts = [_fill(model.template_rerank, query, document) for document in documents]
        return tuple(encode_text(text, tokenizer, add_special=False) for text in texts)
    end = tokenizer.eos_id if tokenizer.eos_id is not None else tokenizer.sep_id
    closing = [end] if tokenizer.flags.add_eos and end is not None else []
    between = [tokenizer.sep_id] if tokenizer.flags.add_sep and tokenizer.sep_id is not None else []
    asked = [*tokenizer.prefix_ids, *encode_text(query, tokenizer, add_special=False), *closing, *between]
    return tuple(
        np.concatenate(
            [as_tokens(asked), encode_text(document, tokenizer, add_special=False), as_tokens(closing)]
        )
        for document in documents
    )


def _fill(template: str, query: str, document: str) -> str:
    """Both in one pass: a query that spells ``{document}`` stays as it is."""
    return _SLOT.sub(lambda match: query if match[1] == "query" else document, template)


def ranking(embedded: Embedded, body: RerankRequest, documents: Sequence[str], model: str) -> Any:
    """Best first, in Jina's shape or, for a request with `texts`, in TEI's."""
    scores = [float(vectors[0, 0]) for vectors in embedded.vectors]
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    order = order[: len(order) if body.top_n is None else body.top_n]
    if body.texts is not None:
        with_text = bool(body.return_text)
        return [
            {"index": i, "score": scores[i]} | ({"text": documents[i]} if with_text else {}) for i in order
        ]
    results = [{"index": i, "relevance_score": scores[i]} for i in order]
    return {"model": model, "object": "list", "usage": _usage(embedded), "results": results}
