"""A reranker from its file to its answer: a tiny BERT with a classifier, against numpy on its hidden rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.daemon.process import EmberdProcess
from tests.rewrite import rewrite
from tests.runtime.evaluation import arch

QUERY = "a b"
DOCUMENTS = ["c d", "a b a b", "e", "f g h i j k"]
RNG = np.random.default_rng(5)


@pytest.fixture(scope="module")
def head() -> dict[str, np.ndarray]:
    n_embd = 64
    shapes = {"cls.weight": (n_embd, n_embd), "cls.bias": (n_embd,), "cls.output.weight": (1, n_embd)}
    shapes["cls.output.bias"] = (1,)
    return {name: RNG.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def test_scores_are_the_classifiers_over_the_first_row(tmp_path: Path, head: dict[str, np.ndarray]) -> None:
    model = rewrite(arch("bert"), tmp_path / "reranker.gguf", {"bert.pooling_type": 4}, head)
    flags = ("-np", "2", "-c", "256", "--store", "off")

    def tokens(emberd: EmberdProcess, text: str, special: bool) -> list[int]:
        body = {"content": text, "add_special": special}
        ids: list[int] = emberd.client.post("/tokenize", json=body).json()["tokens"]
        return ids

    with EmberdProcess(model, *flags, "--embeddings", "--pooling", "cls") as emberd:
        query = tokens(emberd, QUERY, special=True)
        pairs = [[*query, *tokens(emberd, document, special=False)] for document in DOCUMENTS]
        answer = emberd.client.post("/embedding", json={"input": pairs, "embd_normalize": -1}).json()
        rows = np.array([one["embedding"][0] for one in answer])
    with EmberdProcess(model, *flags, "--reranking") as emberd:
        body: dict[str, Any] = {"query": QUERY, "documents": DOCUMENTS}
        ranked = emberd.client.post("/rerank", json=body).json()
    hidden = np.tanh(rows @ head["cls.weight"].T + head["cls.bias"])
    scores = (hidden @ head["cls.output.weight"].T + head["cls.output.bias"])[:, 0]
    assert [one["index"] for one in ranked["results"]] == np.argsort(-scores).tolist()
    got = {one["index"]: one["relevance_score"] for one in ranked["results"]}
    assert [got[i] for i in range(len(DOCUMENTS))] == pytest.approx(scores.tolist(), abs=1e-5)
    assert len(set(np.round(scores, 3))) == len(DOCUMENTS)
    assert ranked["usage"]["prompt_tokens"] == sum(map(len, pairs))
