"""The notify protocol: what a service manager hears."""

import os
import socket
from pathlib import Path

import pytest

from daemon.systemd import Notifier
from tests.daemon.harness import RunningDaemon


@pytest.fixture
def manager(tmp_path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(str(tmp_path / "notify"))
    sock.settimeout(60)
    return sock


def heard(manager: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())


def test_without_a_manager_nothing_is_sent() -> None:
    Notifier({}).send(READY="1")


def test_a_manager_that_is_gone_is_no_error(tmp_path: Path) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).send(READY="1")


def test_state_is_one_datagram_of_lines(manager: socket.socket) -> None:
    Notifier({"NOTIFY_SOCKET": manager.getsockname()}).send(READY="1", STATUS="serving")
    assert heard(manager) == {"READY": "1", "STATUS": "serving"}


def test_abstract_addresses_are_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0emberd-test-{os.getpid()}")
        sock.settimeout(60)
        Notifier({"NOTIFY_SOCKET": f"@emberd-test-{os.getpid()}"}).send(READY="1")
        assert sock.recv(100) == b"READY=1"


def test_the_watchdog_is_ours_only_when_it_names_us() -> None:
    mine = {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    assert Notifier(mine).watchdog_seconds == 3.0
    assert Notifier(mine | {"WATCHDOG_PID": "1"}).watchdog_seconds == 0.0
    assert Notifier({"WATCHDOG_USEC": "junk"}).watchdog_seconds == 0.0


def test_a_daemon_tells_its_manager_that_it_is_ready_alive_and_stopping(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "300000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    with RunningDaemon():
        states = [heard(manager)]
        while "WATCHDOG" not in states[-1]:
            states.append(heard(manager))
        assert any(state.get("READY") == "1" for state in states)
    while "STOPPING" not in states[-1]:
        states.append(heard(manager))
    assert states[-1]["STATUS"] in ("finishing answers", "stopped")


def test_the_watchdog_starves_when_the_engine_stands_still(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "150000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    with RunningDaemon() as daemon:
        daemon.engine.gate.clear()
        with daemon.client.stream("POST", "/completion", json={"prompt": "a", "stream": True}):
            manager.settimeout(0.6)
            with pytest.raises(TimeoutError):
                while True:
                    heard(manager)
            daemon.engine.gate.set()
