"""The same answer, streamed or whole, however its text is cut into tokens: over HTTP, with the real engine.

The model is a script: the bytes that each token stands for are the test's.
"""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.config import Config
from daemon.loading import Prepared, Report
from runtime.engine import Engine
from runtime.runner import Run
from runtime.tokenizers import Tokenizer
from tests.daemon.harness import RunningDaemon, events, prepare_fake, tokenizer
from tests.runtime.engine.fakes import LAYOUT
from tests.runtime.engine.test_stops import plain

TOKENIZER = tokenizer()
IDS = [i for i in range(TOKENIZER.n_vocab) if i not in TOKENIZER.eog_ids]
END = min(TOKENIZER.eog_ids)


class Script:
    """A runner whose tokens are `pieces`, one per answer row, and then the end of the text."""

    n_embd = 0
    n_ubatch = 64
    n_vocab = TOKENIZER.n_vocab
    layout = LAYOUT

    def __init__(self) -> None:
        self.play([])

    def play(self, pieces: list[bytes]) -> None:
        self.spelling = dict(zip(IDS, pieces, strict=False))
        self._rest = iter([*self.spelling, END])

    def step(self, runs: list[Run]) -> npt.NDArray[np.float32]:
        answering = [run for run in runs if run.logits == "last"]
        logits = np.zeros((len(answering), self.n_vocab), np.float32)
        for row in logits:
            row[next(self._rest)] = 1.0
        return logits

    def cancel(self) -> None: ...

    def clear_rows(self, addresses: tuple[int, ...], first: int, end: int) -> None: ...


class ScriptedDaemon(RunningDaemon):
    def __init__(self) -> None:
        self.script = Script()
        super().__init__("-np", "1", "-c", "256", prepare=self._spelled)

    def _spelled(self, config: Config, report: Report) -> Prepared:
        prepared = prepare_fake(config, report)
        codec = copy.copy(prepared.model.tokenizer)
        codec.token_bytes = lambda id, *, special=False: self.script.spelling.get(id, b"")
        return replace(prepared, model=replace(prepared.model, tokenizer=codec))

    def _make_engine(self, runner: Any, codec: Tokenizer, config: Any, deliver: Any, port: Any) -> Any:
        engine = Engine(self.script, codec, config, deliver, port)
        self._engines.put(engine)
        return engine


@pytest.fixture(scope="module")
def daemon() -> Iterator[ScriptedDaemon]:
    with ScriptedDaemon() as running:
        yield running


@dataclass(frozen=True)
class Api:
    """How to ask, where a whole answer has its text, and where an event has its piece."""

    prompt: dict[str, Any]
    whole: Callable[[Any], str]
    piece: Callable[[Any], str]
    stop: str = "stop"


MESSAGES = {"messages": [{"role": "user", "content": "a"}]}
APIS = {
    "/completion": Api({"prompt": "a"}, lambda body: body["content"], lambda event: event["content"]),
    "/v1/completions": Api(
        {"prompt": "a"}, lambda body: body["choices"][0]["text"], lambda event: event["choices"][0]["text"]
    ),
    "/v1/chat/completions": Api(
        MESSAGES,
        lambda body: body["choices"][0]["message"]["content"],
        lambda event: event["choices"][0]["delta"].get("content") or "",
    ),
    "/v1/messages": Api(
        MESSAGES,
        lambda body: "".join(block["text"] for block in body["content"]),
        lambda event: event.get("delta", {}).get("text", ""),
        "stop_sequences",
    ),
    "/v1/responses": Api(
        {"input": "a"},
        lambda body: "".join(part["text"] for item in body["output"] for part in item["content"]),
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    ),
}

LETTERS = "abé€😀"
TEXTS = st.text(LETTERS, max_size=24).map(str.encode) | st.binary(max_size=12)
WORDS = st.lists(st.text(LETTERS + "�", min_size=1, max_size=4), max_size=4)


@pytest.mark.parametrize("path", APIS)
@settings(max_examples=40)
@given(data=TEXTS, cuts=st.sets(st.integers(1, 60)), words=WORDS, by_budget=st.booleans())
def test_streamed_or_whole_the_answer_is_the_text_up_to_its_stop_string(
    daemon: ScriptedDaemon, path: str, data: bytes, cuts: set[int], words: list[str], by_budget: bool
) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges)]
    expected, _ = plain(data.decode(errors="replace"), tuple(words))
    api = APIS[path]
    budget = {"n_predict": len(pieces)} if by_budget else {}
    body = api.prompt | {"temperature": 0, api.stop: words} | budget

    daemon.script.play(pieces)
    assert api.whole(daemon.post(path, body).json()) == expected
    daemon.script.play(pieces)
    streamed = events(daemon.post(path, body | {"stream": True}).text)
    assert "".join(api.piece(json.loads(event)) for event in streamed if event != "[DONE]") == expected
