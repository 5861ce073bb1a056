"""OpenAI's response shapes: text completions (http-api.md 17) and chat completions (18)."""

import secrets
import string
import time
from collections.abc import Iterable, Sequence
from typing import Any

from daemon.build_info import BUILD
from daemon.completion import Completion
from daemon.model import ServedModel
from daemon.native_format import native_final, progress_json, timings_json
from daemon.probabilities import completion_probabilities, likeliest
from daemon.streaming import StreamStyle
from runtime.engine.messages import Output, Progress

_ALPHABET = string.ascii_letters + string.digits


def new_id(prefix: str) -> str:
    """A name nobody else has: `prefix` and 32 letters and digits."""
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(32))


class _OpenAIFormat:
    """What both shapes share. `object` names the whole answer, `chunk` a piece of a stream."""

    style = StreamStyle(ends_with_done=True)
    object = ""
    chunk = ""

    def __init__(self, model: ServedModel) -> None:
        self.id = new_id("chatcmpl-")
        self._model = model
        self._created = int(time.time())

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "choices": choices,
            "created": self._created,
            "id": self.id,
            "model": self._model.name,
            "system_fingerprint": BUILD,
            "object": kind,
        }

    def _logprobs(self, completion: Completion, tokens: Iterable[Any]) -> dict[str, Any] | None:
        sampling = completion.settings.sampling
        if not sampling.n_probs:
            return None
        probabilities = completion_probabilities(
            tokens, self._model.token_bytes, sampling.post_sampling_probs
        )
        return {"content": probabilities} if probabilities else None

    def _timings(self, completion: Completion) -> dict[str, Any]:
        return timings_json(completion.timings, self._model.n_ctx)

    def _verbose(self, completions: list[Completion]) -> dict[str, Any]:
        first = completions[0]
        if not first.settings.verbose:
            return {}
        ids = [token.id for token in first.tokens]
        return {"__verbose": native_final(first, self._model, first.content, ids)}

    @staticmethod
    def usage(completions: list[Completion]) -> dict[str, Any]:
        """Of one prompt and all its completions; several prompts are counted each."""
        prompts = {completion.request.prompt.tobytes(): completion for completion in completions}
        n_prompt = sum(completion.n_prompt for completion in prompts.values())
        n_completion = sum(completion.n_decoded for completion in completions)
        return {
            "completion_tokens": n_completion,
            "prompt_tokens": n_prompt,
            "total_tokens": n_prompt + n_completion,
            "prompt_tokens_details": {"cached_tokens": sum(c.n_cached for c in prompts.values())},
        }


class TextFormat(_OpenAIFormat):
    """``/v1/completions``. `echoed` are texts to put before the completions' own, by their index.

    `n_shown` is how many completions of each prompt are shown, best first; None: all, as they are numbered.
    """

    object = "text_completion"
    chunk = "text_completion"

    def __init__(self, model: ServedModel, echoed: Sequence[str] = (), n_shown: int | None = None) -> None:
        super().__init__(model)
        self._echoed = echoed
        self._n_shown = n_shown

    def begin(self, completion: Completion) -> list[Any]:
        text = self._echo(completion)
        return [self._piece(completion, text, None)] if text else []

    def progress(self, completion: Completion, progress: Progress) -> list[Any]:
        return [self._piece(completion, "", None) | {"prompt_progress": progress_json(progress)}]

    def delta(self, completion: Completion, output: Output) -> list[Any]:
        piece = self._piece(completion, output.text, self._logprobs(completion, output.tokens))
        if output.timings is not None and completion.settings.timings_per_token:
            piece["timings"] = timings_json(output.timings, self._model.n_ctx)
        return [piece]

    def end(self, completion: Completion) -> list[Any]:
        choice = self._choice(completion, "", None, completion.finish_reason)
        return [
            self._envelope(self.chunk, [choice])
            | {"usage": self.usage([completion]), "timings": self._timings(completion)}
            | self._verbose([completion])
        ]

    def done(self, completions: list[Completion]) -> list[Any]:
        return []

    def whole(self, completions: list[Completion]) -> Any:
        shown = completions if self._n_shown is None else likeliest(completions, self._n_shown)
        choices = [
            self._choice(
                completion,
                self._echo(completion) + completion.content,
                self._logprobs(completion, completion.tokens),
                completion.finish_reason,
            )
            | {"index": i}
            for i, completion in enumerate(shown)
        ]
        return (
            self._envelope(self.object, choices)
            | {"usage": self.usage(completions), "timings": self._timings(shown[0])}
            | self._verbose(shown)
        )

    def _echo(self, completion: Completion) -> str:
        return self._echoed[completion.index] if self._echoed else ""

    def _piece(self, completion: Completion, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return self._envelope(self.chunk, [self._choice(completion, text, logprobs, None)])

    @staticmethod
    def _choice(
        completion: Completion, text: str, logprobs: dict[str, Any] | None, reason: str | None
    ) -> dict[str, Any]:
        return {"text": text, "index": completion.index, "logprobs": logprobs, "finish_reason": reason}


class ChatFormat(_OpenAIFormat):
    """``/v1/chat/completions``. `prefill` is text that the answer continues and that ``echo`` repeats."""

    object = "chat.completion"
    chunk = "chat.completion.chunk"

    def __init__(self, model: ServedModel, prefill: str = "") -> None:
        super().__init__(model)
        self._prefill = prefill
        self._last_timings: dict[str, Any] = {}

    def begin(self, completion: Completion) -> list[Any]:
        role = self._piece(completion, {"role": "assistant", "content": None})
        if self._prefill and completion.settings.echo:
            return [role, self._piece(completion, {"content": self._prefill})]
        return [role]

    def progress(self, completion: Completion, progress: Progress) -> list[Any]:
        piece = self._piece(completion, {"role": "assistant", "content": None})
        return [piece | {"prompt_progress": progress_json(progress)}]

    def delta(self, completion: Completion, output: Output) -> list[Any]:
        logprobs = self._logprobs(completion, output.tokens)
        if not output.text and logprobs is None:
            return []
        piece = self._piece(completion, {"content": output.text} if output.text else {})
        if logprobs is not None:
            piece["choices"][0]["logprobs"] = logprobs
        if output.timings is not None and completion.settings.timings_per_token:
            piece["timings"] = timings_json(output.timings, self._model.n_ctx)
        return [piece]

    def end(self, completion: Completion) -> list[Any]:
        self._last_timings = self._timings(completion)
        piece = self._piece(completion, {}, completion.finish_reason) | self._verbose([completion])
        return [piece if completion.settings.include_usage else piece | {"timings": self._last_timings}]

    def done(self, completions: list[Completion]) -> list[Any]:
        if not completions[0].settings.include_usage:
            return []
        chunk = self._envelope(self.chunk, [])
        return [chunk | {"usage": self.usage(completions), "timings": self._last_timings}]

    def whole(self, completions: list[Completion]) -> Any:
        choices = []
        for completion in completions:
            prefill = self._prefill if completion.settings.echo else ""
            message = {"role": "assistant", "content": prefill + completion.content}
            choice: dict[str, Any] = {
                "finish_reason": completion.finish_reason,
                "index": completion.index,
                "message": message,
            }
            if (logprobs := self._logprobs(completion, completion.tokens)) is not None:
                choice["logprobs"] = logprobs
            choices.append(choice)
        return (
            self._envelope(self.object, choices)
            | {"usage": self.usage(completions), "timings": self._timings(completions[0])}
            | self._verbose(completions)
        )

    def _piece(
        self, completion: Completion, delta: dict[str, Any], reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"finish_reason": reason, "index": completion.index, "delta": delta}
        return self._envelope(self.chunk, [choice])
