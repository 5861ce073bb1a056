"""Starts that cannot be: each has one reason, told in one line."""

import os
import socket
import subprocess
import sys

import pytest

import daemon as daemon_package
from daemon import cli
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


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["inspekt", "x.gguf"], "emberd: unknown command inspekt, did you mean inspect?\n"),
        (["serv"], "emberd: unknown command serv, did you mean serve?\n"),
        (["x.gguf"], "emberd: unexpected argument 'x.gguf' (the model is given with -m)\n"),
        (
            ["--store", "off"],
            "emberd: no model: give one with -m FILE (emberd fetch smollm2 gets a small one)\n",
        ),
        (["inspect", "/no/model"], "emberd: /no/model: No such file or directory\n"),
        (
            ["logits", "-m", "x", "--tokens", "/no/ids", "-o", "y"],
            "emberd: /no/ids: No such file or directory\n",
        ),
        (
            ["-m", "x", "--log-file", "/no/dir/x"],
            "emberd: --log-file: /no/dir/x: No such file or directory\n",
        ),
    ],
)
def test_what_is_wrong_is_told_without_pythons_notation(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # serving ends its process, whatever threads are left
    monkeypatch.setattr(os, "_exit", lambda status: None)
    main(argv)
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["bench", "-m", "x", "-p", "abc"], "argument -p/--n-prompt: expected an integer, got 'abc'"),
        (["bench", "-m", "x", "-p", "5,-1"], "expected a value between 0 and 2147483647, got '-1'"),
        (["bench", "-m", "x", "-r", "0"], "argument -r/--repetitions: expected a value between 1"),
        (
            ["logits", "-m", "x", "--tokens", "y", "-o", "z", "-t", "0"],
            "argument -t/--threads: expected a value",
        ),
        (
            ["perplexity", "-m", "x", "-f", "y", "-c", "1"],
            "argument -c/--ctx-size: expected a value between 2",
        ),
        (["inspect", "x", "-c", "99999999999"], "argument -c/--ctx-size: expected a value between 1"),
    ],
)
def test_numbers_that_a_tool_cannot_use_are_wrong_usage(
    argv: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert part in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["-m", "x"], ["inspect", "x"]])
def test_a_key_pressed_before_anything_began_leaves_no_trace(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_foreign_package", interrupted)
    assert main(argv) == 130
    assert capsys.readouterr().err == ""


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
