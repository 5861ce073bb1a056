"""Hidden states of encoders, and of decoders loaded for them: exact to the reference, the same in company."""

import json

import numpy as np
import pytest

from runtime.errors import UnsupportedModel
from runtime.evaluate import LinearSequence
from runtime.model import ModelOptions, load_model
from runtime.pooling import Pooling, normalise
from tests.models import minilm_path, smollm2_path
from tests.runtime.evaluation import ENCODERS, arch, hidden_rows, model
from tests.runtime.test_arch_oracles import TOLERANCE, oracle
from tests.shared_data import shared


def prompt(n: int, n_vocab: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, n_vocab, n).astype(np.int32)


@pytest.mark.parametrize("name", ENCODERS)
def test_hidden_states_and_pooled_vectors_equal_the_reference(name: str) -> None:
    tokens = oracle(name, "prompt_ids").astype(np.int32)
    with model(arch(name), n_ctx=256) as loaded:
        (rows,) = hidden_rows(loaded, tokens)
        assert np.abs(rows - oracle(name, "emb_none")).max() < TOLERANCE
        for pooling in (Pooling.MEAN, Pooling.CLS, Pooling.LAST):
            vectors = loaded.readout(pooling)(rows)
            assert np.abs(vectors - oracle(name, f"emb_{pooling}")[None]).max() < TOLERANCE


@pytest.mark.parametrize(("name", "pooling"), [("bert", Pooling.CLS), ("nomic-bert", Pooling.MEAN)])
def test_the_file_says_how_to_pool(name: str, pooling: Pooling) -> None:
    with model(arch(name), n_ctx=256) as loaded:
        assert loaded.embeddings
        assert (loaded.readout().pooling, loaded.readout().n_out) == (pooling, 64)


@pytest.mark.parametrize("name", [*ENCODERS, "t5"])
def test_hidden_states_have_the_same_bits_with_all_threads_and_in_all_company(name: str) -> None:
    """Long enough for several partitions of keys; learned positions end at 256."""
    n = 250 if name == "bert" else 600
    expected = None
    for n_threads in (1, 2, 3):
        with model(
            arch(name), n_ctx=256 if name == "bert" else 1024, n_threads=n_threads, max_runs=3, n_ubatch=768
        ) as loaded:
            n_vocab = loaded.runner.n_vocab
            tokens, before, after = (prompt(m, n_vocab, m) for m in (n, 21, 100))
            (alone,) = hidden_rows(loaded, tokens)
            assert np.isfinite(alone).all()
            expected = alone if expected is None else expected
            assert np.array_equal(alone, expected), n_threads
            assert np.array_equal(hidden_rows(loaded, before, tokens, after)[1], expected), n_threads


@pytest.mark.parametrize(("overrides", "sees"), [(["llama.attention.causal=bool:false"], True), ([], False)])
def test_a_file_can_say_that_tokens_see_those_that_follow(overrides: list[str], sees: bool) -> None:
    options = ModelOptions(n_ctx=256, embeddings=not sees, overrides=overrides)
    loaded = load_model(arch("llama"), options)
    assert loaded.embeddings
    tokens = prompt(40, loaded.runner.n_vocab)
    changed = tokens.copy()
    changed[-1] ^= 1
    before, after = hidden_rows(loaded, tokens), hidden_rows(loaded, changed)
    loaded.close()
    assert (np.abs(before[0][0] - after[0][0]).max() > 1e-4) == sees
    assert np.array_equal(before[0][0], after[0][0]) != sees


def test_windows_of_a_decoder_that_is_not_causal_are_refused() -> None:
    options = ModelOptions(n_ctx=256, overrides=["gemma3.attention.causal=bool:false"])
    with pytest.raises(UnsupportedModel, match="causal"):
        load_model(arch("gemma3"), options)


def test_a_decoder_loaded_for_embeddings_gives_what_its_head_would_get() -> None:
    """The reference's states after the final norm, of the last four tokens."""
    with model(arch("llama"), n_ctx=256, cache_type="f32", embeddings=True) as loaded:
        (rows,) = hidden_rows(loaded, oracle("llama", "prompt_ids").astype(np.int32))
        assert loaded.readout().pooling is Pooling.NONE
    assert np.abs(rows[-4:] - oracle("llama", "act_result_norm")).max() < TOLERANCE


def test_a_model_computes_embeddings_or_logits_and_says_which() -> None:
    with model(arch("bert"), n_ctx=256) as encoder, model(arch("llama"), n_ctx=256) as decoder:
        assert (encoder.runner.n_embd, decoder.runner.n_embd) == (64, 0)
        run = LinearSequence(encoder.runner, 256).run(prompt(3, 200))
        with pytest.raises(UnsupportedModel, match="embeddings, not logits"):
            encoder.runner.step([run])
        with pytest.raises(UnsupportedModel, match="not loaded for embeddings"):
            decoder.runner.embed([run])


def test_a_context_beyond_learned_positions_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="256 positions"):
        load_model(arch("bert"), ModelOptions(n_ctx=257))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.slow
def test_minilm_gives_the_references_ids_and_embeddings() -> None:
    reference = json.loads(shared("models/real/all-minilm-l6-v2-f16.json").read_text())
    with model(minilm_path(), n_ctx=512) as loaded:
        readout = loaded.readout()
        for case in reference["embeddings"]:
            ids = loaded.tokenizer.encode(case["text"], add_special=True)
            assert ids == case["ids"]
            (rows,) = hidden_rows(loaded, np.array(ids, np.int32))
            vector = normalise(readout(rows))[0]
            assert cosine(vector, np.array(case["embedding"])) > 0.9999


@pytest.mark.slow
def test_smollm2s_pooled_states_follow_the_reference() -> None:
    reference = json.loads(shared("models/real/smollm2-mean-last-pooling.json").read_text())
    with model(smollm2_path(), n_ctx=512, embeddings=True) as loaded:
        for case in reference["sentences"]:
            assert loaded.tokenizer.encode(case["text"], add_special=True) == case["ids"]
            (rows,) = hidden_rows(loaded, np.array(case["ids"], np.int32))
            for pooling in (Pooling.MEAN, Pooling.LAST):
                assert cosine(loaded.readout(pooling)(rows)[0], np.array(case[pooling])) > 0.999
