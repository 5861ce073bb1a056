"""OpenAI's responses: the object and its events (http-api.md 21)."""

import time
from typing import Any

from daemon.completion import Completion
from daemon.model import ServedModel
from daemon.native_format import progress_json, timings_json
from daemon.openai_format import new_id
from daemon.streaming import StreamStyle
from runtime.engine.messages import Output, Progress


class ResponsesFormat:
    """``/v1/responses``: an output of one message when the model said anything.

    Events carry the numbers and item ids of OpenAI's own server, which its client needs to follow a stream;
    llama-server leaves them out.
    """

    style = StreamStyle(named=True)

    def __init__(self, model: ServedModel, prefill: str = "") -> None:
        self._id = new_id("resp_")
        self._item_id = new_id("msg_")
        self._model = model
        self._prefill = prefill
        self._created = int(time.time())
        self._n_events = 0
        self._has_begun = False
        self._text: list[str] = []

    def begin(self, completion: Completion) -> list[Any]:
        if self._has_begun:
            return []
        self._has_begun = True
        prefill = self._prefill if completion.settings.echo else ""
        states = [
            self._event(f"response.{name}", response=self._response("in_progress", []))
            for name in ("created", "in_progress")
        ]
        return [*states, *self._say(prefill)]

    def progress(self, completion: Completion, progress: Progress) -> list[Any]:
        response = self._response("in_progress", [])
        event = self._event("response.in_progress", response=response)
        return [event | {"prompt_progress": progress_json(progress)}]

    def delta(self, completion: Completion, output: Output) -> list[Any]:
        return self._say(output.text)

    def end(self, completion: Completion) -> list[Any]:
        text = "".join(self._text)
        events: list[Any] = []
        if text:
            place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
            events = [
                self._event("response.output_text.done", **place, text=text, logprobs=[]),
                self._event("response.content_part.done", **place, part=_part(text)),
                self._event("response.output_item.done", output_index=0, item=self._item("completed", text)),
            ]
        completed = self._event("response.completed", response=self._completed(completion, text))
        return [*events, completed | {"timings": timings_json(completion.timings, self._model.n_ctx)}]

    def done(self, completions: list[Completion]) -> list[Any]:
        return []

    def whole(self, completions: list[Completion]) -> Any:
        completion = completions[0]
        prefill = self._prefill if completion.settings.echo else ""
        response = self._completed(completion, prefill + completion.content)
        return response | {"timings": timings_json(completion.timings, self._model.n_ctx)}

    def _say(self, text: str) -> list[Any]:
        if not text:
            return []
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        opening: list[Any] = []
        if not self._text:
            item = self._item("in_progress", None)
            opening = [
                self._event("response.output_item.added", output_index=0, item=item),
                self._event("response.content_part.added", **place, part=_part("")),
            ]
        self._text.append(text)
        return [*opening, self._event("response.output_text.delta", **place, delta=text, logprobs=[])]

    def _event(self, type: str, **fields: Any) -> dict[str, Any]:
        self._n_events += 1
        return {"type": type, "sequence_number": self._n_events - 1, **fields}

    def _item(self, status: str, text: str | None) -> dict[str, Any]:
        content = [] if text is None else [_part(text)]
        return {
            "type": "message",
            "id": self._item_id,
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _response(self, status: str, output: list[Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": self._model.name,
            "status": status,
            "output": output,
        }

    def _completed(self, completion: Completion, text: str) -> dict[str, Any]:
        output = [self._item("completed", text)] if text else []
        return self._response("completed", output) | {
            "completed_at": int(time.time()),
            "usage": {
                "input_tokens": completion.n_prompt,
                "output_tokens": completion.n_decoded,
                "total_tokens": completion.n_prompt + completion.n_decoded,
                "input_tokens_details": {"cached_tokens": completion.n_cached},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
