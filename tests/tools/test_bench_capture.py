"""`emberd bench --capture`: every kind of memory in one table."""

import argparse
import json

import pytest

from runtime.memory.tail import StateLayout, TailLayout
from tools import bench, bench_capture


@pytest.fixture(autouse=True)
def few_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    small = bench_capture.Case("states, small", TailLayout(StateLayout("bench", 5000)), 8192)
    monkeypatch.setattr(bench_capture, "CASES", (small, bench_capture.CASES[2]))
    monkeypatch.setattr(bench_capture, "ROUNDS", 3)


def run(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args(flags))


def test_a_row_per_kind_has_bytes_medians_and_maxima(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--capture", "-o", "json") == 0
    states, rings = json.loads(capsys.readouterr().out)
    assert states["n_bytes"] == 5000
    assert rings["n_bytes"] == 127 * 43 * 1024 + 4 * 21 * 2 * 4 * (1024 + 256)
    for row in (states, rings):
        for work in ("capture", "load", "copy", "prepare"):
            assert 0 < row[f"{work}_ms"] <= row[f"{work}_max_ms"]


def test_the_table_has_the_ratios_to_a_plain_copy(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--capture") == 0
    head, rule, *rows = capsys.readouterr().out.strip().splitlines()
    assert len(rows) == 2 and "load / copy" in head
    assert {line.count("|") for line in (head, rule, *rows)} == {head.count("|")}
    cells = rows[1].split("|")
    capture, copy, ratio = (float(cells[i]) for i in (3, 7, 9))
    assert ratio == pytest.approx(capture / copy, rel=0.1)


def test_a_model_and_no_model_exclude_each_other() -> None:
    with pytest.raises(SystemExit):
        run("--capture", "--random", "mamba2")
