"""`emberd bench --store` measures every target, and says which were met."""

import json
from pathlib import Path

import pytest

from daemon.cli import main as emberd
from tests.runtime.evaluation import DATA
from tools import bench_daemon, bench_store
from tools.bench_store import Row


def test_the_table_says_which_bars_were_met() -> None:
    head, _, fast, slow = bench_store._table(
        [Row("fast", 21, "x", 20, True), Row("slow", 120.4, "ms", 10, False)]
    )
    assert head.startswith("| measure | seen | bar |")
    assert fast == "| fast | 21 x | ≥ 20 x | met |  |"
    assert slow == "| slow | 120 ms | ≤ 10 ms | missed |  |"


def test_a_bar_is_a_floor_or_a_ceiling() -> None:
    assert Row("speed", 21, "x", 20, True).met and not Row("speed", 19, "x", 20, True).met
    assert Row("delay", 9, "ms", 10, False).met and not Row("delay", 11, "ms", 10, False).met


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which the figures mean nothing and the measuring is quick."""
    for module, name, value in (
        (bench_store, "N_TOKENS", 512),
        (bench_store, "LONG_PROMPT", 4096),
        (bench_store, "REPLACE_CYCLES", 3),
        (bench_store, "ROUNDS", 2),
        (bench_daemon, "ROUNDS", 2),
        (bench_daemon, "N_PROMPT", 512),
        (bench_daemon, "N_LONG", 512),
        (bench_daemon, "N_DECODE", 8),
        (bench_daemon, "N_PREFILL", 64),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_all_targets_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = DATA / "archs" / "llama.gguf"
    assert emberd(["bench", "--store", "-m", str(model), "--store-path", str(tmp_path), "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 13 and all(row["seen"] >= 0 and row["bar"] > 0 for row in rows)
    assert not list(tmp_path.iterdir()), "what was measured is left on the disk"


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_how_prompt_a_busy_daemon_is_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert emberd(["bench", "--daemon", "-m", str(DATA / "archs" / "llama.gguf"), "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["unit"] for row in rows] == ["ms", "ms", "ms", "µs"]
    assert all(row["seen"] > 0 for row in rows)
