"""SIGKILL during mixed traffic: nothing acknowledged is lost, no answer is ever another than a cold one.

`EMBERD_TEST_KILLS` sets how often (5 unless it does).
"""

import itertools
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from store import Store
from tests.daemon.harness import until
from tests.daemon.process import EmberdProcess
from tests.runtime.evaluation import DATA

LLAMA = DATA / "archs" / "llama.gguf"
N_KILLS = int(os.environ.get("EMBERD_TEST_KILLS", "5"))
N_SLOTS, SAVER_SLOT = 4, 3
KEPT_SAVES = 4


@cache
def prompt(seed: int, length: int) -> tuple[int, ...]:
    """Three families, each with a beginning of 300 tokens in common."""
    stem = np.random.default_rng(seed % 3).integers(3, 250, 300)
    own = np.random.default_rng(1000 + seed).integers(3, 250, 1200)
    return tuple(int(token) for token in np.concatenate([stem, own])[:length])


def complete(url: str, ids: tuple[int, ...], **fields: Any) -> dict[str, Any]:
    body = {"prompt": list(ids), "n_predict": 5, "temperature": 0, "return_tokens": True, **fields}
    return httpx.post(f"{url}/completion", json=body, timeout=60).raise_for_status().json()


@dataclass(frozen=True, slots=True)
class Save:
    """A prompt that was saved together with its answer, `n_tokens` in all."""

    ids: tuple[int, ...]
    n_tokens: int


class Control:
    """What a daemon that remembers nothing answers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._known: dict[tuple[int, ...], list[int]] = {}
        self._lock = threading.Lock()

    def check(self, ids: tuple[int, ...], answer: dict[str, Any]) -> None:
        with self._lock:
            if ids not in self._known:
                self._known[ids] = complete(self._url, ids, cache_prompt=False)["tokens"]
            assert answer["tokens"] == self._known[ids], f"a wrong token after {len(ids)} tokens"


class Traffic:
    """Clients of one daemon, until it is killed. What was acknowledged is in `saves` and `deleted`.

    Saves in `doomed` were to be deleted; whether they are is not known without an answer.
    """

    def __init__(self, url: str, control: Control, seed: int, saves: dict[str, Save]) -> None:
        self.saves = saves
        self.deleted: set[str] = set()
        self.doomed: set[str] = set()
        self.n_answers = 0
        self.n_refused = 0
        self.failures: list[BaseException] = []
        self._url, self._control = url, control
        self._names = (f"{seed}-{n}" for n in itertools.count())
        self._threads = [
            threading.Thread(target=self._until_gone, args=(work, random.Random(seed * 10 + i)))
            for i, work in enumerate((self._ask, self._ask, self._save))
        ]
        for thread in self._threads:
            thread.start()

    def has_begun(self) -> bool:
        return self.n_answers >= 2 or bool(self.failures)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        if self.failures:
            raise self.failures[0]

    def _until_gone(self, work: Any, rng: random.Random) -> None:
        try:
            while True:
                work(rng)
        except httpx.TransportError:
            return
        except BaseException as error:
            self.failures.append(error)

    def _ask(self, rng: random.Random) -> None:
        ids = prompt(rng.randrange(40), rng.choice((500, 900, 1300)))
        fields = {"id_slot": rng.randrange(SAVER_SLOT), "store": rng.random() < 0.9}
        self._control.check(ids, complete(self._url, ids, **fields))
        self.n_answers += 1

    def _save(self, rng: random.Random) -> None:
        ids = prompt(rng.randrange(40), rng.choice((400, 700, 1100)))
        self._control.check(ids, complete(self._url, ids, id_slot=SAVER_SLOT))
        name = next(self._names)
        slot = f"{self._url}/slots/{SAVER_SLOT}?action=save"
        answer = httpx.post(slot, json={"filename": name}, timeout=60)
        if answer.status_code == 501 and "budget" in answer.text:
            self.n_refused += 1
            return
        self.saves[name] = Save(ids, answer.raise_for_status().json()["n_saved"])
        if len(self.saves) > KEPT_SAVES:
            oldest = next(iter(self.saves))
            self.doomed.add(oldest)
            httpx.post(f"{self._url}/delete_prompt", json={"filename": oldest}, timeout=60).raise_for_status()
            del self.saves[oldest]
            self.deleted.add(oldest)


def check_saves(url: str, control: Control, traffic: Traffic) -> None:
    listed = {save["filename"] for save in httpx.get(f"{url}/list").raise_for_status().json()}
    assert not traffic.deleted & listed, "a deleted save came back"
    for name, save in list(traffic.saves.items()):
        if name in traffic.doomed and name not in listed:
            del traffic.saves[name]
            continue
        assert name in listed, f"the acknowledged save {name} is gone"
        restore = httpx.post(f"{url}/slots/0?action=restore", json={"filename": name}, timeout=60)
        assert restore.raise_for_status().json()["n_restored"] == save.n_tokens >= len(save.ids)
        answer = complete(url, save.ids, id_slot=0)
        assert answer["timings"]["cache_n"] == len(save.ids) - 1
        control.check(save.ids, answer)


@pytest.fixture(scope="module")
def control() -> Iterator[Control]:
    with EmberdProcess(LLAMA, "--store", "off", "-c", "8192") as daemon:
        yield Control(daemon.url)


@pytest.mark.slow
def test_killed_in_the_middle_of_everything(tmp_path: Path, control: Control) -> None:
    rng = random.Random(0)
    flags = ["--store-path", str(tmp_path), "--store-budget", "6M", "-np", str(N_SLOTS), "-c", "8192"]
    saves: dict[str, Save] = {}
    traffic: Traffic | None = None
    n_answers = n_acknowledged = n_refused = n_evicted = 0
    for n in range(N_KILLS):
        with EmberdProcess(LLAMA, *flags) as daemon:
            if traffic is not None:
                assert "rebuilt" not in "".join(daemon.log), "a kill made a repair necessary"
                check_saves(daemon.url, control, traffic)
            traffic = Traffic(daemon.url, control, n, saves)
            time.sleep(rng.uniform(0.5, 3))
            until(traffic.has_begun)
            statistics = daemon.client.get("/store").json()
            n_evicted += statistics["evicted"]
            daemon.process.kill()
            traffic.join()
        n_answers += traffic.n_answers
        n_acknowledged += len(saves)
        n_refused += traffic.n_refused
    assert traffic is not None
    with EmberdProcess(LLAMA, *flags) as daemon:
        check_saves(daemon.url, control, traffic)
        daemon.process.kill()
    with Store.open(tmp_path) as store:
        assert store.administration.verify(deep=True).problems == ()
    assert n_refused <= n_acknowledged / 10, "saves are refused for lack of room"
    assert n_answers > N_KILLS and n_acknowledged and n_evicted, "the traffic tests nothing"
