"""The log: one line per completion, and nothing of what was said."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from daemon import progress
from daemon.config import build_config
from daemon.logs import configure_logs
from daemon.progress import LoadProgress
from daemon.systemd import Notifier
from tests.daemon.harness import RunningDaemon

SECRET = "the password is swordfish"


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_completion_is_one_line_without_its_text(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with RunningDaemon("--log-enable", "--log-format", "json", "--log-file", str(path)) as daemon:
        daemon.post("/completion", {"prompt": SECRET, "n_predict": 2})
        daemon.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 1}
        )
        daemon.error("/completion", {"prompt": SECRET, "temperature": SECRET}, 400)
    lines = [record for record in records(path) if record["event"] == "request"]
    assert [line["path"] for line in lines] == ["/completion", "/v1/chat/completions"]
    first = lines[0]
    assert (first["status"], first["predicted"], first["stop"], first["cache"]) == (200, 2, "limit", "none")
    assert {"id", "slot", "prompt", "cached", "why", "prompt_ms", "predicted_ms", "ms"} <= first.keys()
    assert "swordfish" not in path.read_text()


def test_an_unexpected_error_leaves_its_traceback(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with RunningDaemon("--log-enable", "--log-format", "json", "--log-file", str(path)) as daemon:
        daemon.engine.failure = ValueError("broken inside")
        daemon.error("/completion", {"prompt": "a"}, 500)
    (line,) = [record for record in records(path) if record["event"] == "request failed"]
    assert "broken inside" in str(line["exception"])


def test_what_clients_do_wrong_is_no_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with RunningDaemon("--log-enable", "--log-format", "json", "--log-file", str(path)) as daemon:
        daemon.error("/completion", {"prompt": [1] * 300}, 400)
        daemon.client.get("/nope")
    assert all(record["level"] in ("info", "debug") for record in records(path))


def test_people_get_lines_they_can_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with RunningDaemon("--log-enable", "--log-file", str(path)) as daemon:
        daemon.post("/completion", {"prompt": "a", "n_predict": 1})
    assert "path=/completion" in path.read_text() and "\x1b" not in path.read_text()


@pytest.mark.parametrize(("seconds", "shares"), [(0.05, []), (4.0, ["25%", "50%", "75%", "100%"])])
def test_a_start_tells_how_far_it_is_only_when_it_takes_its_time(
    seconds: float, shares: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    config, _ = build_config(["-m", "x", "--log-format", "json", "--log-file", str(path)], {})
    configure_logs(config)
    now = 0.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    with LoadProgress(Notifier(), quiet=True) as tell:
        for step in range(101):
            tell("load", step / 100)
            now += seconds / 25
    assert [record["done"] for record in records(path)] == shares
