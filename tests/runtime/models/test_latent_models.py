"""Models with latent attention: what files may look like, long contexts, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from runtime.errors import ModelError, UnsupportedModel
from runtime.evaluate import LinearSequence
from runtime.gguf import open_model
from runtime.model import LoadedModel, ModelOptions, load_model
from runtime.models.deepseek32 import LONG_CONTEXT, selecting_layers
from runtime.models.mla import Latent
from tests.runtime.evaluation import all_logits, arch, hidden_rows, model
from tests.runtime.rewriting import rewritten

LITE = Latent(n_head=2, rank=32, q_rank=0, nope=32, n_rot=16, d_v=32)


def prompt(loaded: LoadedModel, n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, loaded.runner.n_vocab, n).astype(np.int32)


def logits(path: Path, n: int = 60, **options: object) -> np.ndarray:
    with model(path, n_ctx=256, n_ubatch=128, **options) as loaded:  # type: ignore[arg-type]
        return all_logits(loaded, prompt(loaded, n))


@pytest.mark.parametrize("name", ["deepseek2", "deepseek32"])
@pytest.mark.parametrize("cache_type", ["f16", "bf16"])
def test_a_long_context_has_the_same_bits_in_every_schedule(name: str, cache_type: str) -> None:
    """Past two block borders, where single queries are split over the team."""
    n = 600
    with model(arch(name), n_ctx=n, cache_type=cache_type) as loaded:
        tokens = prompt(loaded, n)
        expected = all_logits(loaded, tokens)
        assert np.isfinite(expected).all()
        for chunks in ((17,), (256, 1, 99)):
            assert np.array_equal(all_logits(loaded, tokens, chunks), expected), chunks
        sequence = LinearSequence(loaded.runner, n)
        for _ in sequence.evaluate(tokens[:500], logits="none"):
            pass
        for i in range(500, n):
            assert np.array_equal(loaded.runner.step([sequence.run(tokens[i : i + 1])])[0], expected[i]), i


def test_a_sequence_goes_on_anywhere_as_if_nothing_had_followed() -> None:
    """Rows are functions of their prefix: what a branch wrote behind a divergence is never seen."""
    with model(arch("deepseek32"), n_ctx=600) as loaded:
        tokens = prompt(loaded, 600)
        expected = all_logits(loaded, tokens)
        for n in (550, 512, 257, 256, 255, 17, 16, 15, 1):
            sequence = LinearSequence(loaded.runner, 600)
            branch = np.concatenate([tokens[:n], (tokens[n:] + 1) % loaded.runner.n_vocab])
            for _ in sequence.evaluate(branch, logits="none"):
                pass
            sequence.truncate(n)
            got = np.concatenate([step.copy() for step in sequence.evaluate(tokens[n : n + 40], (13,))])
            assert np.array_equal(got, expected[n : n + 40]), n


def taken_apart(out: Path) -> Path:
    """deepseek2-lite as newer converters write it: k_b transposed and v_b instead of kv_b."""
    parts: dict[str, np.ndarray] = {}

    def change(name: str, data: np.ndarray) -> np.ndarray | None:
        if "attn_kv_b" not in name:
            return data
        heads = data.reshape(LITE.n_head, LITE.nope + LITE.d_v, LITE.rank)
        parts[name.replace("kv_b", "k_b")] = np.ascontiguousarray(heads[:, : LITE.nope].swapaxes(1, 2))
        parts[name.replace("kv_b", "v_b")] = np.ascontiguousarray(heads[:, LITE.nope :])
        return None

    rewritten("deepseek2-lite", out, change)  # collects the parts
    keys = {
        "attention.key_length_mla": LITE.nope + LITE.n_rot, "attention.value_length_mla": LITE.d_v,
        "attention.key_length": LITE.d, "attention.value_length": LITE.rank, "attention.head_count_kv": 1,
    }  # fmt: skip
    rewritten("deepseek2-lite", out, change, more=parts,
              keys={f"deepseek2.{key}": value for key, value in keys.items()})  # fmt: skip
    return out


def test_files_with_one_matrix_for_keys_and_values_give_what_newer_files_give(tmp_path: Path) -> None:
    assert Latent.read(open_model(arch("deepseek2-lite")), 2) == LITE
    assert np.array_equal(logits(arch("deepseek2-lite")), logits(taken_apart(tmp_path / "new.gguf")))


@pytest.mark.parametrize(("name", "unlike"), [("deepseek2-lite", "attn_kv_b"), ("deepseek2", "attn_k_b")])
def test_weights_of_half_precision_change_little(name: str, unlike: str, tmp_path: Path) -> None:
    def change(tensor: str, data: np.ndarray) -> np.ndarray:
        return data.astype(np.float16) if unlike in tensor else data

    rewritten(name, tmp_path / "half.gguf", change)
    one, other = logits(arch(name)), logits(tmp_path / "half.gguf")
    assert 0 < np.median(np.abs(one - other)) < 0.01  # single rows may be routed otherwise


@pytest.mark.parametrize("name", ["deepseek2", "deepseek2-lite"])
def test_heads_matrices_that_stay_in_the_file_give_the_same_bits(name: str) -> None:
    assert np.array_equal(logits(arch(name)), logits(arch(name), repack=False))


def shared_selection(out: Path, types: list[bool], silent: tuple[int, ...]) -> np.ndarray:
    """Logits of glm-dsa whose layers select as `types` says; all scores of layers `silent` are equal."""

    def change(name: str, data: np.ndarray) -> np.ndarray:
        return np.zeros_like(data) if name in {f"blk.{i}.indexer.proj.weight" for i in silent} else data

    rewritten("glm-dsa", out, change, keys={"glm-dsa.attention.indexer.types": types})
    return logits(out)


def test_a_layer_without_an_index_sees_what_the_last_one_selected(tmp_path: Path) -> None:
    """Equal scores select the lowest positions, whatever layer they are of."""
    out = tmp_path / "glm.gguf"
    shared = shared_selection(out, [True, True, False], silent=(1,))
    assert np.array_equal(shared, shared_selection(out, [True, True, True], silent=(1, 2)))
    assert not np.array_equal(shared, shared_selection(out, [True, True, True], silent=(1,)))


def test_the_first_layer_must_select(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="makes no sense"):
        shared_selection(tmp_path / "glm.gguf", [False, True, True], silent=())


def test_glm_of_the_longest_context_shares_selections_where_its_file_does_not_say() -> None:
    file = open_model(arch("glm-dsa"))
    assert selecting_layers(file, 12) == (True,) * 12
    file = open_model(arch("glm-dsa"), overrides=[f"glm-dsa.context_length=int:{LONG_CONTEXT}"])
    assert [i for i, full in enumerate(selecting_layers(file, 12)) if full] == [0, 1, 2, 6, 10]


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("deepseek2", "attention.kv_lora_rank=int:0", "makes no sense"),
        ("deepseek2", "attention.kv_lora_rank=int:48", "expected"),
        ("deepseek2", "attention.kv_lora_rank=int:40", "not whole 16s"),
        ("deepseek2", "attention.q_lora_rank=int:32", "expected"),
        ("deepseek2", "attention.key_length_mla=int:16", "makes no sense"),
        ("deepseek2", "attention.key_length_mla=int:2147483647", "makes no sense"),
        ("deepseek2", "attention.value_length_mla=int:64", "expected"),
        ("deepseek2", "attention.head_count=int:3", "expected"),
        ("deepseek2", "rope.dimension_count=int:0", "makes no sense"),
        ("deepseek2", "rope.dimension_count=int:15", "not whole 16s"),
        ("deepseek2", "rope.scaling.factor=float:-1", "rope scaling"),
        ("deepseek2", "expert_group_count=int:3", "expert selection"),
        ("deepseek2", "attention.temperature_scale=float:0.1", "temperature"),
        ("deepseek32", "attention.indexer.top_k=int:0", "selects 0 rows"),
        ("deepseek32", "attention.indexer.head_count=int:0", "makes no sense"),
        ("deepseek32", "attention.indexer.head_count=int:7", "expected"),
        ("deepseek32", "attention.indexer.key_length=int:8", "8 values, 16 of them rotated"),
        ("deepseek32", "attention.indexer.key_length=int:32", "expected"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_in_one_line(name: str, override: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        load_model(arch(name), ModelOptions(n_ctx=256, overrides=[f"{name}.{override}"])).close()
    assert "\n" not in str(error.value)


def test_attention_that_is_not_causal_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="causal"):
        load_model(
            arch("deepseek2"), ModelOptions(n_ctx=256, overrides=["deepseek2.attention.causal=bool:false"])
        )


def test_a_model_loaded_for_embeddings_gives_what_its_head_would_get() -> None:
    """The reference's states after the final norm, of the last four tokens."""
    o = np.load(arch("deepseek2", "npz"))
    with model(arch("deepseek2"), n_ctx=256, cache_type="f32", embeddings=True) as loaded:
        (rows,) = hidden_rows(loaded, o["prompt_ids"].astype(np.int32))
    assert np.abs(rows[-4:] - o["act_result_norm"]).max() < 1e-3


def test_a_cache_type_that_cannot_hold_the_rows_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="q8_0 cannot hold rows of 80 values"):
        load_model(arch("deepseek2"), ModelOptions(n_ctx=256, key_type="q8_0"))
