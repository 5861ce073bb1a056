"""What models do with pooled rows: classifiers of rerankers, dense layers of EmbeddingGemma."""

from pathlib import Path

import numpy as np
import pytest

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import ModelFile, open_model
from runtime.pooling import Pooling
from runtime.readout import read_readout
from tests.runtime.gguf.writer import STRING, U32, File, Tensor

ROWS = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def model_file(tmp_path: Path, arch: str, pooling: int | None = None, **tensors: np.ndarray) -> ModelFile:
    """`tensors` are numpy's [n_out, n_in]; their names have _ for dots."""
    file = File().put("general.architecture", STRING, arch).put(f"{arch}.embedding_length", U32, 3)
    if pooling is not None:
        file.put(f"{arch}.pooling_type", U32, pooling)
    file.tensors = [
        Tensor(name.replace("__", "."), values.shape[::-1], data=values.tobytes())
        for name, values in tensors.items()
    ]
    return open_model(file.write(tmp_path / "model.gguf"))


def test_a_reranker_classifies_its_first_row(tmp_path: Path) -> None:
    w, b, out, out_b = weights(3, 3), weights(3), weights(1, 3), weights(1)
    file = model_file(
        tmp_path, "bert", 4, cls__weight=w, cls__bias=b, cls__output__weight=out, cls__output__bias=out_b
    )
    readout = read_readout(file)
    assert (readout.pooling, readout.n_out) == (Pooling.RANK, 1)
    expected = np.tanh(ROWS[0] @ w.T + b) @ out.T + out_b
    assert np.allclose(readout(ROWS), expected[None], atol=1e-6)


def test_qwen3_rerankers_give_shares_from_the_last_row(tmp_path: Path) -> None:
    out = weights(2, 3)
    scores = read_readout(model_file(tmp_path, "qwen3", 4, cls__output__weight=out))(ROWS)
    e = np.exp(ROWS[-1] @ out.T)
    assert np.allclose(scores, [e / e.sum()], atol=1e-6)


def test_modern_bert_ranks_by_the_mean_and_gelu(tmp_path: Path) -> None:
    w = weights(4, 3)
    scores = read_readout(model_file(tmp_path, "modern-bert", cls__weight=w), Pooling.RANK)(ROWS)
    x = ROWS.mean(axis=0) @ w.T
    assert np.allclose(scores, [0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))], atol=1e-6)


def test_dense_layers_follow_pooling(tmp_path: Path) -> None:
    up, down = weights(6, 3), weights(2, 6)
    readout = read_readout(
        model_file(tmp_path, "gemma-embedding", 1, dense_2__weight=up, dense_3__weight=down)
    )
    assert readout.n_out == 2
    assert np.allclose(readout(ROWS), [ROWS.mean(axis=0) @ up.T @ down.T], atol=1e-5)
    assert read_readout(model_file(tmp_path, "gemma-embedding"), Pooling.NONE)(ROWS).shape == (5, 3)


def test_a_vector_has_the_same_bits_in_all_company(tmp_path: Path) -> None:
    layer = read_readout(model_file(tmp_path, "gemma-embedding", 0, dense_2__weight=weights(6, 3)))
    assert np.array_equal(layer(ROWS)[2:3], layer(ROWS[2:3]))


def test_what_a_file_lacks_or_has_wrong_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no classifier"):
        read_readout(model_file(tmp_path, "bert"), Pooling.RANK)
    with pytest.raises(ModelError, match=r"cls.weight has shape \[4, 3\], expected rows of 3"):
        read_readout(model_file(tmp_path, "bert", 4, cls__weight=weights(3, 4)))
    with pytest.raises(UnsupportedModel, match="pooling type 9"):
        read_readout(model_file(tmp_path, "bert", 9))
