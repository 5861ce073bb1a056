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


def run(folder: Path) -> tuple[int, set[Path]]:
    """Cache misses of a process that keeps its kernels in `folder`, and the files there afterwards."""
    env = {**os.environ, "EMBERD_KERNEL_CACHE": str(folder)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout), set(folder.rglob("*.nbc"))


@pytest.mark.slow
def test_a_second_process_finds_every_kernel_in_the_cache(tmp_path: Path) -> None:
    misses, files = run(tmp_path)
    assert misses > 0 and files
    assert run(tmp_path) == (0, files)


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
