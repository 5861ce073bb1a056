"""llama-server's own response shapes (http-api.md 15), as a superset of llama.cpp's and ik_llama.cpp's."""

import math
from collections.abc import Iterable
from typing import Any

from daemon.completion import Completion
from daemon.model import ServedModel
from daemon.probabilities import completion_probabilities
from daemon.settings import Settings
from daemon.streaming import StreamStyle
from runtime.engine.messages import Output, Progress, StopReason, Timings


def timings_json(timings: Timings, n_ctx: int) -> dict[str, Any]:
    """Rates of generation are over the steps after the first token, which the prompt's last step yields."""
    n_steps = timings.predicted_n - 1
    return {
        "cache_n": timings.cache_n,
        "cache_source": str(timings.cache_source),
        "cache_reason": timings.cache_reason,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": _ratio(timings.prompt_ms, timings.prompt_n),
        "prompt_per_second": _ratio(1e3 * timings.prompt_n, timings.prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": _ratio(timings.predicted_ms, n_steps),
        "predicted_per_second": _ratio(1e3 * n_steps, timings.predicted_ms),
        "n_ctx": n_ctx,
        "n_past": timings.cache_n + timings.prompt_n + timings.predicted_n,
    }


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 and numerator > 0 else 0.0


def settings_json(settings: Settings, *, short: bool = False) -> dict[str, Any]:
    """``generation_settings``; the `short` form, of ``/props`` and ``/slots``, leaves texts and lists out."""
    sampling = settings.sampling
    shown: dict[str, Any] = {
        "seed": sampling.seed & 0xFFFFFFFF,
        "temperature": sampling.temperature,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "typical_p": sampling.typical_p,
        "repeat_last_n": sampling.repeat_last_n,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": 64,
        "dry_sequence_breakers": ["\n", ":", '"', "*"],
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "stop": list(settings.stop),
        "max_tokens": settings.n_predict,
        "n_predict": settings.n_predict,
        "n_keep": settings.n_keep,
        "n_discard": settings.n_discard,
        "ignore_eos": sampling.ignore_eos,
        "stream": settings.stream,
        "logit_bias": [
            {"bias": bias if math.isfinite(bias) else None, "token": token}
            for token, bias in sampling.logit_bias
        ],
        "n_probs": sampling.n_probs,
        "min_keep": sampling.min_keep,
        "grammar": "",
        "grammar_lazy": False,
        "grammar_triggers": [],
        "preserved_tokens": [],
        "chat_format": "Content-only",
        "reasoning_format": "none",
        "reasoning_in_content": False,
        "generation_prompt": "",
        "samplers": list(settings.samplers),
        "speculative.types": "none",
        "timings_per_token": settings.timings_per_token,
        "post_sampling_probs": sampling.post_sampling_probs,
        "backend_sampling": False,
        "lora": [],
    }
    if short:
        for name in _LONG_ONLY:
            del shown[name]
    return shown


_LONG_ONLY = (
    "dry_sequence_breakers",
    "stop",
    "logit_bias",
    "grammar",
    "grammar_lazy",
    "grammar_triggers",
    "preserved_tokens",
)


def progress_json(progress: Progress) -> dict[str, Any]:
    return {
        "total": progress.total,
        "cache": progress.cache,
        "processed": progress.processed,
        "time_ms": progress.time_ms,
    }


def select_fields(response: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Keep only `paths`; one with ``/`` reaches into objects and becomes a key of that literal name."""
    selected = {}
    for path in paths:
        value: Any = response
        for key in path.split("/"):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            selected[path] = value
    return selected


class NativeFormat:
    """``/completion``: an object, or an array for several prompts; as a stream an event per piece."""

    style = StreamStyle()

    def __init__(self, model: ServedModel, several: bool) -> None:
        self._model = model
        self._several = several

    def begin(self, completion: Completion) -> list[Any]:
        return []

    def progress(self, completion: Completion, progress: Progress) -> list[Any]:
        return [self._piece(completion, "", []) | {"prompt_progress": progress_json(progress)}]

    def delta(self, completion: Completion, output: Output) -> list[Any]:
        piece = self._piece(completion, output.text, [token.id for token in output.tokens])
        if output.timings is not None and completion.settings.timings_per_token:
            piece["timings"] = timings_json(output.timings, self._model.n_ctx)
        if probabilities := self._probabilities(completion, output.tokens):
            piece["completion_probabilities"] = probabilities
        return [piece]

    def end(self, completion: Completion) -> list[Any]:
        return [self._final(completion, "", [], {})]

    def done(self, completions: list[Completion]) -> list[Any]:
        return []

    def whole(self, completions: list[Completion]) -> Any:
        results = [
            self._final(
                completion,
                completion.content,
                [token.id for token in completion.tokens] if completion.settings.return_tokens else [],
                self._all_probabilities(completion),
            )
            for completion in completions
        ]
        return results if self._several or len(results) > 1 else results[0]

    def _probabilities(self, completion: Completion, tokens: Iterable[Any]) -> list[dict[str, Any]]:
        sampling = completion.settings.sampling
        if not sampling.n_probs:
            return []
        return completion_probabilities(tokens, self._model.token_bytes, sampling.post_sampling_probs)

    def _all_probabilities(self, completion: Completion) -> dict[str, Any]:
        probabilities = self._probabilities(completion, completion.tokens)
        return {"completion_probabilities": probabilities} if probabilities else {}

    @staticmethod
    def _piece(completion: Completion, text: str, tokens: list[int]) -> dict[str, Any]:
        return {
            "index": completion.index,
            "content": text,
            "tokens": tokens,
            "stop": False,
            "id_slot": completion.started.id_slot if completion.started else -1,
            "tokens_predicted": len(completion.tokens),
            "tokens_evaluated": completion.n_prompt,
        }

    def _final(
        self, completion: Completion, text: str, tokens: list[int], more: dict[str, Any]
    ) -> dict[str, Any]:
        response = native_final(completion, self._model, text, tokens) | more
        fields = completion.settings.response_fields
        return select_fields(response, fields) if fields else response


def native_final(completion: Completion, model: ServedModel, text: str, tokens: list[int]) -> dict[str, Any]:
    """The object that describes a finished completion."""
    finished = completion.finished
    if finished is None:
        raise RuntimeError("the completion has not finished")
    prompt = model.decode(completion.request.prompt)
    return {
        "index": completion.index,
        "content": text,
        "tokens": tokens,
        "id_slot": finished.id_slot,
        "stop": True,
        "model": model.name,
        "tokens_predicted": finished.timings.predicted_n,
        "tokens_evaluated": completion.n_prompt,
        "generation_settings": settings_json(completion.settings),
        "prompt": prompt,
        "has_new_line": finished.has_new_line,
        "truncated": finished.truncated,
        "stop_type": str(finished.reason),
        "stopped_eos": finished.reason is StopReason.EOS,
        "stopped_word": finished.reason is StopReason.WORD,
        "stopped_limit": finished.reason is StopReason.LIMIT,
        "stopping_word": finished.stopping_word,
        "tokens_cached": finished.n_cached_total,
        "timings": timings_json(finished.timings, model.n_ctx),
    }
