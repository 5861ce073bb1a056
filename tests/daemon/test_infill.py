"""``POST /infill``: the prompt's layout, what is cut off, and models that cannot do it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from daemon.config import Config
from daemon.infill import InfillLimits, infill_prompt
from daemon.loading import Prepared, Report
from daemon.requests import InfillRequest, InputExtra
from tests.daemon.harness import RunningDaemon, prepare_fake, tokenizer

ROLES = {"fim_pre": 3, "fim_suf": 4, "fim_mid": 5}
REPOSITORY = {"fim_rep": 6, "fim_sep": 7}
LIMITS = InfillLimits(n_ctx=4096, n_batch=2048, n_predict=-1)


def prepare(config: Config, report: Report) -> Prepared:
    prepared = prepare_fake(config, report)
    codec = prepared.model.tokenizer
    codec.vocab.special.update(ROLES)
    return replace(prepared, model=replace(prepared.model, tokenizer=codec))


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("-np", "1", "-c", "4096", prepare=prepare) as running:
        yield running


def ids(text: str) -> list[int]:
    return list(tokenizer().encode(text, parse_special=False))


def layout(roles: dict[str, int], limits: InfillLimits = LIMITS, **fields: Any) -> list[int]:
    codec = tokenizer()
    codec.vocab.special.update(roles)
    body = InfillRequest(**{"input_prefix": "ab", "input_suffix": "cd", **fields})
    return [int(token) for token in infill_prompt(body, codec, limits)]


def bos() -> list[int]:
    return list(tokenizer().prefix_ids)


def test_the_gap_is_between_prefix_and_suffix() -> None:
    expected = [*bos(), 3, *ids("ab"), *ids("xy"), 4, *ids("cd"), 5]
    assert layout(ROLES, prompt="xy") == expected
    first = [*bos(), 4, *ids("cd"), 3, *ids("ab"), *ids("xy"), 5]
    assert layout(ROLES, replace(LIMITS, suffix_first=True), prompt="xy") == first


def test_other_files_come_first_in_the_layout_the_model_knows() -> None:
    extras = [InputExtra("E", "a.py"), InputExtra("F")]
    around = [*bos(), 3, *ids("ab"), 4, *ids("cd"), 5]
    known = [6, *ids("myproject\n"), 7, *ids("a.py\n"), *ids("E"), 7, *ids("tmp\n"), *ids("F")]
    assert layout(ROLES | REPOSITORY, input_extra=extras) == [*known, 7, *ids("filename\n"), *around]
    snippet = ids("\n\n--- snippet ---\n\n")
    assert layout(ROLES, input_extra=extras) == [*snippet, *ids("E"), *snippet, *ids("F"), *around]


def test_what_is_too_long_loses_its_far_end() -> None:
    limits = InfillLimits(n_ctx=60, n_batch=40, n_predict=5)
    prefix, suffix, extra = "a b c d e f g h " * 20, "1 2 3 4 5 6 7 8 " * 20, "x y z " * 50
    found = layout(ROLES, limits, input_prefix=prefix, input_suffix=suffix, input_extra=[InputExtra(extra)])
    snippets = [*ids("\n\n--- snippet ---\n\n"), *ids(extra)]
    assert found == [*snippets[-10:], *bos(), 3, *ids(prefix)[-30:], 4, *ids(suffix)[:8], 5]


def test_the_answer_has_the_native_shape(daemon: RunningDaemon) -> None:
    body = {"input_prefix": "ab", "input_suffix": "cd", "n_predict": 2}
    answer = daemon.post("/infill", body).json()
    assert answer["content"] == " w0 w1" and answer["stop_type"] == "limit"
    assert daemon.engine.requests[-1].prompt.tolist() == [*bos(), 3, *ids("ab"), 4, *ids("cd"), 5]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"input_suffix": "a"}, 400, '"input_prefix" is required'),
        ({"input_prefix": "a"}, 400, '"input_suffix" is required'),
        ({"input_prefix": 5, "input_suffix": "a"}, 400, "Field 'input_prefix'"),
        ({"input_prefix": "a", "input_suffix": "a", "prompt": [5]}, 400, "Field 'prompt'"),
        ({"input_prefix": "a", "input_suffix": "a", "input_extra": "x"}, 400, "Field 'input_extra'"),
        (
            {"input_prefix": "a", "input_suffix": "a", "input_extra": [{"filename": "x"}]},
            400,
            'must contain a "text" field',
        ),
        ({"input_prefix": "a", "input_suffix": "a", "grammar": "root ::= x"}, 501, "Field 'grammar'"),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(
    daemon: RunningDaemon, body: dict[str, Any], status: int, message: str
) -> None:
    assert message in daemon.error("/infill", body, status)


def test_a_model_without_the_tokens_names_them() -> None:
    with RunningDaemon() as daemon:
        told = daemon.error("/infill", {"input_prefix": "a", "input_suffix": "b"}, 501)
        assert told.startswith("Infill is not supported by this model: ")
        assert "prefix token is missing." in told and "middle token is missing." in told
