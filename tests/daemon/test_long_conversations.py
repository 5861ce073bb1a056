"""Long conversations and many of them, over HTTP: what they share is there once, look-ups stay quick."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.daemon.process import EmberdProcess
from tests.runtime.evaluation import DATA

LLAMA = DATA / "archs" / "llama.gguf"
BLOCK = 256


def tokens(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 250, length).tolist()


def ask(daemon: EmberdProcess, ids: list[int], **fields: Any) -> dict[str, Any]:
    body = {"prompt": ids, "n_predict": 1, "temperature": 0, "return_tokens": True, **fields}
    return daemon.client.post("/completion", json=body).raise_for_status().json()


def store_of(daemon: EmberdProcess) -> dict[str, Any]:
    """The store's figures once everything offered is written."""
    while (figures := daemon.client.get("/store").raise_for_status().json())["queue_bytes"]:
        pass
    return figures


def blocks_in_ram(daemon: EmberdProcess) -> int:
    lines = daemon.client.get("/metrics").raise_for_status().text.splitlines()
    (used,) = [line for line in lines if line.startswith("emberd:pool_blocks_used ")]
    return int(float(used.split()[-1]))


def test_a_divergence_in_the_middle_of_3000_tokens_reuses_exactly_the_common_prefix(tmp_path: Path) -> None:
    """Five branches from one root, at five depths, in RAM and again from the store."""
    trunk = tokens(1, 3000)
    cuts = [1500, 1501, 2047, 2048, 2300]
    branches = [[*trunk[:cut], (trunk[cut] + 1) % 250, *tokens(cut, 3000 - cut - 1)] for cut in cuts]
    flags = ["--store-path", str(tmp_path), "-c", "24576", "-np", "6", "--metrics"]
    with EmberdProcess(LLAMA, *flags) as daemon:
        assert ask(daemon, trunk, id_slot=5)["timings"]["cache_n"] == 0
        trunk_blocks, trunk_stored = blocks_in_ram(daemon), store_of(daemon)
        assert trunk_blocks == -(-3000 // BLOCK)
        answers = [ask(daemon, branch, id_slot=i) for i, branch in enumerate(branches)]
        assert [answer["timings"]["cache_n"] for answer in answers] == cuts
        own = sum(-(-3000 // BLOCK) - cut // BLOCK for cut in cuts)
        assert blocks_in_ram(daemon) == trunk_blocks + own
        stored = store_of(daemon)
        assert stored["n_blocks"] == trunk_stored["n_blocks"] + own
        per_token = trunk_stored["bytes_written"] / 3000
        fresh = sum(3000 - cut // BLOCK * BLOCK for cut in cuts)
        assert stored["bytes_written"] - trunk_stored["bytes_written"] <= 1.1 * fresh * per_token
        assert daemon.terminate() == 0
    with EmberdProcess(LLAMA, *flags) as daemon:
        again = [ask(daemon, branch) for branch in branches]
        assert [answer["timings"]["cache_n"] for answer in again] == [2999] * 5
        assert [answer["tokens"] for answer in again] == [answer["tokens"] for answer in answers]
        retold = [*trunk[:1700], *tokens(77, 300)]
        assert ask(daemon, retold)["timings"]["cache_n"] == 1700


@pytest.mark.slow
def test_twenty_conversations_on_two_slots_stay_quick_and_small(tmp_path: Path) -> None:
    """Each turn goes to a slot that has just served another; memory does not grow from round to round."""

    def resident(daemon: EmberdProcess) -> int:
        return int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1]) * 4096

    flags = ["--store-path", str(tmp_path), "-c", "8192", "-np", "2", "--ram-budget", "4M"]
    conversations = [tokens(seed, 1000) for seed in range(20)]
    sizes, sources = [], set()
    with EmberdProcess(LLAMA, *flags) as daemon:
        for turn in range(10):
            for i, conversation in enumerate(conversations):
                answer = ask(daemon, conversation)
                known = len(conversation) - 61 if turn else 0
                assert answer["timings"]["cache_n"] >= known
                sources.add(answer["timings"]["cache_source"])
                conversation += [*answer["tokens"], *tokens(100 * i + turn, 60)]
            sizes.append(resident(daemon))
    assert "store" in sources, "everything was in RAM: the test tests nothing"
    assert sizes[-1] - sizes[4] < 24 << 20, sizes
