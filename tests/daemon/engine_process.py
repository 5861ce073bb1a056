"""A session in a process of its own, which can be stopped and killed."""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import trio

from runtime.engine import EngineConfig
from runtime.engine.resume import CheckpointPolicy
from runtime.model import LoadedModel
from tests.daemon.engine_session import PATIENCE_S, Answer, Session, session
from tests.runtime.evaluation import model

Tokens = npt.NDArray[np.int32]

N_CTX, N_SLOTS = 1024, 2


class EngineProcess:
    """Use as a context manager, whose end is a clean stop unless it was killed.

    Points are left at prompts' ends, and at intervals; `max_points` of a prefix stay. RAM has `n_blocks`.
    """

    def __init__(
        self, path: Path, store: Path, cache_type: str = "f16", max_points: int = 32, n_blocks: int = 128
    ) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe()
        policy = CheckpointPolicy(max_points, tolerance=0)
        config = EngineConfig(N_SLOTS, N_CTX, n_blocks, restore_seconds=PATIENCE_S, checkpoints=policy)
        self._process = spawning.Process(target=_serve, args=(theirs, path, store, cache_type, config))
        self._theirs = theirs

    def __enter__(self) -> Self:
        self._process.start()
        self._theirs.close()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.is_alive() and exc[0] is None:
            self._call("close")
            self._process.join(PATIENCE_S)
        self.kill()

    def ask(self, prompt: Tokens, n_predict: int, id_slot: int = -1) -> Answer:
        answer = self._call("ask", prompt, n_predict, id_slot)
        assert isinstance(answer, Answer)
        return answer

    def flush(self) -> None:
        """Wait until all that was offered to the store is committed."""
        self._call("flush")

    def forget(self) -> None:
        """Go on with an engine that has nothing in RAM."""
        self._call("forget")

    def keep_busy(self, prompts: Sequence[Tokens], n_answers: int) -> None:
        """Have the prompts answered by all slots at once; return when `n_answers` are."""
        self._pipe.send(("keep_busy", prompts))
        for _ in range(n_answers):
            self._receive()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _call(self, name: str, *arguments: Any) -> Any:
        self._pipe.send((name, *arguments))
        return self._receive()

    def _receive(self) -> Any:
        assert self._pipe.poll(PATIENCE_S), "the engine's process does not answer"
        return self._pipe.recv()


def _serve(pipe: Connection, path: Path, store: Path, cache_type: str, config: EngineConfig) -> None:
    with model(path, n_ctx=N_CTX, max_runs=N_SLOTS, n_ubatch=256, cache_type=cache_type) as loaded:
        trio.run(_converse, pipe, loaded, store, config)


async def _converse(pipe: Connection, loaded: LoadedModel, store: Path, config: EngineConfig) -> None:
    async with session(loaded, store, config) as s, trio.open_nursery() as nursery:
        while True:
            name, *arguments = await trio.to_thread.run_sync(pipe.recv)
            match name:
                case "ask":
                    pipe.send(await s.ask(*arguments))
                case "flush":
                    assert await trio.to_thread.run_sync(s.store.flush, PATIENCE_S)
                    pipe.send(name)
                case "forget":
                    await s.forget()
                    pipe.send(name)
                case "keep_busy":
                    prompts = list(*arguments)
                    for slot in range(config.n_slots):
                        nursery.start_soon(_answer, pipe, s, prompts, slot)
                case "close":
                    break
    pipe.send("close")


async def _answer(pipe: Connection, s: Session, prompts: list[Tokens], slot: int) -> None:
    while prompts:
        await s.complete(prompts.pop(0), 8, slot)
        pipe.send("answered")
