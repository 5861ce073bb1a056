"""A forgotten conversation leaves no byte in the store's file, and what others share of it stays."""

from pathlib import Path
from typing import Any

import numpy as np

from daemon.cli import main as emberd
from store import Store
from store.chain import encode_tokens
from store.environment import Txn
from tests.daemon.process import EmberdProcess
from tests.runtime.evaluation import DATA

LLAMA = DATA / "archs" / "llama.gguf"
RNG = np.random.default_rng(5)
SYSTEM, MINE, OTHERS, SECRET = (RNG.integers(3, 250, n).tolist() for n in (600, 400, 400, 400))


def serve(state: Path) -> EmberdProcess:
    return EmberdProcess(LLAMA, "--store-path", str(state), "-c", "8192")


def ask(daemon: EmberdProcess, prompt: list[int], **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 4, "temperature": 0, "return_tokens": True, **fields}
    return daemon.client.post("/completion", json=body).raise_for_status().json()


def chat(daemon: EmberdProcess, *texts: str, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    body = {"messages": messages, "max_tokens": 8, "temperature": 1.5, **fields}
    return daemon.client.post("/v1/chat/completions", json=body).raise_for_status().json()


def forget(daemon: EmberdProcess, **body: Any) -> dict[str, Any]:
    return daemon.client.post("/store/forget", json=body).raise_for_status().json()


def traces(state: Path, prompt: list[int]) -> list[bytes]:
    """What betrays the end of a stored prompt: some of its last tokens, keys and values."""
    with Store.open(state, read_only=True) as store:
        environment = store.environment

        def read(txn: Txn) -> tuple[bytes, list[bytes]]:
            elements = encode_tokens(np.array(prompt[-60:-40]))
            (block,) = (
                bytes(key) for key, value in txn.cursor(db=environment.idx) if elements in bytes(value)
            )
            parts = [bytes(v) for key, v in txn.cursor(db=environment.dat) if block in bytes(key)]
            return elements, parts

        elements, parts = environment.read(read)
    # the rows of the first tokens of a block may be padding or another's; those of its middle are its own
    return [elements, *(part[len(part) // 2 :][:48] for part in parts)]


def found(state: Path, needles: list[bytes]) -> list[bool]:
    data = (state / "store" / "data.mdb").read_bytes()
    return [needle in data for needle in needles]


def test_no_byte_of_a_forgotten_prompt_remains_after_compact(tmp_path: Path) -> None:
    with serve(tmp_path) as daemon:
        ask(daemon, SYSTEM + MINE)
        others = ask(daemon, SYSTEM + OTHERS)
        assert daemon.terminate() == 0
    mine, theirs = traces(tmp_path, SYSTEM + MINE), traces(tmp_path, SYSTEM + OTHERS)
    assert len(mine) > 1 and all(found(tmp_path, mine)) and all(found(tmp_path, theirs))
    with serve(tmp_path) as daemon:
        assert ask(daemon, SYSTEM + MINE)["timings"]["cache_n"] == len(SYSTEM + MINE) - 1
        gone = forget(daemon, prompt=SYSTEM + MINE)
        assert gone["n_blocks"] >= 2 and gone["n_blocks_ram"] >= 2 and gone["n_bytes"] > 0
        assert forget(daemon, prompt=SYSTEM + MINE) == {"n_blocks_ram": 0, "n_blocks": 0, "n_bytes": 0}
        kept = ask(daemon, SYSTEM + OTHERS, store=False)
        assert kept["timings"]["cache_n"] == len(SYSTEM + OTHERS) - 1
        assert kept["tokens"] == others["tokens"]
        again = ask(daemon, SYSTEM + MINE, store=False)
        assert again["timings"]["cache_n"] == len(SYSTEM)
        assert daemon.terminate() == 0
    assert emberd(["store", "compact", "--store-path", str(tmp_path)]) == 0
    assert not any(found(tmp_path, mine))
    assert all(found(tmp_path, theirs))


def test_a_request_that_is_not_to_be_stored_never_reaches_the_file(tmp_path: Path) -> None:
    """The same text is stored elsewhere to know what its state looks like."""
    with serve(tmp_path / "a") as daemon:
        first = ask(daemon, SYSTEM + SECRET)
        assert daemon.terminate() == 0
    secret = traces(tmp_path / "a", SYSTEM + SECRET)
    with serve(tmp_path / "b") as daemon:
        ask(daemon, SYSTEM + OTHERS)
        answer = ask(daemon, SYSTEM + SECRET, store=False)
        assert answer["tokens"] == first["tokens"]
        assert ask(daemon, SYSTEM + SECRET + answer["tokens"], store=False)["timings"]["cache_n"] >= 1000
        assert daemon.terminate() == 0
    assert not any(found(tmp_path / "b", secret))


def test_all_answers_and_turns_of_a_conversation_are_forgotten_by_its_first_message(tmp_path: Path) -> None:
    """Also those that no later request repeated, and a second question asked before an answer came."""
    question, other = "tell me a long and strange secret " * 20, "tell me something else, please " * 20
    with serve(tmp_path) as daemon:
        one, two = (chat(daemon, question, seed=seed)["choices"][0]["message"]["content"] for seed in (1, 2))
        assert one != two
        chat(daemon, question, one, "go on")
        chat(daemon, question + "\n\n" + "are you there?")
        chat(daemon, other)
        client = daemon.client
        before = client.get("/store").json()["n_blocks"]
        messages = [{"role": "user", "content": question}]
        assert forget(daemon, messages=messages)["n_blocks"] >= 4
        assert 0 < client.get("/store").json()["n_blocks"] < before
        assert chat(daemon, question, store=False)["timings"]["cache_n"] < 32
        assert chat(daemon, other)["timings"]["cache_n"] > 256


def test_a_named_save_keeps_what_it_holds(tmp_path: Path) -> None:
    with serve(tmp_path) as daemon:
        answer = ask(daemon, MINE, id_slot=0)
        save = daemon.client.post("/slots/0", params={"action": "save"}, json={"filename": "mine"})
        n_saved = save.raise_for_status().json()["n_saved"]
        forget(daemon, prompt=MINE)
        back = daemon.client.post("/slots/1", params={"action": "restore"}, json={"filename": "mine"})
        assert back.raise_for_status().json()["n_restored"] == n_saved
        assert ask(daemon, MINE, id_slot=1)["tokens"] == answer["tokens"]


def test_what_would_forget_everything_is_refused(tmp_path: Path) -> None:
    with serve(tmp_path) as daemon:
        for body in ({}, {"prompt": ""}, {"prompt": []}, {"messages": []}, {"prompt": "a", "messages": []}):
            answer = daemon.client.post("/store/forget", json=body)
            assert answer.status_code == 400, (body, answer.text)
