"""Models with a tail in the engine: what is resumed from a point has the bits of what was read in one go."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from runtime.engine import Embedded, EmbedRequest, Engine, EngineConfig
from runtime.engine.resume import CheckpointPolicy
from runtime.evaluate import LinearSequence
from runtime.memory.layout import MemoryLayout
from runtime.model import LoadedModel
from runtime.pooling import Pooling
from runtime.readout import Readout
from runtime.runner import Run
from tests.runtime.engine.fakes import FakeTokenizer, Inbox
from tests.runtime.engine.harness import Bench, join
from tests.runtime.evaluation import all_logits, arch, hidden_rows, model
from tests.shared_data import shared

KINDS = ("deepseek4", "mamba", "mamba2", "rwkv7", "lfm2", "qwen35", "kimi-linear", "falcon-h1")
N = 600


class Endless(FakeTokenizer):
    """No token ends an answer."""

    eog_ids: frozenset[int] = frozenset()


class Spy:
    """A runner that remembers the logits of each run, by the tokens' count behind them."""

    n_embd = 0

    def __init__(self, loaded: LoadedModel) -> None:
        self._runner = loaded.runner
        self.n_vocab, self.n_ubatch = loaded.runner.n_vocab, loaded.runner.n_ubatch
        self.layout: MemoryLayout = loaded.runner.layout
        self.clear_rows = loaded.runner.clear_rows
        self.seen: list[tuple[int, npt.NDArray[np.float32]]] = []
        self.n_read = 0

    def step(self, runs: list[Run]) -> npt.NDArray[np.float32]:
        logits = self._runner.step(runs)
        wanted = [run for run in runs if run.logits == "last"]
        self.seen += [
            (run.start + len(run.tokens), row.copy()) for run, row in zip(wanted, logits, strict=True)
        ]
        self.n_read += sum(len(run.tokens) for run in runs)
        return logits


@pytest.fixture(params=KINDS, scope="module")
def loaded(request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    with model(file_of(request.param), n_ctx=1024, max_runs=2, n_ubatch=128) as made:
        yield made


def file_of(kind: str) -> Path:
    return shared("models/dsv4/dsv4-tiny-a-f32.gguf") if kind == "deepseek4" else arch(kind)


def bench(loaded: LoadedModel) -> tuple[Bench, Spy]:
    spy = Spy(loaded)
    policy = CheckpointPolicy(interval=64)
    made = Bench(runner=spy, tokenizer=Endless(), n_ctx=1024, n_blocks=40, checkpoints=policy)
    return made, spy


def prompt(loaded: LoadedModel, n: int = N, seed: int = 0) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, loaded.runner.n_vocab, n).astype(np.int32)


def test_resumed_anywhere_from_ram_the_logits_are_the_same(loaded: LoadedModel) -> None:
    made, spy = bench(loaded)
    tokens = prompt(loaded)
    expected = all_logits(loaded, tokens)
    made.ask(tokens, 0)
    for i, n in enumerate(np.random.default_rng(1).integers(70, N, 10).tolist()):
        spy.seen.clear()
        result = made.ask(tokens[:n], 0, id_slot=i % 2)
        assert n - 64 - 5 <= result.n_cached < n, result.reason
        ((end, logits),) = spy.seen
        assert end == n
        assert np.array_equal(logits, expected[n - 1]), n
        point = made.core.slots[i % 2].sequence.point_here()
        assert point is not None
        assert np.array_equal(point.logits, expected[n - 1])
    made.check_references()


def test_an_identical_prompt_is_answered_from_kept_logits(loaded: LoadedModel) -> None:
    made, spy = bench(loaded)
    tokens = prompt(loaded, 200)
    first = made.ask(tokens, 8)
    n_read = spy.n_read
    second = made.ask(tokens, 8, id_slot=1)
    assert (second.ids, second.n_cached) == (first.ids, 200)
    assert spy.n_read - n_read == 7


def test_a_rollback_of_one_of_two_leaves_the_others_logits(loaded: LoadedModel) -> None:
    made, spy = bench(loaded)
    shared = prompt(loaded, 300)
    mine, other = join(shared, prompt(loaded, 9, 1)), join(shared, prompt(loaded, 20, 2))
    for each in (mine, other):
        made.ask(each, 2)
    going_on = made.submit(other, 60, id_slot=1)
    for _ in range(10):
        made.turn()
    edited = join(mine[:250], prompt(loaded, 30, 3))
    spy.seen.clear()
    back = made.ask(edited, 12, id_slot=0)
    assert 180 <= back.n_cached <= 250
    for request, answer in ((other, made.result(going_on).ids), (edited, back.ids)):
        whole = join(request, answer)
        expected = all_logits(loaded, whole)
        of_this = [n for n, row in spy.seen if n <= len(whole) and np.array_equal(row, expected[n - 1])]
        assert set(of_this) >= set(range(len(whole) - 10, len(whole)))
        assert answer == [int(expected[n].argmax()) for n in range(len(request) - 1, len(whole) - 1)]
    made.check_references()


def test_a_capture_of_what_was_loaded_is_equal(loaded: LoadedModel) -> None:
    tokens = prompt(loaded, 300)
    source = LinearSequence(loaded.runner, 1024)
    for n in (1, 16, 127, 128, 300):
        list(source.evaluate(tokens[source.n_tokens : n], logits="none"))
        point = source.capture()
        other = LinearSequence(loaded.runner, 1024)
        other.load(point, source)
        again = other.capture()
        assert [p.tobytes() for p in again.parts] == [p.tobytes() for p in point.parts]
        assert point.n_bytes == loaded.runner.layout.tail.captured_bytes(n)


@pytest.mark.parametrize("kind", ["mamba2", "lfm2"])
def test_embeddings_of_one_request_do_not_see_the_tails_of_another(kind: str) -> None:
    with model(file_of(kind), n_ctx=256, max_runs=2, n_ubatch=64, embeddings=True) as loaded:
        prompts = [prompt(loaded, n, n) for n in (20, 9, 30, 20)]
        readout = Readout(Pooling.NONE, loaded.runner.n_embd, Pooling.NONE)
        inbox = Inbox()
        engine = Engine(loaded.runner, loaded.tokenizer, EngineConfig(2, 256, 4), inbox.deliver)
        engine.start()
        for i in range(2):
            engine.submit(EmbedRequest(i, tuple(prompts), readout))
        answers = [inbox.wait(i, Embedded) for i in range(2)]
        engine.close()
        for tokens, *vectors in zip(prompts, *(answer.vectors for answer in answers), strict=True):
            (alone,) = hidden_rows(loaded, tokens)
            assert all(np.array_equal(readout(alone), vector) for vector in vectors)


@pytest.mark.parametrize("chunks", [(), (1,), (5, 3, 128)])
def test_what_another_sequence_left_in_memory_is_never_read(
    loaded: LoadedModel, chunks: tuple[int, ...]
) -> None:
    """Rings are not cleared for the next who has them, states not for who writes them: here they hold NaN."""
    tokens = prompt(loaded, 300)
    expected = all_logits(loaded, tokens)
    sequence = LinearSequence(loaded.runner, 512)
    tail = sequence._tail
    assert tail is not None
    tail.reserve(1)
    for buffer in (tail._rings, tail._spare):
        if buffer is not None:
            buffer.bytes[:] = 0xFF
    at = 0
    for logits in sequence.evaluate(tokens, chunks):
        assert np.array_equal(logits, expected[at : at + len(logits)])
        at += len(logits)
    assert at == len(tokens)
