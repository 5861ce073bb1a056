"""SIGKILL at any instant: what was acknowledged is there, nothing is wrong, nothing needs a repair."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store import Store
from tests.store import kv

WRITER = Path(__file__).with_name("crash_writer.py")
BUDGET = 6 << 20


def run_until_killed(folder: Path, seed: int, n_lines: int, delay: float) -> list[str]:
    """What a writing child acknowledged until it was killed, `delay` seconds after `n_lines` of it."""
    command = [sys.executable, str(WRITER), str(folder), str(seed), str(BUDGET)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        first = [child.stdout.readline() for _ in range(n_lines)]
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        acknowledged = "".join(first) + child.stdout.read()
    return acknowledged.split("\n")[:-1]


def check_after_kill(folder: Path, acknowledged: list[str]) -> None:
    with Store.open(folder, budget_bytes=BUDGET, min_free_bytes=0) as store:
        assert store.statistics().rebuilt == 0, "a kill made a repair necessary"
        assert store.administration.verify(deep=True).problems == ()
        root = store.register(kv.FINGERPRINT)
        names = {info.name for info in store.list_manifests()}
        deleted = {line.split()[1] for line in acknowledged if line.startswith("delete")}
        for line in acknowledged:
            verb, name = line.split()
            if verb == "save" and name not in deleted and name in names:
                prompt = kv.tokens((1, 300), (int(name), 400))
                assert kv.restore(store, root, prompt, 8) == 700, f"the acknowledged save {name} is not whole"
                assert kv.resume(store, root, prompt, 8) == 700, f"the save {name} has lost its point"
        last = [line.split()[1] for line in acknowledged if line.startswith("save")][-1:]
        assert set(last) <= names, "an acknowledged save is gone"
        assert deleted.isdisjoint(names), "a deleted save came back"


def kill_often(folder: Path, n_kills: int) -> None:
    rng = random.Random(0)
    n_saves = 0
    for n in range(n_kills):
        acknowledged = run_until_killed(folder, 1000 * (n + 1), rng.randrange(16), rng.uniform(0.0, 0.05))
        n_saves += sum(line.startswith("save") for line in acknowledged)
        check_after_kill(folder, acknowledged)
    assert n_saves > n_kills / 2, "the children hardly wrote anything: the test tests nothing"


def test_five_kills_lose_nothing_acknowledged(tmp_path: Path) -> None:
    kill_often(tmp_path, 5)


@pytest.mark.slow
def test_fifty_kills_lose_nothing_acknowledged(tmp_path: Path) -> None:
    kill_often(tmp_path, 50)


def test_a_kill_while_the_store_is_made_leaves_one_that_opens(tmp_path: Path) -> None:
    """Nothing, an empty file, and a file without a commit are all a new store."""
    directory = tmp_path / "store"
    directory.mkdir()
    (directory / "data.mdb").touch()
    with kv.open_store(tmp_path) as store:
        assert store.statistics().rebuilt == 0
        kv.write(store, store.register(kv.FINGERPRINT), kv.tokens((1, 300)))
