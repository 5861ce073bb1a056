"""Anthropic's response shapes (http-api.md 22)."""

from typing import Any

from daemon.completion import Completion
from daemon.model import ServedModel
from daemon.openai_format import new_id
from daemon.streaming import StreamStyle
from runtime.engine.messages import Output, Progress


class MessagesFormat:
    """``/v1/messages``: one message, of one text block when the model said anything."""

    style = StreamStyle(named=True, bare_errors=True)

    def __init__(self, model: ServedModel, prefill: str = "") -> None:
        self._id = new_id("chatcmpl-")
        self._model = model
        self._prefill = prefill
        self._has_begun = False
        self._has_text = False

    def begin(self, completion: Completion) -> list[Any]:
        if self._has_begun:
            return []
        self._has_begun = True
        start = {"type": "message_start", "message": self._message(completion, [], None, None, 0)}
        prefill = self._prefill if completion.settings.echo else ""
        return [start, *self._text(prefill)]

    def progress(self, completion: Completion, progress: Progress) -> list[Any]:
        return []

    def delta(self, completion: Completion, output: Output) -> list[Any]:
        return self._text(output.text)

    def end(self, completion: Completion) -> list[Any]:
        stops = [{"type": "content_block_stop", "index": 0}] if self._has_text else []
        delta = {"stop_reason": _stop_reason(completion), "stop_sequence": _stop_sequence(completion)}
        usage = {"output_tokens": completion.n_decoded}
        return [*stops, {"type": "message_delta", "delta": delta, "usage": usage}]

    def done(self, completions: list[Completion]) -> list[Any]:
        return [{"type": "message_stop"}]

    def whole(self, completions: list[Completion]) -> Any:
        completion = completions[0]
        text = (self._prefill if completion.settings.echo else "") + completion.content
        return self._message(
            completion,
            [{"type": "text", "text": text}] if text else [],
            _stop_reason(completion),
            _stop_sequence(completion),
            completion.n_decoded,
        )

    def _text(self, text: str) -> list[Any]:
        if not text:
            return []
        delta = {"type": "text_delta", "text": text}
        events: list[Any] = [{"type": "content_block_delta", "index": 0, "delta": delta}]
        if not self._has_text:
            self._has_text = True
            block = {"type": "text", "text": ""}
            events.insert(0, {"type": "content_block_start", "index": 0, "content_block": block})
        return events

    def _message(
        self,
        completion: Completion,
        content: list[Any],
        stop_reason: str | None,
        stop_sequence: str | None,
        n_output: int,
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model.name,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": {
                "cache_read_input_tokens": completion.n_cached,
                "input_tokens": completion.n_prompt - completion.n_cached,
                "output_tokens": n_output,
            },
        }


def _stop_reason(completion: Completion) -> str:
    return "end_turn" if completion.finish_reason == "stop" else "max_tokens"


def _stop_sequence(completion: Completion) -> str | None:
    return (completion.finished.stopping_word if completion.finished else "") or None
