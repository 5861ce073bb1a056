"""-hf and -mu: the model comes from a hub while the port already answers."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.config import Config, build_config
from daemon.flags import UsageError
from daemon.loading import Prepared, Report
from daemon.model import served_name
from daemon.model_source import with_local_model
from tests.daemon.harness import MODEL, RunningDaemon, prepare_fake, until
from tests.tools.hub.local_hub import File, LocalHub
from tools.errors import FetchError

REPO = "user/tiny-GGUF"
COMMON = ("--port", "0", "--store", "off", "--log-disable")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalHub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "cache"))
    with LocalHub(repos={REPO: {"tiny-Q8_0.gguf": File(MODEL.read_bytes())}}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def sources(*argv: str, **environ: str) -> tuple[tuple[str, str, str, str], tuple[str, ...]]:
    config, warnings = build_config(argv, environ)
    return (config.model, config.hf_repo, config.hf_file, config.model_url), warnings


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        (["-m", "a"], {}, ("a", "", "", "")),
        (["-hf", "u/r:Q8_0"], {}, ("", "u/r:Q8_0", "", "")),
        (["-hfr", "u/r", "-hff", "f.gguf"], {}, ("", "u/r", "f.gguf", "")),
        (["-mu", "http://h/a.gguf"], {}, ("", "", "", "http://h/a.gguf")),
        ([], {"LLAMA_ARG_HF_REPO": "u/r", "LLAMA_ARG_HF_FILE": "f"}, ("", "u/r", "f", "")),
        ([], {"LLAMA_ARG_MODEL_URL": "http://h/a"}, ("", "", "", "http://h/a")),
    ],
)
def test_a_model_is_a_file_a_repository_or_a_url(
    argv: list[str], environ: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert sources(*argv, **environ) == (expected, ())


@pytest.mark.parametrize(
    ("argv", "environ", "expected", "ignored"),
    [
        (["-m", "a", "-hf", "u/r", "-hff", "f"], {}, ("a", "", "", ""), ["--hf-repo", "--hf-file"]),
        (["-hf", "u/r", "-mu", "http://h/a"], {}, ("", "u/r", "", ""), ["--model-url"]),
        (["-hf", "u/r"], {"LLAMA_ARG_MODEL": "a"}, ("", "u/r", "", ""), ["--model"]),
        (["-mu", "http://h/a"], {"LLAMA_ARG_HF_REPO": "u/r"}, ("", "", "", "http://h/a"), ["--hf-repo"]),
    ],
)
def test_of_two_models_the_one_on_the_command_line_is_served(
    argv: list[str], environ: dict[str, str], expected: tuple[str, ...], ignored: list[str]
) -> None:
    chosen, warnings = sources(*argv, **environ)
    assert chosen == expected
    assert [line.split()[0] for line in warnings] == ignored


def test_a_file_alone_is_no_model() -> None:
    with pytest.raises(UsageError, match="no model"):
        build_config(["-hff", "f.gguf"], {})


def test_the_repository_is_the_name_and_the_file_is_local(hub: LocalHub) -> None:
    steps: list[tuple[str, float]] = []
    config, _ = build_config(["-hf", REPO, *COMMON], {})
    found = with_local_model(config, lambda *step: steps.append(step))
    assert Path(found.model).read_bytes() == MODEL.read_bytes()
    assert served_name(found) == REPO
    assert steps[-1] == ("fetching tiny-Q8_0.gguf", 1.0)


def test_a_token_comes_from_the_flag_or_from_the_environment(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated.add(REPO)
    config, _ = build_config(["-hf", REPO, *COMMON], {})
    with pytest.raises(FetchError, match="set HF_TOKEN"):
        with_local_model(config, lambda *step: None)
    config, _ = build_config(["-hf", REPO, *COMMON], {"HF_TOKEN": hub.token})
    assert Path(with_local_model(config, lambda *step: None).model).is_file()


def test_offline_needs_no_hub(hub: LocalHub) -> None:
    url = hub.file_url(REPO, "tiny-Q8_0.gguf")
    config, _ = build_config(["-mu", url, *COMMON], {})
    path = with_local_model(config, lambda *step: None).model
    hub.seen.clear()
    config, _ = build_config(["-mu", url, "--offline", *COMMON], {})
    assert with_local_model(config, lambda *step: None).model == path
    assert not hub.seen


def test_while_the_model_is_fetched_the_port_answers_503(hub: LocalHub) -> None:
    gate = threading.Event()

    def hold() -> None:
        gate.wait(60)

    hub.on_body = hold
    fetched, _ = build_config(["-hf", REPO, *COMMON], {})

    def prepare_from_hub(config: Config, report: Report) -> Prepared:
        with_local_model(fetched, report)
        return prepare_fake(config, report)

    with RunningDaemon(prepare=prepare_from_hub, wait=False) as daemon:
        until(lambda: bool(hub.cdn_requests()))
        assert daemon.client.get("/health").status_code == 503
        gate.set()
        until(lambda: daemon.client.get("/health").status_code == 200)


def test_a_model_that_cannot_be_had_is_one_line_and_status_1(hub: LocalHub) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "daemon.cli", "-hf", f"{REPO}:Q2_K", *COMMON],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr == f"emberd: {REPO}: has no Q2_K (it has Q8_0)\n"
