"""From a request and the server's defaults to what one completion shall do, and how that is shown."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from daemon.config import Config
from daemon.errors import ApiError, invalid_field
from daemon.flags import UsageError
from daemon.requests import CompletionFields
from runtime.engine.messages import SamplingParams, Tokens

CHAIN = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""The order in which samplers are applied, by llama.cpp's names."""

_MAX_BIAS = 1e30
_ABSENT = ("dry", "top_n_sigma", "xtc")

_NEUTRAL: dict[str, dict[str, float | int]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "temperature": {"temperature": 1.0},
}

_ALIASES = {
    "top-k": "top_k",
    "top-p": "top_p",
    "nucleus": "top_p",
    "min-p": "min_p",
    "typical": "typ_p",
    "typical_p": "typ_p",
    "typical-p": "typ_p",
    "typ-p": "typ_p",
    "typ": "typ_p",
    "temp": "temperature",
    "top-n-sigma": "top_n_sigma",
}
_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """One completion's settings, all decided, by their JSON names. `samplers` is the chain in force."""

    sampling: SamplingParams
    samplers: tuple[str, ...]
    n_predict: int
    n_keep: int
    n_discard: int
    stop: tuple[str, ...]
    stream: bool
    id_slot: int
    cache_prompt: bool
    store: bool
    n_cmpl: int
    timings_per_token: bool
    return_progress: bool
    return_tokens: bool
    response_fields: tuple[str, ...]
    sse_ping_interval: int
    include_usage: bool
    verbose: bool
    echo: bool


class Defaults:
    """The command line's sampling flags, which are the defaults of every request.

    `encode` turns a text into tokens, for logit biases given by text. Raises UsageError when a flag cannot be
    used with this model.
    """

    def __init__(self, config: Config, n_vocab: int, encode: Callable[[str], Tokens]) -> None:
        self.config = config
        self.n_vocab = n_vocab
        self._encode = encode
        bias = tuple(_parse_bias_flag(given, n_vocab) for given in config.logit_bias)
        sampling = SamplingParams(
            seed=config.seed,
            temperature=config.temperature,
            top_k=max(0, config.top_k),
            top_p=config.top_p,
            min_p=config.min_p,
            typical_p=config.typical_p,
            repeat_last_n=config.repeat_last_n,
            repeat_penalty=config.repeat_penalty,
            presence_penalty=config.presence_penalty,
            frequency_penalty=config.frequency_penalty,
            logit_bias=bias,
            ignore_eos=config.ignore_eos,
        )
        self.samplers: tuple[str, ...] = CHAIN
        if config.samplers or config.sampler_seq:
            given = config.samplers.split(";") if config.samplers else config.sampler_seq
            try:
                self.samplers = sampler_chain(given)
            except ApiError as error:
                raise UsageError(f"--samplers: {error.message}") from None
        self.sampling = sampling
        self.settings = self.resolve(CompletionFields(), 0)

    def resolve(self, request: CompletionFields, n_probs: int) -> Settings:
        """What `request` asks for. Values outside the soft limits are clamped. Raises ApiError."""
        base = self.sampling
        sampling = SamplingParams(
            seed=_seed(_or(request.seed, base.seed)),
            temperature=max(0.0, _or(request.temperature, base.temperature)),
            top_k=max(0, _or(request.top_k, base.top_k)),
            top_p=_clamp(_or(request.top_p, base.top_p)),
            min_p=_clamp(_or(request.min_p, base.min_p)),
            typical_p=_clamp(_or(request.typical_p, base.typical_p)),
            repeat_last_n=_or(request.repeat_last_n, base.repeat_last_n),
            repeat_penalty=_or(request.repeat_penalty, base.repeat_penalty),
            presence_penalty=_or(request.presence_penalty, base.presence_penalty),
            frequency_penalty=_or(request.frequency_penalty, base.frequency_penalty),
            min_keep=_or(request.min_keep, 0),
            logit_bias=base.logit_bias if request.logit_bias is None else self._bias(request.logit_bias),
            ignore_eos=_or(request.ignore_eos, base.ignore_eos),
            n_probs=min(n_probs, self.n_vocab),
            post_sampling_probs=_or(request.post_sampling_probs, False),
        )
        chain = self.samplers if request.samplers is None else sampler_chain(request.samplers)
        return self._settings(request, sampling, chain)

    def _settings(
        self, request: CompletionFields, sampling: SamplingParams, chain: tuple[str, ...]
    ) -> Settings:
        config = self.config
        stop = [request.stop] if isinstance(request.stop, str) else request.stop
        words = tuple(word for word in stop or config.reverse_prompt if word)
        slot = _or(request.id_slot, -1)
        budgets = (request.n_predict, request.max_completion_tokens, request.max_tokens)
        return Settings(
            sampling=_without(sampling, chain),
            samplers=chain,
            n_predict=max(-1, _first(*budgets, config.n_predict)),
            n_keep=_or(request.n_keep, 0),
            n_discard=_or(request.n_discard, 0),
            stop=words,
            stream=_or(request.stream, False),
            id_slot=slot % config.n_parallel if slot >= 0 else -1,
            cache_prompt=_or(request.cache_prompt, config.cache_prompt),
            store=_or(request.store, True),
            n_cmpl=self._completions(request),
            timings_per_token=_or(request.timings_per_token, False),
            return_progress=_or(request.return_progress, False),
            return_tokens=_or(request.return_tokens, False),
            response_fields=tuple(request.response_fields or ()),
            sse_ping_interval=_or(request.sse_ping_interval, config.sse_ping_interval),
            include_usage=bool(request.stream_options and request.stream_options.include_usage),
            verbose=_or(request.verbose, config.verbose),
            echo=_or(request.echo, False),
        )

    def _completions(self, request: CompletionFields) -> int:
        for name, value in (("n_cmpl", request.n_cmpl), ("n", request.n)):
            if value is not None:
                if value > self.config.n_parallel:
                    limit = f"Value must be between 1 <= value <= {self.config.n_parallel}, but got {value}"
                    raise invalid_field(name, limit)
                return value
        return 1

    def _bias(self, given: list[Any] | dict[str, Any]) -> tuple[tuple[int, float], ...]:
        """``[[id or text, number or false], ...]`` or an object; malformed entries are skipped."""
        pairs = list(given.items()) if isinstance(given, dict) else given
        biases: list[tuple[int, float]] = []
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                continue
            key, value = pair
            if value is False:
                bias = -math.inf
            elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_BIAS:
                bias = float(value)
            else:
                continue
            biases += [(token, bias) for token in self._bias_tokens(key, isinstance(given, dict))]
        return tuple(biases)

    def _bias_tokens(self, key: Any, is_object: bool) -> list[int]:
        if is_object and isinstance(key, str) and key.lstrip("-").isascii() and key.lstrip("-").isdigit():
            key = int(key)
        if isinstance(key, int) and not isinstance(key, bool):
            return [key] if 0 <= key < self.n_vocab else []
        return [int(token) for token in self._encode(key)] if isinstance(key, str) else []


def sampler_chain(given: Any) -> tuple[str, ...]:
    """The chain a list of names or a string of letters asks for; unknown names are ignored.

    The engine applies its samplers in one order, so a chain is honoured when it keeps that order (leaving a
    sampler out switches it off) and refused with 501 otherwise.
    """
    if isinstance(given, str):
        names = [_LETTERS[letter] for letter in given if letter in _LETTERS]
    else:
        known = (_ALIASES.get(name.strip(), name.strip()) for name in given)
        names = [name for name in known if name in CHAIN]
    positions = [CHAIN.index(name) for name in names if name not in _ABSENT]
    if positions != sorted(set(positions)):
        raise ApiError(501, f"Field 'samplers': only the order {', '.join(CHAIN)} is supported yet")
    return tuple(names)


def _without(sampling: SamplingParams, chain: tuple[str, ...]) -> SamplingParams:
    for name, neutral in _NEUTRAL.items():
        if name not in chain:
            sampling = replace(sampling, **neutral)  # type: ignore[arg-type]
    return sampling


def _parse_bias_flag(given: str, n_vocab: int) -> tuple[int, float]:
    for sign in "+-":
        token, found, amount = given.partition(sign)
        if found and token.isdigit() and int(token) < n_vocab:
            try:
                return int(token), float(sign + amount)
            except ValueError:
                break
    raise UsageError(f"--logit-bias: expected ID+BIAS or ID-BIAS with an id below {n_vocab}, got {given!r}")


def _seed(given: int) -> int:
    return -1 if given == -1 else given & 0xFFFFFFFF


def _clamp(value: float) -> float:
    return min(1.0, max(0.0, value))


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)
