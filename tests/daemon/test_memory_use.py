"""What a daemon with a real model holds in memory, and that it does not grow."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.gguf import open_model
from runtime.kernels.pack import packed_bytes
from tests.daemon.harness import until
from tests.daemon.process import EmberdProcess
from tests.models import smollm2_path

MIB = 1 << 20
N_CTX = 2048
KV_BYTES = N_CTX * 30 * 3 * 2 * 64 * 2  # positions x layers x heads x (k, v) x dims x f16

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


@pytest.fixture(scope="module")
def emberd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmberdProcess]:
    store = str(tmp_path_factory.mktemp("store"))
    flags = ("-t", "1", "-np", "1", "-c", str(N_CTX), "--ram-budget", "1M", "--store-path", store)
    with EmberdProcess(smollm2_path(), *flags) as warms_the_kernel_cache:
        warms_the_kernel_cache.terminate()
    with EmberdProcess(smollm2_path(), *flags) as running:
        yield running


def anonymous(emberd: EmberdProcess) -> int:
    """Bytes of the daemon's memory that no file backs."""
    return sum(mapped(emberd, "Anonymous").values())


def mapped(emberd: EmberdProcess, kind: str) -> dict[str, int]:
    """Bytes of memory of a kind ("Rss", "Anonymous", ...) by the path that is mapped; "" for none."""
    found: dict[str, int] = {}
    path = ""
    for line in Path(f"/proc/{emberd.process.pid}/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            path = " ".join(rest[4:])
        elif first == f"{kind}:":
            found[path] = found.get(path, 0) + (int(rest[0]) << 10)
    return found


def packed_weights() -> int:
    with open_model(smollm2_path()) as file:
        matrices = [t for t in file.tensors.values() if len(t.shape) == 2]
        return sum(packed_bytes(t.type.name, t.shape[1], t.shape[0]) for t in matrices)


def decode(emberd: EmberdProcess, n: int, seed: int) -> None:
    body = {"prompt": "Once", "n_predict": n, "ignore_eos": True, "seed": seed, "cache_prompt": False}
    answer = emberd.client.post("/completion", json=body).json()
    assert answer["tokens_predicted"] == n


def test_memory_is_that_of_the_packed_weights_and_little_more(emberd: EmberdProcess) -> None:
    decode(emberd, 8, 0)
    assert packed_weights() < anonymous(emberd) <= 1.05 * packed_weights() + KV_BYTES + 250 * MIB


def test_weights_lie_in_huge_pages_where_the_system_has_them(emberd: EmberdProcess) -> None:
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("transparent huge pages are switched off here")
    assert sum(mapped(emberd, "AnonHugePages").values()) > 0.8 * packed_weights()


def test_the_file_that_weights_were_packed_from_is_let_go(emberd: EmberdProcess) -> None:
    """All but the embedding, whose rows are looked up in the file: just under a third of it."""
    model = smollm2_path().resolve()
    until(lambda: mapped(emberd, "Rss")[str(model)] < 0.5 * model.stat().st_size)


def test_memory_does_not_grow_over_ten_thousand_tokens(emberd: EmberdProcess) -> None:
    for seed in range(10):  # every block of the pool has been in use then
        decode(emberd, 500, seed)
    before = anonymous(emberd)
    for seed in range(20):
        decode(emberd, 500, 100 + seed)
    assert anonymous(emberd) <= before + 4 * MIB
