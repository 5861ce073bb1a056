"""DeepSeek V4 against llama.cpp's logits, and against itself wherever a sequence is cut or resumed."""

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime.errors import ModelError, UnsupportedModel
from runtime.evaluate import LinearSequence
from runtime.gguf import open_model
from runtime.memory.points import Point
from runtime.model import LoadedModel, ModelOptions, load_model
from tests.runtime.evaluation import Logits, all_logits, model
from tests.shared_data import shared

TOLERANCE = 1e-3
N_CTX = 512
Tokens = np.ndarray


def dsv4(name: str) -> Path:
    return shared(f"models/dsv4/dsv4-tiny-{name}")


def oracle(name: str) -> dict[str, np.ndarray]:
    return dict(np.load(dsv4(f"{name}.npz")))


@pytest.fixture(scope="module")
def tiny() -> Iterator[LoadedModel]:
    with model(dsv4("a-f32.gguf"), n_ctx=N_CTX, cache_type="f32", max_runs=3) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def long() -> dict[str, np.ndarray]:
    return oracle("a-f32.long")


def feed(sequence: LinearSequence, tokens: Tokens, chunks: tuple[int, ...] = ()) -> Logits:
    return np.concatenate([step.copy() for step in sequence.evaluate(tokens, chunks)])


@pytest.mark.parametrize("kind", ["short", "long"])
def test_prompt_logits_and_greedy_continuation_equal_the_reference(tiny: LoadedModel, kind: str) -> None:
    """The long one crosses the window, 80 blocks of 4, two of 128, and more rows than the index picks."""
    o = oracle(f"a-f32.{kind}")
    n = len(o["tokens"])
    logits = all_logits(tiny, np.concatenate([o["tokens"], o["greedy_tokens"]]))
    assert np.abs(logits[:n] - o["logits"]).max() < TOLERANCE
    assert np.abs(logits[n:] - o["greedy_logits"]).max() < TOLERANCE
    assert logits[n - 1 : -1].argmax(1).tolist() == o["greedy_tokens"].tolist()


@pytest.mark.parametrize("kind", ["short", "long"])
def test_quantised_weights_stay_within_what_quantised_activations_cost(kind: str) -> None:
    """llama.cpp, which quantises them too, is as far from the exact logits."""
    o = oracle(f"a-q8_0.{kind}")
    with model(dsv4("a-q8_0.gguf"), n_ctx=N_CTX, cache_type="f32") as loaded:
        logits = all_logits(loaded, o["tokens"])
    assert np.abs(logits - o["logits"]).max() < 0.6
    assert np.abs(logits - o["logits_exact"]).max() < 0.6


def test_two_sequences_at_different_speeds_give_the_logits_of_each_alone(tiny: LoadedModel) -> None:
    o = oracle("a-f32.multi")
    tokens = o["tokens_a"], o["tokens_b"]
    sequences = [LinearSequence(tiny.runner, N_CTX) for _ in tokens]
    got: tuple[list[Logits], list[Logits]] = [], []
    for sizes in [(60, 60), (33, 70), (57, 0), (0, 20), *[(1, 1)] * 20]:
        parts = [
            (out, sequence, ids[sequence.n_tokens : sequence.n_tokens + n])
            for out, sequence, ids, n in zip(got, sequences, tokens, sizes, strict=True)
            if n
        ]
        logits = tiny.runner.step([sequence.run(ids, "all") for _, sequence, ids in parts]).copy()
        at = 0
        for out, _, ids in parts:
            out.append(logits[at : at + len(ids)])
            at += len(ids)
    for out, ids, name in zip(got, tokens, "ab", strict=True):
        logits = np.concatenate(out)
        assert np.abs(logits - o[f"logits_{name}"]).max() < TOLERANCE
        assert np.array_equal(logits, all_logits(tiny, ids))


def test_after_a_rollback_logits_are_those_of_a_fresh_run(tiny: LoadedModel) -> None:
    o = oracle("a-f32.rollback")
    base, points = o["base"], o["points"].tolist()
    sequence = LinearSequence(tiny.runner, N_CTX)
    captured, last = {}, {}
    for n, end in zip([0, *points], [*points, len(base)], strict=True):
        last[end] = feed(sequence, base[n:end])[-1:]
        captured[end] = sequence.capture()
    for n in points:
        sequence.load(captured[n], sequence)
        got = np.concatenate([last[n], feed(sequence, o[f"alt_{n}"])])
        assert np.abs(got - o[f"logits_{n}"]).max() < TOLERANCE, n
        fresh = all_logits(tiny, np.concatenate([base[:n], o[f"alt_{n}"]]))
        assert np.array_equal(got, fresh[n - 1 :]), n
        # what follows the point was overwritten: the base's own rows again, for the next one
        sequence.load(captured[n], sequence)
        feed(sequence, base[n:])


@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8_0"])
def test_logits_have_the_same_bits_in_every_schedule(cache_type: str, long: dict[str, np.ndarray]) -> None:
    tokens, expected = long["tokens"], None
    for n_threads in (1, 2, 3):
        with model(dsv4("a-f32.gguf"), n_ctx=N_CTX, cache_type=cache_type, n_threads=n_threads) as loaded:
            for chunk in (512, 64, 7, 1) if n_threads == 2 else (64, 11):
                logits = all_logits(loaded, tokens, (chunk,))
                expected = logits if expected is None else expected
                assert np.array_equal(logits, expected), (n_threads, chunk)


@pytest.mark.parametrize("name", ["a-f32", "a-q8_0"])
def test_weights_that_stay_in_the_file_give_the_same_bits(name: str, long: dict[str, np.ndarray]) -> None:
    results = []
    for repack in (True, False):
        with model(dsv4(f"{name}.gguf"), n_ctx=N_CTX, repack=repack) as loaded:
            results.append(all_logits(loaded, long["tokens"][:150]))
    assert np.array_equal(*results)


def stops(tiny: LoadedModel, tokens: Tokens, last: int) -> tuple[LinearSequence, list[Point]]:
    """A sequence fed token by token to the end, and the point at each n up to `last`."""
    sequence = LinearSequence(tiny.runner, N_CTX)
    points = []
    for i in range(len(tokens)):
        feed(sequence, tokens[i : i + 1])
        if i < last:
            points.append(sequence.capture())
    return sequence, points


def test_a_sequence_resumes_at_every_token_with_the_same_bits(
    tiny: LoadedModel, long: dict[str, np.ndarray]
) -> None:
    """From what was captured there, in another sequence's memory, when the first has long gone on."""
    tokens = long["tokens"]
    expected = all_logits(tiny, tokens)
    first, points = stops(tiny, tokens, 300)
    other = LinearSequence(tiny.runner, N_CTX)
    for point in points:
        n = point.n_tokens
        end = len(tokens) if n % 50 == 0 else n + 9
        other.load(point, first)
        assert np.array_equal(feed(other, tokens[n:end]), expected[n:end]), n


def test_what_is_loaded_and_captured_again_has_the_same_bytes_however_it_came_about(
    tiny: LoadedModel, long: dict[str, np.ndarray]
) -> None:
    tokens = long["tokens"]
    first, points = stops(tiny, tokens, 300)
    other = LinearSequence(tiny.runner, N_CTX)
    for point in points:
        other.load(point, first)
        assert same_bytes(other.capture(), point), point.n_tokens
    chunked = LinearSequence(tiny.runner, N_CTX)
    for start in range(0, 300, 60):
        feed(chunked, tokens[start : start + 60])
        assert same_bytes(chunked.capture(), points[start + 59])


def same_bytes(a: Point, b: Point) -> bool:
    return len(a.parts) == len(b.parts) and all(map(np.array_equal, a.parts, b.parts))


def test_one_sequence_going_back_leaves_the_other_as_it_was(
    tiny: LoadedModel, long: dict[str, np.ndarray]
) -> None:
    tokens, others = long["tokens"], long["tokens"][::-1].copy()
    expected, expected_other = all_logits(tiny, tokens), all_logits(tiny, others)
    mine, other = LinearSequence(tiny.runner, N_CTX), LinearSequence(tiny.runner, N_CTX)
    feed(mine, tokens[:130])
    point = mine.capture()
    for at in range(0, 150, 50):
        tiny.runner.step(
            [mine.run(tokens[130 + at : 180 + at], "none"), other.run(others[at : at + 50], "none")]
        )
    mine.load(point, mine)
    logits = tiny.runner.step([mine.run(tokens[130:170], "all"), other.run(others[150:190], "all")]).copy()
    assert np.array_equal(logits[:40], expected[130:170])
    assert np.array_equal(logits[40:], expected_other[150:190])
    assert np.array_equal(feed(other, others[190:]), expected_other[190:])


def test_a_few_tokens_are_dropped_without_a_point_and_with_the_same_bits(
    tiny: LoadedModel, long: dict[str, np.ndarray]
) -> None:
    """Rings keep more rows than going on needs, as many as the largest step."""
    tokens = long["tokens"]
    expected = all_logits(tiny, tokens)
    sequence = LinearSequence(tiny.runner, N_CTX)
    feed(sequence, tokens[:300])
    for n in (299, 297, 255, 128, 100):
        sequence.truncate(n)
        assert np.array_equal(feed(sequence, tokens[n : n + 20]), expected[n : n + 20]), n


def test_what_no_position_has_decided_is_zero_when_rows_are_lent(
    tiny: LoadedModel, long: dict[str, np.ndarray]
) -> None:
    """After a rollback rows of what was given up lie there; compressed ones stand for several positions."""
    tokens, n = long["tokens"], 145
    long_gone, fresh = LinearSequence(tiny.runner, N_CTX), LinearSequence(tiny.runner, N_CTX)
    feed(long_gone, tokens)
    feed(fresh, tokens[:n])
    blocks = [tuple(int(table[0]) for table in sequence.tables) for sequence in (long_gone, fresh)]
    for addresses in blocks:
        tiny.runner.clear_rows(addresses, n, 256)
    for group, *addresses in zip(tiny.runner.layout.groups, *blocks, strict=True):
        old, new = (memory(address, group.segment_bytes(n)) for address in addresses)
        assert np.array_equal(old, new), group.name
        assert new.any()


def memory(address: int, n_bytes: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(address))


def test_the_activations_round_trips_are_off_and_when_on_the_same_in_every_schedule(
    tiny: LoadedModel, long: dict[str, np.ndarray]
) -> None:
    tokens = long["tokens"][:150]
    options = ModelOptions(
        n_ctx=N_CTX, max_outputs=512, key_type="f32", value_type="f32",
        overrides=["deepseek4.activation_round_trips=bool:true"],
    )  # fmt: skip
    loaded = load_model(dsv4("a-f32.gguf"), options)
    try:
        logits = all_logits(loaded, tokens)
        assert loaded.identity != tiny.identity
        assert np.abs(logits - all_logits(tiny, tokens)).max() > 0.01
        assert all(np.array_equal(all_logits(loaded, tokens, (chunk,)), logits) for chunk in (1, 7, 64))
    finally:
        loaded.close()


def test_a_file_with_a_block_for_further_tokens_gives_the_same_logits() -> None:
    o = oracle("a-mtp-f32.mtp")
    with model(dsv4("a-mtp-f32.gguf"), n_ctx=N_CTX, cache_type="f32") as loaded:
        assert np.abs(all_logits(loaded, o["tokens"]) - o["logits"]).max() < TOLERANCE


def test_the_block_for_further_tokens_gives_the_reference_s_logits_in_every_schedule() -> None:
    o = oracle("a-mtp-f32.mtp")
    options = ModelOptions(n_ctx=N_CTX, max_outputs=512, key_type="f32", value_type="f32", draft=True)
    loaded = load_model(dsv4("a-mtp-f32.gguf"), options)
    try:
        logits = all_logits(loaded, o["tokens"])
        assert np.abs(logits - o["mtp_logits"]).max() < TOLERANCE
        for chunk in (1, 7, 64):
            assert np.array_equal(all_logits(loaded, o["tokens"], (chunk,)), logits), chunk
    finally:
        loaded.close()


def test_a_file_without_that_block_drafts_nothing() -> None:
    with pytest.raises(UnsupportedModel, match="has no block that predicts a further token"):
        load_model(dsv4("a-f32.gguf"), ModelOptions(n_ctx=N_CTX, draft=True))


@pytest.mark.parametrize("draft", [False, True])
def test_its_ops_touch_what_they_may_and_checking_changes_no_bit(
    draft: bool, long: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for checked in "10":
        monkeypatch.setenv("EMBERD_CHECKED", checked)
        options = ModelOptions(n_ctx=N_CTX, n_ubatch=40, max_runs=1, max_outputs=40, draft=draft)
        loaded = load_model(dsv4("a-mtp-f32.gguf"), options)
        results.append(all_logits(loaded, long["tokens"][:150], (40, 9, 1)))
        loaded.close()
    assert np.array_equal(*results)


def test_texts_become_the_reference_s_tokens_and_greedy_answers(tiny: LoadedModel) -> None:
    for case in json.loads(dsv4("a-f32.text.json").read_text())["cases"]:
        ids = case["tokens_without_bos"]
        assert tiny.tokenizer.encode(case["text"], add_special=False, parse_special=True) == ids
        answer = case["greedy_after_bos_plus_tokens"]
        logits = all_logits(tiny, np.array([0, *ids, *answer[:-1]], np.int32))
        assert logits[len(ids) :].argmax(1).tolist() == answer


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("attention.head_count_kv=int:2", "2 rows of 32 keys"),
        ("attention.value_length=int:16", "32 keys and 16 values"),
        ("attention.output_group_count=int:3", "4 heads in 3 groups"),
        ("attention.output_lora_rank=int:2147483632", "attn_output_a.weight has shape"),
        ("attention.sliding_window=int:0", "sliding_window is 0"),
        ("attention.indexer.key_length=int:8", "an index of 8 values"),
        ("attention.indexer.top_k=int:0", "top_k"),
        ("expert_gating_func=int:2", "expert_gating_func is 2, not 4"),
        ("expert_used_count=int:9", "expert selection"),
        ("expert_shared_count=int:0", "expert_shared_count"),
        ("hyper_connection.count=int:2", "2 residual streams"),
        ("hyper_connection.sinkhorn_iterations=int:0", "sinkhorn_iterations"),
        ("hyper_connection.sinkhorn_iterations=int:1000000000", "sinkhorn_iterations"),
        ("block_count=int:7", "compress_ratios has 6 elements for 7 blocks"),
        ("rope.dimension_count=int:34", "rope.dimension_count is 34"),
        ("attention.compress_rope_freq_base=float:0", "compress_rope_freq_base"),
        ("attention.compress_ratios=int:4", "compress_ratios"),
        ("hash_layer_count=int:3", "blk.2.ffn_gate_tid2eid.weight is missing"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_in_one_line(override: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        load_model(dsv4("a-f32.gguf"), ModelOptions(n_ctx=N_CTX, overrides=[f"deepseek4.{override}"])).close()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ([0, 4, 128, 4, 0, 128], [0, 4, 64, 4, 0, 128], "64 is none of 0, 4 and 128"),
        ([0, 4, 128, 4, 0, 128], [0, 4, 128, 4, 0, -1], "-1 is none of"),
    ],
)
def test_a_ratio_that_no_layer_has_is_refused(
    old: list[int], new: list[int], message: str, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.gguf"
    data = dsv4("a-f32.gguf").read_bytes()
    before, after = (np.array(values, np.int32).tobytes() for values in (old, new))
    assert data.count(before) == 1
    damaged.write_bytes(data.replace(before, after))
    with pytest.raises(ModelError, match=message):
        load_model(damaged, ModelOptions(n_ctx=N_CTX)).close()


@pytest.mark.parametrize("expert", [8, -1])
def test_a_table_that_names_an_expert_there_is_not_is_refused(expert: int, tmp_path: Path) -> None:
    source = dsv4("a-f32.gguf")
    file = open_model(source)
    table = file.tensor_bytes("blk.1.ffn_gate_tid2eid.weight").tobytes()
    damaged = tmp_path / "damaged.gguf"
    data = source.read_bytes()
    assert data.count(table) == 1
    damaged.write_bytes(data.replace(table, table[:-4] + np.int32(expert).tobytes()))
    with pytest.raises(ModelError, match=r"ffn_gate_tid2eid\.weight has numbers outside of 0 to 7"):
        load_model(damaged, ModelOptions(n_ctx=N_CTX)).close()
