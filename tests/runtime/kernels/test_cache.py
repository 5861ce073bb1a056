"""Compiled kernels survive the process that compiled them, and no longer than their sources."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.kernels import cache

ROOT = Path(__file__).parents[3]

# every entry point of one type, and what plans always need
PROGRAM = """
import numpy as np
from runtime.kernels import quantise, select
from runtime.kernels.formats import FORMATS
from runtime.kernels.tape import program
from tests.runtime.kernels.harness import matmul, vectors
from runtime.kernels.dequant import EMBED, dequantise_rows

raw, rows = vectors("Q4_1")
matmul("Q4_1", raw, rows[:2])
dequantise_rows("Q4_1", raw, 768)
EMBED["Q4_1"].address
x = rows[0].ctypes.data
ids, values = np.zeros(4, np.int32), np.zeros(4, np.float32)
select.argmax(x, 768), select.log_sum_exp(x, 768)
select.top_k(x, 768, 4, ids.ctypes.data, values.ctypes.data)

module = FORMATS["Q4_1"].module
entries = [quantise.quantise, module.pack, module.decode, select.argmax, select.log_sum_exp, select.top_k]
misses = sum(sum(entry.stats.cache_misses.values()) for entry in entries)
misses += sum(not op.from_cache for op in (module.matmul, module.embed))
print(misses)
"""

# a model from opening its file to its first logits
MODEL = """
import sys
from pathlib import Path
import numpy as np
from numba.core import event
from runtime.evaluate import LinearSequence
from runtime.kernels.tape import Native
from runtime.model import ModelOptions, load_model

with event.install_recorder("numba:compile") as recorder:
    options = ModelOptions(n_ctx=256, repack=sys.argv[1] == "1")
    loaded = load_model(Path("tests/data/archs/llama.gguf"), options)
    n_loaded = len(recorder.buffer)
    list(LinearSequence(loaded.runner, 256).evaluate(np.arange(9, dtype=np.int32), (8, 1), "last"))
plan = loaded.runner._plan
ops = {*plan.ops, *(p for params in plan.tape for p in params if isinstance(p, Native))}
assert all(op.compiled for op in ops) and len(ops) > 8
assert len(recorder.buffer) == n_loaded, "the first step compiled something"
print(n_loaded + sum(not op.from_cache for op in ops))
"""


def run(folder: Path, program: str = PROGRAM, *args: str) -> tuple[int, set[Path]]:
    """Cache misses of a process that keeps its kernels in `folder`, and the files there afterwards."""
    env = {**os.environ, "EMBERD_KERNEL_CACHE": str(folder)}
    command = [sys.executable, "-c", program, *args]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout), set(folder.rglob("*.nbc"))


@pytest.mark.slow
def test_a_second_process_finds_every_kernel_in_the_cache(tmp_path: Path) -> None:
    misses, files = run(tmp_path)
    assert misses > 0 and files
    assert run(tmp_path) == (0, files)


@pytest.mark.slow
@pytest.mark.parametrize("repack", ["1", "0"])
def test_a_model_is_compiled_before_its_first_step_and_only_by_the_first_process(
    repack: str, tmp_path: Path
) -> None:
    misses, files = run(tmp_path, MODEL, repack)
    assert misses > 0 and files
    assert run(tmp_path, MODEL, repack) == (0, files)


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave numba's setting as this process found it."""
    monkeypatch.setattr("numba.config.CACHE_DIR", cache.numba.config.CACHE_DIR)


@pytest.mark.usefixtures("untouched")
def test_only_the_newest_versions_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERD_KERNEL_CACHE", str(tmp_path))
    for age in range(5):
        old = tmp_path / f"version{age}"
        old.mkdir()
        os.utime(old, (1_000_000 - age, 1_000_000 - age))
    current = cache.configure()
    assert {path.name for path in tmp_path.iterdir()} == {current.name, "version0", "version1"}
    assert cache.configure() == current


@pytest.mark.usefixtures("untouched")
def test_a_root_that_cannot_be_made_is_replaced_by_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EMBERD_KERNEL_CACHE", str(tmp_path / "file"))
    folder = cache.configure()
    assert folder.is_dir() and tmp_path not in folder.parents
    folder.rmdir()


def test_the_digest_follows_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels/quants").mkdir(parents=True)
    source = tmp_path / "kernels/quants/q.py"
    source.write_text("a = 1")
    monkeypatch.setattr(cache, "_RUNTIME", tmp_path)
    first = cache.source_digest()
    source.write_text("a = 2")
    second = cache.source_digest()
    (tmp_path / "team.py").write_text("")
    assert len({first, second, cache.source_digest()}) == 3
