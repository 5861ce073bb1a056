"""Whatever the bytes are, the answer is a model or one ModelError: no crash, no hang, no lot of memory."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import ModelError
from runtime.gguf import open_model
from tests.runtime.gguf.writer import tiny_model
from tests.shared_data import shared

TINY = tiny_model().bytes()
REAL_HEADERS = ("llama", "gemma3", "bert", "t5", "exaone4-swa")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "m.gguf"


def answers(path: Path) -> None:
    for lenient in (True, False):
        try:
            model = open_model(path, lenient=lenient)
        except ModelError as error:
            assert "\n" not in str(error)
        else:
            assert sum(len(model.tensor_bytes(name)) for name in model.tensors) == model.n_bytes


@given(data=st.data())
@settings(max_examples=400)
def test_any_bytes_in_any_place(scratch: Path, data: st.DataObject) -> None:
    changed = bytearray(TINY)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        width = data.draw(st.integers(0, 12))
        changed[at : at + width] = data.draw(st.binary(max_size=12))
    scratch.write_bytes(changed)
    answers(scratch)


@given(body=st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_behind_a_good_start(scratch: Path, body: bytes) -> None:
    scratch.write_bytes(TINY[:8] + body)
    answers(scratch)


def fuzz(n_files: int) -> None:
    models = [str(shared(f"models/archs/{name}.gguf")) for name in REAL_HEADERS]
    command = [sys.executable, "-m", "tests.runtime.gguf.fuzz", "--files", str(n_files), "--seed", "1"]
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([*command, *models], capture_output=True, text=True, cwd=root, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mutated_real_headers_are_answered() -> None:
    fuzz(400)


@pytest.mark.slow
def test_twenty_thousand_mutated_real_headers_are_answered() -> None:
    fuzz(20_000)
