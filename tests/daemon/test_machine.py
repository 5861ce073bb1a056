"""What a process may use, inside containers too."""

import os
from pathlib import Path

import pytest

from daemon.machine import available_memory, usable_cores


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.usefixtures("eight_cores")
def test_without_a_quota_the_affinity_mask_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 8
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == 8


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("quota", "cores"), [("250000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8), ("junk", 8)]
)
def test_a_quota_bounds_the_cores(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    assert usable_cores(tmp_path) == cores


@pytest.mark.usefixtures("eight_cores")
def test_the_older_cgroup_files_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("300000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert usable_cores(tmp_path) == 3
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert usable_cores(tmp_path) == 8


def test_a_memory_limit_bounds_what_is_available(tmp_path: Path) -> None:
    free = available_memory(tmp_path)
    assert free > 0
    (tmp_path / "memory.max").write_text("3000000")
    (tmp_path / "memory.current").write_text("1000000")
    assert available_memory(tmp_path) == 2_000_000
    (tmp_path / "memory.max").write_text("max")
    assert available_memory(tmp_path) > 2_000_000
