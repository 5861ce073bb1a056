"""What users of other servers complained about, tried on this one over HTTP: see docs/complaints.md."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store import Store
from store.environment import Txn
from tests.daemon.process import EmberdProcess
from tests.runtime.evaluation import DATA

LLAMA = DATA / "archs" / "llama.gguf"


def prompt(seed: int, length: int = 700) -> list[int]:
    return np.random.default_rng(seed).integers(3, 250, length).tolist()


def serve(state: Path, *flags: str) -> EmberdProcess:
    return EmberdProcess(LLAMA, "--store-path", str(state), "-c", "8192", *flags)


def ask(daemon: EmberdProcess, ids: list[int], **fields: Any) -> dict[str, Any]:
    body = {"prompt": ids, "n_predict": 6, "temperature": 0, "return_tokens": True, **fields}
    return daemon.client.post("/completion", json=body).raise_for_status().json()


def act(daemon: EmberdProcess, id_slot: int, action: str, name: str) -> Any:
    return daemon.client.post(f"/slots/{id_slot}", params={"action": action}, json={"filename": name})


def damage_all_data(state: Path) -> int:
    """Flip a byte in each stored part; how many there were."""
    with Store.open(state, read_only=True) as store:
        environment = store.environment

        def parts(txn: Txn) -> list[bytes]:
            return [bytes(value) for _, value in txn.cursor(db=environment.dat)]

        stored = environment.read(parts)
    file = state / "store" / "data.mdb"
    data = bytearray(file.read_bytes())
    for part in stored:
        at = data.find(part)
        assert at >= 0
        data[at + len(part) // 2] ^= 1
    file.write_bytes(data)
    return len(stored)


def test_a_damaged_save_is_refused_and_the_next_answer_is_a_cold_one(tmp_path: Path) -> None:
    with serve(tmp_path) as daemon:
        cold = ask(daemon, prompt(1), id_slot=0)
        act(daemon, 0, "save", "mine").raise_for_status()
        assert daemon.terminate() == 0
    assert damage_all_data(tmp_path) > 2
    with serve(tmp_path) as daemon:
        other = ask(daemon, prompt(2), id_slot=0)
        refused = act(daemon, 0, "restore", "mine")
        assert refused.status_code == 400
        assert "damaged" in refused.json()["error"]["message"]
        kept = ask(daemon, prompt(2), id_slot=0)
        assert kept["timings"]["cache_n"] == len(prompt(2)) - 1 and kept["tokens"] == other["tokens"]
        assert ask(daemon, prompt(1), id_slot=0)["tokens"] == cold["tokens"]
        assert daemon.client.get("/store").json()["quarantined"] > 0


def test_an_empty_slot_cannot_be_saved_and_says_so(tmp_path: Path) -> None:
    with serve(tmp_path) as daemon:
        ask(daemon, prompt(1), id_slot=1)
        act(daemon, 1, "save", "identified").raise_for_status()
        empty = act(daemon, 0, "save", "nothing")
        assert empty.status_code == 400 and "empty" in empty.json()["error"]["message"]
        assert [save["filename"] for save in daemon.client.get("/list").json()] == ["identified"]


@pytest.mark.slow
def test_two_conversations_are_both_found_after_a_restart(tmp_path: Path) -> None:
    with serve(tmp_path) as daemon:
        answers = [ask(daemon, prompt(seed), id_slot=0) for seed in (1, 2)]
        assert daemon.terminate() == 0
    with serve(tmp_path) as daemon:
        again = [ask(daemon, prompt(seed), id_slot=0) for seed in (1, 2)]
    assert [answer["timings"]["cache_n"] for answer in again] == [699, 699]
    assert [answer["tokens"] for answer in again] == [answer["tokens"] for answer in answers]


@pytest.mark.slow
def test_slots_context_and_threads_may_change_without_losing_what_is_stored(tmp_path: Path) -> None:
    with serve(tmp_path, "-np", "4", "-t", "2") as daemon:
        first = ask(daemon, prompt(1))
        assert daemon.terminate() == 0
    with serve(tmp_path, "-np", "1", "-t", "1", "-c", "2048", "-b", "64", "-ub", "64") as daemon:
        again = ask(daemon, prompt(1))
    assert again["timings"]["cache_n"] == 699 and again["timings"]["cache_source"] == "store"
    assert again["tokens"] == first["tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-ctk", "f32"), ("--override-kv", "llama.rope.freq_base=float:5000")])
def test_what_changes_stored_bytes_is_never_mixed(tmp_path: Path, flags: tuple[str, str]) -> None:
    with serve(tmp_path) as daemon:
        ask(daemon, prompt(1), id_slot=0)
        act(daemon, 0, "save", "mine").raise_for_status()
        assert daemon.terminate() == 0
    with serve(tmp_path, *flags) as daemon:
        answer = ask(daemon, prompt(1), id_slot=0)
        assert answer["timings"]["cache_n"] == 0
        foreign = act(daemon, 0, "restore", "mine")
        assert foreign.status_code == 409 and foreign.json()["error"]["field"]


@pytest.mark.slow
def test_text_that_comes_back_in_other_tokens_is_reused_up_to_where_it_differs(tmp_path: Path) -> None:
    with serve(tmp_path) as daemon:
        answer = ask(daemon, prompt(1))
        said = prompt(1) + answer["tokens"]
        retold = [*said[:-3], *prompt(9, 40)]
        again = ask(daemon, retold)
        common = next(i for i, (a, b) in enumerate(zip(said, retold, strict=False)) if a != b)
        assert again["timings"]["cache_n"] == common
        assert again["tokens"] == ask(daemon, retold, cache_prompt=False)["tokens"]
