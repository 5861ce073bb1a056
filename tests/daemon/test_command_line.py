"""Starts that cannot be: each has one reason, told in one line."""

import os
import socket
import subprocess
import sys

import pytest

import daemon as daemon_package
from daemon.cli import main
from daemon.config import build_config
from daemon.serve import StartFailed, run


def command(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "daemon.cli", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environ},
        check=False,
    )


def test_a_busy_port_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        done = command("-m", "any.gguf", "--port", str(port), "--store", "off")
    assert done.returncode == 1
    assert done.stderr == f"emberd: cannot listen on 127.0.0.1 port {port}: Address already in use\n"


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--path", "/no/such/dir"], "--path: /no/such/dir is not a directory"),
        (["--api-key-file", "/no/such/file"], "/no/such/file"),
        (["--log-file", "/no/such/dir/file"], "--log-file"),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        (["--ssl-key-file", "/no/key", "--ssl-cert-file", "/no/cert"], "No such file"),
    ],
)
def test_a_start_that_cannot_be_has_one_reason(argv: list[str], part: str) -> None:
    config, _ = build_config(["-m", "x", "--port", "0", "--store", "off", "--log-disable", *argv], {})
    with pytest.raises(StartFailed) as caught:
        run(config, ())
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--zzz"], "emberd: unknown flag --zzz\n"),
        (["serve"], "emberd: no model: give one with -m FILE (emberd fetch smollm2 gets a small one)\n"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 1
    assert capsys.readouterr().err == message


def test_a_missing_model_is_told_in_one_line() -> None:
    done = command("-m", "/no/such/model.gguf", "--port", "0", "--store", "off", "--log-disable")
    assert done.returncode == 1
    assert done.stderr.startswith("emberd: /no/such/model.gguf") and done.stderr.count("\n") == 1


def test_help_and_version_need_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "--ctx-size" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("emberd ")


def test_another_packages_daemon_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(daemon_package, "DISTRIBUTION", "python-daemon")
    assert main(["--version"]) == 1
    assert "give emberd its own environment" in capsys.readouterr().err
