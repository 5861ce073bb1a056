"""Requests that follow /openapi.json, and such that do not: none may find a fault of the server.

A tiny model with random weights answers over loopback. The examples are the same in every run.
"""

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from daemon.openapi import BODIES
from tests.daemon.harness import MODEL
from tests.daemon.process import EmberdProcess

pytestmark = pytest.mark.slow

SECONDS = 30
"""Longer than any answer of this model takes, also on a busy machine."""

FUZZ = settings(
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def fuzz(operation: Any, mode: GenerationMode) -> Counter[int]:
    """How often each status was the answer; fails for one that says that the server is at fault."""
    statuses: Counter[int] = Counter()

    @FUZZ
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        response = case.call(timeout=SECONDS)
        assert response.status_code < 500 or response.status_code == 501, (case.body, response.text)
        statuses[response.status_code] += 1

    ask()
    return statuses


TEXT = ["/completion", "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"]
VECTORS = ["/embedding", "/v1/embeddings"]


@pytest.mark.parametrize(
    ("flags", "mode", "answered"),
    [
        ((), GenerationMode.POSITIVE, TEXT),
        ((), GenerationMode.NEGATIVE, []),
        (("--embeddings", "--pooling", "mean"), GenerationMode.POSITIVE, VECTORS),
    ],
    ids=["text", "nonsense", "vectors"],
)
def test_no_request_finds_a_fault(flags: tuple[str, ...], mode: GenerationMode, answered: list[str]) -> None:
    with EmberdProcess(MODEL, "-np", "2", "-c", "512", "--store", "off", "--props", *flags) as emberd:
        schema = schemathesis.openapi.from_url(f"{emberd.url}/openapi.json")
        operations = [result.ok() for result in schema.get_all_operations()]
        if mode is GenerationMode.NEGATIVE:
            operations = [operation for operation in operations if operation.body]
        answers = {operation.label: fuzz(operation, mode) for operation in operations}
        assert emberd.client.get("/health").json()["slots_processing"] == 0
    assert {f"POST {path.replace('<id_slot>', '{id_slot}')}" for path in BODIES} <= answers.keys()
    assert all(answers[f"POST {path}"][200] for path in answered)
