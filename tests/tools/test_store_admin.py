"""`emberd store`: what an operator sees and changes, beside a running daemon where nothing is changed."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.gguf import open_model
from runtime.tokenizers import load_tokenizer
from store import Store
from tests.models import smollm2_path
from tests.store import kv
from tools import store_admin


def run(*words: object) -> int:
    parser = argparse.ArgumentParser()
    store_admin.add_arguments(parser)
    return store_admin.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A closed store with one save of 700 tokens and another prompt."""
    with kv.open_store(tmp_path) as store:
        root = store.register(kv.FINGERPRINT)
        kv.write(store, root, kv.tokens((1, 700)))
        store.save_manifest("mine", root, kv.tokens((1, 700)), note="hello")
        kv.write(store, root, kv.tokens((1, 300), (2, 300)))
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert run(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_ls_lists_saves(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (save,) = answer(capsys, "ls", "--store-path", state)
    assert (save["name"], save["n_tokens"], save["note"]) == ("mine", 700, "hello")
    assert run("ls", "--store-path", state) == 0
    assert "mine" in capsys.readouterr().out


def test_show_tells_what_a_save_was_made_with(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save = answer(capsys, "show", "mine", "--store-path", state)
    assert save["tokens"] == kv.tokens((1, 700)).tolist()
    assert save["n_restorable"] == 700
    assert save["made_with"]["numerics"] == "dense/1"


def test_reading_verbs_work_beside_a_running_daemon(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second environment on one file is refused within a process, so the owner here is another one."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None and owner.stdin is not None
        assert owner.stdout.readline() == "open\n"
        for words in (("ls",), ("show", "mine"), ("stats",), ("verify", "--deep"), ("doctor",)):
            assert run(*words, "--store-path", state) == 0
        capsys.readouterr()
        for words in (("prune", "--to", "0"), ("forget", "mine"), ("compact",), ("repair",)):
            assert run(*words, "--store-path", state) == 75
            told = capsys.readouterr().err
            assert f"is in use by process {owner.pid}" in told and told.count("\n") == 1
        owner.stdin.close()


OWNER = """
import sys
from pathlib import Path
from runtime.gguf import open_model
from runtime.tokenizers import load_tokenizer
from store import Store
from tests.models import smollm2_path
with Store.open(Path(sys.argv[1])):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_export_and_import_move_a_save(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    assert answer(capsys, "export", "mine", file, "--store-path", state)["n_bytes"] == file.stat().st_size
    assert answer(capsys, "import", file, "--name", "new", "--store-path", other)["name"] == "new"
    assert answer(capsys, "verify", "--deep", "--store-path", other)["problems"] == []


def test_prune_and_compact_shrink_the_store(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = answer(capsys, "stats", "--store-path", state)
    assert answer(capsys, "prune", "--to", "1K", "--store-path", state)["n_evicted"] == 2
    sizes = answer(capsys, "compact", "--store-path", state)
    assert sizes["bytes_after"] < sizes["bytes_before"]
    after = answer(capsys, "stats", "--store-path", state)
    assert (after["n_blocks"], after["live_bytes"]) == (3, before["pinned_bytes"])


def test_prune_takes_what_is_old_or_of_one_model(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model,) = answer(capsys, "doctor", "--store-path", state)["models"]
    assert run("prune", "--store-path", state) == 1
    assert "needs --to, --unused or --fingerprint" in capsys.readouterr().err
    for words in (("--unused", "1h"), ("--fingerprint", "00" * 8), ("--to", "1G", "--unused", "0s")):
        assert answer(capsys, "prune", *words, "--store-path", state)["n_evicted"] == 0
    words = ("--fingerprint", model["id"][:16], "--unused", "0s")
    assert answer(capsys, "prune", *words, "--store-path", state)["n_evicted"] == 2
    assert answer(capsys, "verify", "--deep", "--store-path", state)["n_blocks"] == 3


@pytest.mark.parametrize("verb", ["prune --to 0", "forget --all", "compact", "ls", "doctor"])
def test_a_file_that_is_no_store_is_left_where_it_is(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "store" / "data.mdb"
    data.parent.mkdir()
    data.write_bytes(b"somebody else's" * 1000)
    assert run(*verb.split(), "--store-path", tmp_path) == 1
    assert "is not a store's data file" in capsys.readouterr().err
    assert list(data.parent.iterdir()) == [data]


def test_people_read_sizes_and_times_and_no_endless_values(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (("ls",), ("show", "mine"), ("stats",), ("doctor",)):
        assert run(*words, "--store-path", state) == 0
        told = capsys.readouterr().out
        assert all(len(line) < 250 for line in told.splitlines())
        assert "KiB" in told and "_ms" not in told


def test_forget_takes_a_save_a_prefix_or_everything(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(kv.tokens((1, 300), (2, 10)).tolist()))
    assert answer(capsys, "forget", "--tokens", ids, "--store-path", state)["saves"] == []
    with Store.open(state, read_only=True) as store:
        root = store.register(kv.FINGERPRINT)
        assert kv.restore(store, root, kv.tokens((1, 300), (2, 300))) == 300
        assert kv.restore(store, root, kv.tokens((1, 700))) == 700
    assert answer(capsys, "forget", "mine", "--store-path", state)["saves"] == ["mine"]
    assert answer(capsys, "forget", "--all", "--store-path", state)["n_blocks"] == 0
    assert answer(capsys, "stats", "--store-path", state)["n_blocks"] == 0


def test_verify_and_doctor_report_damage_and_repair_mends_it(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kv.open_store(state) as store:
        store.writer.order(lambda update: update.txn.drop(store.environment.lru, delete=False), 10)
    for verb in ("verify", "doctor"):
        assert run(verb, "--store-path", state) == 2
        assert "order of eviction" in capsys.readouterr().out
    assert answer(capsys, "repair", "--store-path", state) == {"n_lost": 0}
    assert run("verify", "--deep", "--store-path", state) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "nope"), "no save is named 'nope'"),
        (("show", "../x"), "must not contain '/'"),
        (("export", "mine", "/nowhere/file"), "No such file or directory"),
        (("import", "/etc/hostname"), "not an exported save"),
        (("forget", "nope"), "no save is named 'nope'"),
        (("forget", "--prefix", "text"), "needs -m MODEL"),
        (("forget", "--tokens", "/etc/hostname"), "not a JSON list"),
    ],
)
def test_mistakes_get_one_line(
    state: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert run(*words, "--store-path", state) == 1
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_a_folder_without_a_store_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (("ls",), ("prune", "--to", "0"), ("forget", "--all"), ("compact",), ("repair",)):
        assert run(*words, "--store-path", tmp_path) == 1
        assert "no store" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("text", "expected"), [("0", 0), ("500", 500), ("4G", 4 << 30), ("1.5MiB", 1572864)])
def test_sizes_have_units(text: str, expected: int) -> None:
    assert store_admin._size(text) == expected


@pytest.mark.parametrize(("text", "seconds"), [("0s", 0), ("12h", 43200), ("1.5d", 129600), ("2w", 1209600)])
def test_ages_have_units(text: str, seconds: float) -> None:
    assert store_admin._age(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "12", "-1d", "nand", "infd", "3y"])
def test_bad_ages_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        store_admin._age(text)


@pytest.mark.parametrize("text", ["", "12", "xyzxyzxyzxyzxyzx"])
def test_bad_ids_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        store_admin._id(text)


@pytest.mark.parametrize("text", ["", "G", "-1", "4X", "nan", "inf"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        store_admin._size(text)


def test_forget_by_text_uses_the_model_s_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = smollm2_path()
    with open_model(model) as file:
        tokenizer = load_tokenizer(file)
    secret, other = (
        np.array(tokenizer.encode(text * 80, add_special=False, parse_special=False), np.int32)
        for text in ("My secret is none of your business. ", "The weather is fine today. ")
    )
    with kv.open_store(tmp_path) as store:
        root = store.register(kv.FINGERPRINT)
        kv.write(store, root, secret)
        kv.write(store, root, other)
    words = ("forget", "--prefix", "My secret is", "-m", model, "--store-path", tmp_path)
    assert answer(capsys, *words)["n_blocks"] == -(-len(secret) // 256)
    with Store.open(tmp_path, read_only=True) as store:
        root = store.register(kv.FINGERPRINT)
        assert kv.restore(store, root, secret) == 0
        assert kv.restore(store, root, other) == len(other)
