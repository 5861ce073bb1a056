"""What is taken up again at any token goes on with the bits of a cold run, `==`, for every kind of memory.

From RAM, from the store, after a SIGKILL and after a clean restart. What remembers is an engine in a process
of its own; the cold run is this process's, which has no store. `EMBERD_TEST_SEED` draws other positions.
"""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from runtime.engine import CacheSource
from runtime.evaluate import LinearSequence
from runtime.model import LoadedModel
from store import Store
from tests.daemon.engine_process import N_CTX, N_SLOTS, EngineProcess
from tests.daemon.engine_session import Answer
from tests.models import gemma3_path, smollm2_path
from tests.runtime.evaluation import arch, model
from tests.shared_data import shared

Tokens = npt.NDArray[np.int32]
RAM, STORE = CacheSource.RAM, CacheSource.STORE

SEED = os.environ.get("EMBERD_TEST_SEED", "0")
N_PREDICT = 3

LATENTS = ("deepseek2", "deepseek32", "glm-dsa", "deepseek4")
KINDS = (
    *("llama", "qwen3 q8_0", "smollm2"),  # rows of all positions
    *("gemma3", "gemma3-270m", "gpt-oss", "llama4"),  # of a window, of a chunk
    *("gemma3n", "gemma4"),  # shared by layers
    *("mamba", "mamba2", "rwkv7", "lfm2"),  # states, convolutions
    *("qwen35", "qwen3next", "kimi-linear"),  # states of the delta rule beside rows
    *("falcon-h1", "granitehybrid", "nemotron_h"),  # of state spaces beside rows
    *LATENTS,  # latents, with an index, compressed rows with rings
)
QUICK = ("gemma3", "lfm2")
REAL = {"smollm2": smollm2_path, "gemma3-270m": gemma3_path}


@dataclass(frozen=True)
class Case:
    """A model, a prompt, and the positions at which it is to be taken up."""

    path: Path
    cache_type: str
    cold: LoadedModel
    trunk: Tokens
    at: list[int]
    rng: random.Random

    def engine(self, store: Path, **room: int) -> EngineProcess:
        return EngineProcess(self.path, store, self.cache_type, **room)

    def draw(self, n_tokens: int) -> Tokens:
        return np.array(self.rng.choices(range(self.cold.runner.n_vocab), k=n_tokens), np.int32)

    def branch(self, trunk: Tokens, n: int, length: int) -> Tokens:
        """The first `n` tokens, then `length` of which the first is another."""
        other = self.draw(length)
        if n < len(trunk) and other[0] == trunk[n]:
            other[0] = (other[0] + 1) % self.cold.runner.n_vocab
        return np.concatenate([trunk[:n], other])

    def remember(self, engine: EngineProcess, trunk: Tokens) -> None:
        """Read it in parts that end at the positions: a model with a tail leaves a point at each."""
        for n in (*sorted(self.at), len(trunk)):
            engine.ask(trunk[:n], 0)

    def check(self, engine: EngineProcess, trunk: Tokens, n: int, source: CacheSource) -> None:
        """It goes on at `n`, computing what follows and nothing else, as if it had computed everything."""
        prompt = self.branch(trunk, n, self.rng.randint(1, 40))
        answer = engine.ask(prompt, N_PREDICT, self.rng.randrange(N_SLOTS))
        assert (answer.cache_n, answer.source) == (n, source), (n, answer.reason)
        assert answer.n_read == len(prompt) - n + N_PREDICT - 1
        self.check_bits(prompt, answer)

    def check_store(self, engine: EngineProcess, trunk: Tokens, at: list[int]) -> None:
        """At each position, with nothing in RAM."""
        for n in at:
            engine.forget()
            self.check(engine, trunk, n, STORE)

    def check_identical(self, engine: EngineProcess) -> None:
        """The whole prompt again, from the store: nothing is computed but its last token, where need be."""
        engine.forget()
        answer = engine.ask(self.trunk, N_PREDICT)
        has_logits = self.cold.runner.layout.tail is not None
        assert (answer.cache_n, answer.source) == (len(self.trunk) - 1 + has_logits, STORE), answer.reason
        self.check_bits(self.trunk, answer)

    def check_bits(self, prompt: Tokens, answer: Answer) -> None:
        """Against a sequence that reads all of it, in other chunks and on fewer threads than the engine."""
        sequence = LinearSequence(self.cold.runner, N_CTX)
        *_, last = (step.copy() for step in sequence.evaluate(prompt, logits="last"))
        following = np.array(answer.tokens[:-1], np.int32)
        rows = np.concatenate([last, *(step.copy() for step in sequence.evaluate(following, (1,)))])
        may_follow = np.setdiff1d(np.arange(self.cold.runner.n_vocab), list(self.cold.tokenizer.eog_ids))
        assert answer.tokens == may_follow[rows[:, may_follow].argmax(1)].tolist()
        computed = rows[answer.cache_n == len(prompt) :]
        assert np.array_equal(answer.logits, computed), (len(prompt), answer.cache_n)


@contextmanager
def case(kind: str) -> Iterator[Case]:
    """Ten drawn positions, of tiny models borders too; of latents twenty, of the first 300 tokens."""
    rng = random.Random(f"{SEED} {kind}")
    name, _, given = kind.partition(" ")
    path, cache_type = REAL[name]() if name in REAL else arch(name), given or "f16"
    with model(path, n_ctx=N_CTX, n_threads=1, n_ubatch=128, cache_type=cache_type) as cold:
        if kind == "deepseek4":
            trunk = np.load(shared("models/dsv4/dsv4-tiny-a-f32.long.npz"))["tokens"].astype(np.int32)
        else:
            n_trunk = 320 if kind in LATENTS else 700
            trunk = np.array(rng.choices(range(cold.runner.n_vocab), k=n_trunk), np.int32)
        n_drawn, end, borders = (20, 301, (127, 128)) if kind in LATENTS else (10, len(trunk), (511, 512))
        at = rng.sample(range(1, end), n_drawn)
        if name not in REAL:
            at += {1, 255, 256, 257, *borders}.difference(at)
        print(f"{kind}, EMBERD_TEST_SEED={SEED}: {at}")
        yield Case(path, cache_type, cold, trunk, at, rng)


def kinds() -> list[Any]:
    return [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]


@pytest.mark.parametrize("kind", kinds())
def test_it_goes_on_at_any_token_from_ram_from_the_store_after_a_kill_and_after_a_restart(
    kind: str, tmp_path: Path
) -> None:
    with case(kind) as c:
        with c.engine(tmp_path) as engine:
            c.remember(engine, c.trunk)
            for n in c.at:
                c.check(engine, c.trunk, n, RAM)
            c.check_store(engine, c.trunk, c.at)
            engine.flush()
            in_flight = [c.branch(c.trunk, n, c.rng.randint(100, 400)) for n in c.at[:10]]
            engine.keep_busy(in_flight, n_answers=c.rng.randint(1, 7))
            time.sleep(c.rng.uniform(0, 0.02))
            engine.kill()
        with c.engine(tmp_path) as engine:
            c.check_store(engine, c.trunk, c.at)
            for n, prompt in zip(c.at, in_flight, strict=False):
                answer = engine.ask(prompt, N_PREDICT)
                assert answer.cache_n >= n, "what was acknowledged is gone"
                c.check_bits(prompt, answer)
            other = c.draw(len(c.trunk))
            c.remember(engine, other)
        with c.engine(tmp_path) as engine:
            c.check_store(engine, c.trunk, c.at)
            c.check_store(engine, other, c.at[:3])
            c.check_identical(engine)
        with Store.open(tmp_path) as store:
            assert store.administration.verify(deep=True).problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("kind", LATENTS)
def test_it_goes_on_at_every_token_from_ram(kind: str, tmp_path: Path) -> None:
    with case(kind) as c, c.engine(tmp_path, max_points=400, n_blocks=1000) as engine:
        every = replace(c, at=list(range(1, 301)))
        every.remember(engine, c.trunk)
        for n in c.rng.sample(every.at, 300):
            every.check(engine, c.trunk, n, RAM)
