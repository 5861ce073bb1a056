"""Slots saved, restored, listed, renamed, deleted over HTTP; --slot-save-path files travel between stores."""

from pathlib import Path

import numpy as np
import pytest

from tests.daemon.process import EmberdProcess
from tests.runtime.evaluation import DATA

LLAMA, OTHER = DATA / "archs" / "llama.gguf", DATA / "archs" / "llama-bias.gguf"
PROMPT = np.random.default_rng(0).integers(0, 250, 700).tolist()


def ask(daemon: EmberdProcess, id_slot: int) -> dict:
    body = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "id_slot": id_slot, "cache_prompt": True}
    return daemon.client.post("/completion", json=body).raise_for_status().json()


def act(daemon: EmberdProcess, id_slot: int, action: str, name: str):
    return daemon.client.post(f"/slots/{id_slot}", params={"action": action}, json={"filename": name})


def test_a_save_survives_the_store_it_was_made_in(tmp_path: Path) -> None:
    """A file of --slot-save-path is found by a daemon whose store has never seen the prompt."""
    files = ["--slot-save-path", str(tmp_path / "files"), "-c", "4096"]
    with EmberdProcess(LLAMA, "--store-path", str(tmp_path / "a"), "--metrics", *files) as daemon:
        first = ask(daemon, 0)
        saved = act(daemon, 0, "save", "talk.bin").raise_for_status().json()
        assert saved["n_saved"] == len(PROMPT) + 7
        assert (tmp_path / "files" / "talk.bin").stat().st_size > saved["n_written"] // 2
        assert "emberd:store_save_seconds_count 1.0" in daemon.client.get("/metrics").text.splitlines()
        assert daemon.client.get("/store").json()["saves"] == 1
        assert daemon.terminate() == 0
    with EmberdProcess(LLAMA, "--store-path", str(tmp_path / "b"), *files) as daemon:
        restored = act(daemon, 1, "restore", "talk.bin").raise_for_status().json()
        assert restored["n_restored"] == saved["n_saved"]
        again = ask(daemon, 1)
    assert again["timings"]["cache_n"] == len(PROMPT) - 1
    assert again["content"] == first["content"]


def test_a_save_whose_file_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "files" / "taken").mkdir(parents=True)
    files = ["--slot-save-path", str(tmp_path / "files"), "-c", "4096"]
    with EmberdProcess(LLAMA, "--store-path", str(tmp_path / "a"), *files) as daemon:
        ask(daemon, 0)
        act(daemon, 0, "save", "free").raise_for_status()
        failed = act(daemon, 0, "save", "taken")
    assert failed.status_code == 500
    assert "Is a directory" in failed.json()["error"]["message"]


def test_saved_prompts_are_listed_renamed_and_deleted(tmp_path: Path) -> None:
    with EmberdProcess(LLAMA, "--store-path", str(tmp_path), "-c", "4096") as daemon:
        client = daemon.client
        ask(daemon, 0)
        act(daemon, 0, "save", "one").raise_for_status()
        act(daemon, 0, "save", "two").raise_for_status()
        (one, _) = client.get("/list").raise_for_status().json()
        assert (one["filename"], one["token_count"]) == ("one", len(PROMPT) + 7)
        text = client.post("/detokenize", json={"tokens": PROMPT}).json()["content"]
        assert one["prompt"].startswith(text)

        def rename(old: str, new: str):
            return client.post("/rename_prompt", json={"old_filename": old, "new_filename": new})

        assert rename("one", "two").status_code == 409
        assert rename("nothing", "three").status_code == 404
        assert rename("one", "../up").json() == {"error": "Invalid filename format."}
        assert rename("one", "three").json() == {
            "status": "renamed", "old_filename": "one", "new_filename": "three",
        }  # fmt: skip
        assert client.post("/delete_prompt", json={"filename": "two"}).json()["status"] == "deleted"
        assert client.post("/delete_prompt", json={"filename": "two"}).status_code == 404
        assert client.post("/delete_prompt", content=b"{").json() == {"error": "Invalid JSON request body."}
        assert [save["filename"] for save in client.get("/list").json()] == ["three"]


def test_a_refused_restore_leaves_the_slot_as_it_was(tmp_path: Path) -> None:
    """Unknown names are 404; a save of another model is 409 and names what differs."""
    with EmberdProcess(LLAMA, "--store-path", str(tmp_path), "-c", "4096") as daemon:
        ask(daemon, 0)
        act(daemon, 0, "save", "mine").raise_for_status()
        daemon.terminate()
    with EmberdProcess(OTHER, "--store-path", str(tmp_path), "-c", "4096") as daemon:
        cold = ask(daemon, 2)
        assert act(daemon, 2, "restore", "nothing").status_code == 404
        foreign = act(daemon, 2, "restore", "mine")
        assert foreign.status_code == 409
        assert "weights" in foreign.json()["error"]["message"]
        warm = ask(daemon, 2)
    assert warm["timings"]["cache_n"] == len(PROMPT) - 1
    assert warm["content"] == cold["content"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "x.", " x", "a\x00b", "n" * 256])
def test_names_that_are_paths_or_worse_are_refused(name: str, tmp_path: Path) -> None:
    from daemon.routes.slots import is_valid_name

    assert not is_valid_name(name)
