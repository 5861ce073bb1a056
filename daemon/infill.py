"""Prompts that make a model fill a gap between two texts (http-api.md 16)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from daemon.errors import ApiError, invalid, invalid_field
from daemon.requests import InfillRequest, InputExtra
from daemon.text import as_tokens, encode_text
from runtime.engine.messages import Tokens
from runtime.tokenizers import Tokenizer

_SNIPPET = "\n\n--- snippet ---\n\n"
_ROLES = (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle"))


@dataclass(frozen=True, slots=True)
class InfillLimits:
    """Tokens: the texts around the gap share a batch, three parts of it before the gap and one after it;
    the other files get what is left of the context. `suffix_first` puts the text after the gap first.
    """

    n_ctx: int
    n_batch: int
    n_predict: int
    suffix_first: bool = False


def require_infill(tokenizer: Tokenizer) -> None:
    """Raise ApiError 501 for a model that was not trained to fill gaps."""
    missing = [name for role, name in _ROLES if role not in tokenizer.fim_ids]
    if missing:
        what = " ".join(f"{name} token is missing." for name in missing)
        raise ApiError(501, f"Infill is not supported by this model: {what}")


def check_infill(body: InfillRequest, tokenizer: Tokenizer) -> None:
    """Raise ApiError: 501 for a model that was not trained for this, 400 for what is malformed."""
    require_infill(tokenizer)
    for name in ("input_prefix", "input_suffix"):
        if getattr(body, name) is None:
            raise invalid(f'"{name}" is required')
    if body.prompt is not None and not isinstance(body.prompt, str):
        raise invalid_field("prompt", "Expected a string")
    for extra in body.input_extra or ():
        if not isinstance(extra.text, str):
            raise invalid('extra_context chunk must contain a "text" field with a string value')


def infill_prompt(body: InfillRequest, tokenizer: Tokenizer, limits: InfillLimits) -> Tokens:
    """Other files, BOS, then the texts around the gap, each behind its own token.

    What is too long loses its far end: the prefix its beginning, the suffix its end, other files the first.
    """
    prompt = _encode(body.prompt or "", tokenizer)
    prefix = _encode(body.input_prefix or "", tokenizer)
    suffix = _encode(body.input_suffix or "", tokenizer)
    quarter = limits.n_batch // 4
    prefix = prefix[max(0, len(prefix) - 3 * quarter) :]
    suffix = suffix[: max(0, quarter - (2 + len(prompt)))]
    extra = _extra(body.input_extra or (), tokenizer)
    room = max(0, limits.n_ctx - limits.n_batch - 2 * max(0, limits.n_predict))
    around = _around([*prefix, *prompt], suffix, tokenizer, suffix_first=limits.suffix_first)
    return as_tokens([*extra[max(0, len(extra) - room) :], *around])


def gap_prompt(before: str, after: str, tokenizer: Tokenizer, *, suffix_first: bool) -> Tokens:
    """BOS, then two texts around a gap, whole: what does not fit is an error later, not cut."""
    prefix, suffix = _encode(before, tokenizer), _encode(after, tokenizer)
    return as_tokens(_around(prefix, suffix, tokenizer, suffix_first=suffix_first))


def _around(
    prefix: Iterable[int], suffix: Iterable[int], tokenizer: Tokenizer, *, suffix_first: bool
) -> list[int]:
    fim = tokenizer.fim_ids
    before, after = [fim["fim_pre"], *prefix], [fim["fim_suf"], *suffix]
    around = [*after, *before] if suffix_first else [*before, *after]
    return [*tokenizer.prefix_ids, *around, fim["fim_mid"]]


def _extra(extras: Sequence[InputExtra], tokenizer: Tokenizer) -> Tokens:
    """The other files, in the layout of repositories if the model knows that."""
    fim = tokenizer.fim_ids
    parts: list[Tokens] = []
    if "fim_rep" in fim:
        parts += [as_tokens((fim["fim_rep"],)), _encode("myproject\n", tokenizer)]
    for extra in extras:
        if "fim_sep" in fim:
            parts += [as_tokens((fim["fim_sep"],)), _encode(f"{extra.filename or 'tmp'}\n", tokenizer)]
        else:
            parts.append(_encode(_SNIPPET, tokenizer))
        parts.append(_encode(extra.text, tokenizer))
    if "fim_sep" in fim:
        parts += [as_tokens((fim["fim_sep"],)), _encode("filename\n", tokenizer)]
    return np.concatenate(parts) if parts else as_tokens(())


def _encode(text: str, tokenizer: Tokenizer) -> Tokens:
    return encode_text(text, tokenizer, add_special=False, parse_special=False)
