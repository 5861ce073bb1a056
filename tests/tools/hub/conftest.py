"""A local hub with one repository, and a client that tries again at once."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tools.hub.local_hub import File, LocalHub
from tools.hub import Hub, Patience, Watch

LLAMA = Path(__file__).resolve().parents[2] / "data" / "archs" / "llama.gguf"
REPO = "user/tiny-GGUF"
QUICK = Patience(connect=30.0, read=30.0, attempts=3, pause=0.01)


class Log:
    """What a user is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[tuple[str, int, int | None]] = []
        self.watch = Watch(self.lines.append, lambda *step: self.steps.append(step))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def content() -> bytes:
    return LLAMA.read_bytes()


@pytest.fixture
def file(content: bytes) -> File:
    return File(content)


@pytest.fixture
def server(file: File) -> Iterator[LocalHub]:
    with LocalHub(repos={REPO: {"README.md": File(b"hello", lfs=False), "tiny-Q4_K_M.gguf": file}}) as hub:
        yield hub


@pytest.fixture
def make_hub(server: LocalHub, tmp_path: Path) -> Callable[..., Hub]:
    def make(token: str = "", offline: bool = False, endpoint: str = "") -> Hub:
        return Hub(endpoint or server.url, tmp_path / "cache", token, offline, QUICK)

    return make


@pytest.fixture
def hub(make_hub: Callable[..., Hub]) -> Hub:
    return make_hub()


@pytest.fixture
def log() -> Log:
    return Log()
