"""``/embeddings`` and ``/rerank`` over HTTP."""

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest

from daemon.config import Config, build_config
from daemon.embedding import encode_pairs
from daemon.loading import Prepared, Report
from runtime.pooling import Pooling
from runtime.readout import Dense, Readout
from tests.daemon.harness import RunningDaemon, prepare_fake, tokenizer
from tests.daemon.process import EmberdProcess
from tests.models import minilm_path

SCORE = Dense(np.array([[1.0, 0.0]], dtype=np.float32))
MEAN = Readout(Pooling.MEAN, 2, Pooling.MEAN)
NONE = Readout(Pooling.NONE, 2, Pooling.NONE)
RANK = Readout(Pooling.RANK, 1, Pooling.MEAN, (SCORE,))


def with_readout(readout: Readout) -> Callable[[Config, Report], Prepared]:
    return lambda config, report: replace(prepare_fake(config, report), readout=readout)


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("--embeddings", prepare=with_readout(MEAN)) as running:
        yield running


def unit(x: float, y: float) -> list[float]:
    return [x / float(np.hypot(x, y)), y / float(np.hypot(x, y))]


def test_the_native_shape_is_a_list_of_vectors_per_input(daemon: RunningDaemon) -> None:
    for path in ("/embedding", "/embeddings"):
        body = daemon.post(path, {"content": [[5], [7, 9]]}).json()
        assert [one["index"] for one in body] == [0, 1]
        assert body[0]["embedding"] == [[1.0, 0.0]]
        assert np.allclose(body[1]["embedding"], [unit(8, 0.5)])


def test_openais_shape_counts_tokens_and_names_the_model(daemon: RunningDaemon) -> None:
    body = daemon.post("/v1/embeddings", {"input": [[5], [7, 9]], "model": "any"}).json()
    assert body["object"] == "list" and body["model"] == "any"
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert [one["index"] for one in body["data"]] == [0, 1]
    assert np.allclose(body["data"][1]["embedding"], unit(8, 0.5))
    assert daemon.post("/v1/embeddings", {"content": [[5]]}).json()[0]["embedding"] == [[1.0, 0.0]]


def test_base64_holds_the_same_numbers(daemon: RunningDaemon) -> None:
    body = daemon.post("/v1/embeddings", {"input": [[7, 9]], "encoding_format": "base64"}).json()
    (one,) = body["data"]
    assert one["encoding_format"] == "base64"
    assert np.allclose(np.frombuffer(base64.b64decode(one["embedding"]), "<f4"), unit(8, 0.5))


@pytest.mark.parametrize(
    ("kind", "expected"), [(-1, [8, 0.5]), (0, [32760, 2047.5]), (1, [8 / 8.5, 0.5 / 8.5])]
)
def test_the_norm_is_chosen_by_the_request(daemon: RunningDaemon, kind: int, expected: list[float]) -> None:
    body = daemon.post("/embedding", {"input": [[7, 9]], "embd_normalize": kind}).json()
    assert np.allclose(body[0]["embedding"], [expected])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, '"input" or "content" must be provided'),
        ({"input": []}, '"input" must not be empty'),
        ({"input": ""}, "Input content cannot be empty"),
        ({"input": ["a", ""]}, "Input content cannot be empty"),
        ({"input": 5}, "elements must be"),
        ({"input": [[-1]]}, "invalid tokens"),
        ({"input": "a", "encoding_format": "hex"}, "Can be either float or base64"),
        ({"input": "a", "embd_normalize": -2}, "Field 'embd_normalize'"),
        ({"input": [[5] * 300]}, "input (300 tokens) is larger than the max context size (256 tokens)"),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(
    daemon: RunningDaemon, body: dict[str, Any], message: str
) -> None:
    assert message in daemon.error("/v1/embeddings", body, 400)
    assert message in daemon.error("/embedding", body, 400)


def test_without_pooling_there_is_a_vector_per_token_and_no_openai_shape() -> None:
    with RunningDaemon("--embeddings", prepare=with_readout(NONE)) as daemon:
        assert daemon.post("/embedding", {"input": [[7, 9]]}).json()[0]["embedding"] == [[7, 0], [9, 1]]
        assert "Pooling type 'none'" in daemon.error("/v1/embeddings", {"input": "a"}, 400)


def test_a_model_that_generates_says_how_to_get_embeddings() -> None:
    with RunningDaemon() as daemon:
        assert "--embeddings" in daemon.error("/v1/embeddings", {"input": "a"}, 501)
        assert "--reranking" in daemon.error("/rerank", {"query": "a", "documents": ["b"]}, 501)


@pytest.fixture(scope="module")
def ranker() -> Iterator[RunningDaemon]:
    with RunningDaemon("--reranking", prepare=with_readout(RANK)) as running:
        yield running


def test_documents_come_best_first(ranker: RunningDaemon) -> None:
    documents = ["!", "z", "A"]
    for path in ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"):
        body = ranker.post(path, {"query": "!", "documents": documents, "top_n": 2}).json()
        assert body["object"] == "list" and body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"]
        scores = [one["relevance_score"] for one in body["results"]]
        assert len(scores) == 2 and scores == sorted(scores, reverse=True)
        assert [one["index"] for one in body["results"]] == [1, 2]


def test_teis_shape_shows_texts_on_demand(ranker: RunningDaemon) -> None:
    body: dict[str, Any] = {"query": "!", "texts": ["!", "z"]}
    assert [one["index"] for one in ranker.post("/rerank", body).json()] == [1, 0]
    shown = ranker.post("/rerank", body | {"return_text": True}).json()
    assert [one["text"] for one in shown] == ["z", "!"] and set(shown[0]) == {"index", "score", "text"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"documents": ["a"]}, '"query" must be provided'),
        ({"query": 5, "documents": ["a"]}, '"query" must be a string'),
        ({"query": "a"}, '"documents" must be a non-empty string array'),
        ({"query": "a", "documents": []}, "non-empty string array"),
        ({"query": "a", "documents": ["a", 5]}, "non-empty string array"),
        ({"query": "a", "documents": ["a"], "top_n": -1}, "Field 'top_n'"),
    ],
)
def test_wrong_rankings_are_told_what_is_wrong(
    ranker: RunningDaemon, body: dict[str, Any], message: str
) -> None:
    assert message in ranker.error("/rerank", body, 400)


def test_a_models_own_template_is_filled_in_one_pass() -> None:
    config, _ = build_config(["-m", "unused"], {})
    served = prepare_fake(config, lambda stage, share: None).model
    model = replace(served, template_rerank="Q {query} D {document}")
    (pair,) = encode_pairs("{document}", ["b"], model)
    assert tokenizer().decode(pair.tolist()) == "Q {document} D b"


@pytest.fixture(scope="module")
def minilm() -> Iterator[EmberdProcess]:
    with EmberdProcess(minilm_path(), "--embeddings", "--store", "off", "-c", "2048") as running:
        yield running


def test_the_official_client_gets_embeddings_that_know_meaning(minilm: EmberdProcess) -> None:
    client = openai.OpenAI(base_url=f"{minilm.url}/v1", api_key="none", max_retries=0)
    texts = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "Interest rates rose again."]
    answer = client.embeddings.create(model="any", input=texts)
    cat, kitten, rates = (np.array(one.embedding) for one in answer.data)
    assert np.isclose(np.linalg.norm(cat), 1.0)
    assert cat @ kitten > 0.5 > cat @ rates
    floats = client.embeddings.create(model="any", input=texts[0], encoding_format="float")
    assert np.allclose(floats.data[0].embedding, cat)


def test_a_model_of_embeddings_refuses_to_generate_and_goes_on(minilm: EmberdProcess) -> None:
    response = minilm.client.post("/completion", json={"prompt": "a"})
    assert response.status_code in (400, 501), response.text
    assert minilm.client.post("/embedding", json={"input": "a"}).status_code == 200
