"""Request bodies as types. Decoding validates; a wrong field becomes a 400 that begins ``Field 'x': ``.

``null`` means absent, unknown keys are ignored. `Annotated` ranges are llama-server's hard limits (outside:
400); what it clamps silently is clamped in `daemon.settings`. Fields of features that emberd does not have
yet are declared too, so that asking for them is an error (`daemon.unsupported`) and never silently ignored.
"""

import codecs
import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from daemon import shapes
from daemon.errors import ApiError, invalid, invalid_field

INT_MAX = 2**31 - 1
MAX_PROBS = 128

Int = Annotated[int, Meta(ge=-(2**31), le=INT_MAX)]
NonNegative = Annotated[int, Meta(ge=0, le=INT_MAX)]
OrMinusOne = Annotated[int, Meta(ge=-1, le=INT_MAX)]
Positive = Annotated[int, Meta(ge=1, le=INT_MAX)]
Probs = Annotated[int, Meta(ge=0, le=MAX_PROBS)]
StopStrings = Annotated[list[Annotated[str, Meta(max_length=4096)]], Meta(max_length=256)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class CompletionFields(msgspec.Struct, kw_only=True):
    """The fields that every generating route understands (http-api.md 14.2)."""

    stream: bool | None = None
    n_predict: OrMinusOne | None = None
    max_completion_tokens: OrMinusOne | None = None
    max_tokens: OrMinusOne | None = None
    n_keep: OrMinusOne | None = None
    n_discard: NonNegative | None = None
    stop: str | StopStrings | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: Int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_last_n: OrMinusOne | None = None
    repeat_penalty: Annotated[float, Meta(gt=0)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_keep: NonNegative | None = None
    post_sampling_probs: bool | None = None
    logit_bias: Annotated[list[Any] | dict[str, Any] | None, shapes.LOGIT_BIAS] = None
    ignore_eos: bool | None = None
    samplers: list[str] | str | None = None
    cache_prompt: bool | None = None
    store: bool | None = None
    id_slot: OrMinusOne | None = None
    n_cmpl: Positive | None = None
    n: Positive | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None
    sse_ping_interval: OrMinusOne | None = None
    stream_options: StreamOptions | None = None
    verbose: bool | None = None
    echo: bool | None = None

    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    tfs_z: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    penalty_prompt: str | list[int] | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: NonNegative | None = None
    dry_penalty_last_n: OrMinusOne | None = None
    dry_sequence_breakers: Annotated[list[str], Meta(min_length=1)] | None = None
    mirostat: Int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    adaptive_target: float | None = None
    adaptive_decay: Annotated[float, Meta(ge=0, le=0.99)] | None = None
    adaptive_updt_w_cur: bool | None = None
    grammar: str | None = None
    json_schema: Any = None
    grammar_lazy: bool | None = None
    grammar_triggers: list[Any] | None = None
    preserved_tokens: list[Any] | None = None
    n_cache_reuse: NonNegative | None = None
    n_indent: NonNegative | None = None
    t_max_predict_ms: OrMinusOne | None = None
    lora: list[Any] | None = None
    reasoning_budget_tokens: OrMinusOne | None = None
    thinking_budget_tokens: OrMinusOne | None = None
    reasoning_control: bool | None = None
    reasoning_format: str | None = None
    system_prompt: Annotated[Any, shapes.SYSTEM_PROMPT] = None
    banned_strings: list[str] | None = None
    banned_regex: list[str] | None = None
    banned_regex_case_insensitive: list[str] | None = None
    expiring_logit_bias: list[Any] | None = None
    allowlist_piece_array: list[Any] | None = None
    image_data: list[Any] | None = None


def native_fields(request: CompletionFields) -> dict[str, Any]:
    """What `request` says about generation, to build a request of another API from it."""
    return {name: getattr(request, name) for name in CompletionFields.__struct_fields__}


class CompletionRequest(CompletionFields, kw_only=True):
    """``POST /completion``: the prompt in any of its shapes (see `daemon.prompts`)."""

    prompt: Annotated[Any, shapes.PROMPT] = None
    n_probs: Probs | None = None
    logprobs: Probs | None = None


class TextCompletionRequest(CompletionRequest, kw_only=True):
    """``POST /v1/completions``: OpenAI's text completion, with every native field."""

    model: str | None = None
    suffix: str | None = None
    best_of: NonNegative | None = None


class ChatRequest(CompletionFields, kw_only=True):
    """``POST /v1/chat/completions``. `daemon.chat` checks `messages`, for it knows what templates take."""

    messages: Annotated[Any, shapes.CHAT_MESSAGES] = None
    model: str | None = None
    n_probs: Probs | None = None
    logprobs: bool | None = None
    top_logprobs: Probs | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str | None = None


class MessagesRequest(CompletionFields, kw_only=True):
    """``POST /v1/messages``: Anthropic's, with every native field. See `daemon.anthropic_request`."""

    messages: Annotated[Any, shapes.ANTHROPIC_MESSAGES] = None
    model: str | None = None
    system: Annotated[Any, shapes.SYSTEM] = None
    stop_sequences: StopStrings | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    thinking: Any = None
    metadata: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


class Reasoning(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(CompletionFields, kw_only=True):
    """``POST /v1/responses``: OpenAI's, with every native field. See `daemon.responses_request`."""

    input: Annotated[Any, shapes.RESPONSES_INPUT] = None
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: OrMinusOne | None = None
    previous_response_id: str | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


class InputExtra(msgspec.Struct):
    """`daemon.infill` checks `text`."""

    text: Any = None
    filename: str | None = None


class InfillRequest(CompletionRequest, kw_only=True):
    """``POST /infill``: what stands before and after the gap, and other files for context."""

    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[InputExtra] | None = None


class PropsRequest(msgspec.Struct, kw_only=True):
    system_prompt: Annotated[Any, shapes.SYSTEM_PROMPT] = None


class ControlRequest(msgspec.Struct, kw_only=True):
    id: str | None = None
    action: str | None = None


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """``POST /embedding``, ``/embeddings`` and ``/v1/embeddings``; the texts in any shape of prompts."""

    input: Annotated[Any, shapes.PROMPT] = None
    content: Annotated[Any, shapes.PROMPT] = None
    model: str | None = None
    encoding_format: str | None = None
    embd_normalize: Annotated[int, Meta(ge=-1, le=INT_MAX)] | None = None
    dimensions: Any = None


class RerankRequest(msgspec.Struct, kw_only=True):
    """``POST /rerank``: Jina's `documents` or TEI's `texts`."""

    query: Annotated[Any, shapes.QUERY] = None
    documents: Annotated[Any, shapes.TEXTS] = None
    texts: Annotated[Any, shapes.TEXTS] = None
    model: str | None = None
    top_n: NonNegative | None = None
    return_text: bool | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    content: Annotated[Any, shapes.TOKENS_AND_TEXTS] = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    tokens: list[Int] | None = None


class SlotActionRequest(msgspec.Struct, kw_only=True):
    filename: str | None = None


class DeletePromptRequest(msgspec.Struct):
    filename: str


class RenamePromptRequest(msgspec.Struct):
    old_filename: str
    new_filename: str


class ForgetRequest(ChatRequest, kw_only=True):
    """Either `messages`, with all that a chat request may say about them, or a `prompt` of /completion."""

    prompt: Annotated[Any, shapes.PROMPT] = None


_AT = re.compile(r"(?P<text>.*?) - at `\$(?P<path>[^`]*)`$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")

_EXACT = 2**53

T = TypeVar("T", bound=msgspec.Struct)


def decode(body: bytes, type: type[T]) -> T:
    """Decode and check a body. Raises ApiError 400 with the name of the first wrong field.

    A byte order mark passes, and a whole number may be written as 2.0, which JSON does not tell from 2.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    try:
        try:
            return msgspec.json.decode(body, type=type)
        except msgspec.ValidationError as error:
            if "Expected `int" not in str(error):
                raise
            return msgspec.convert(_whole(msgspec.json.decode(body)), type)
    except msgspec.ValidationError as error:
        raise _field_error(body, str(error)) from None
    except msgspec.DecodeError as error:
        raise invalid(f"JSON body cannot be parsed: {error}") from None
    except RecursionError:
        raise invalid("JSON body is nested too deeply") from None


def _whole(value: Any) -> Any:
    """The same value with integers for floats that are whole."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return value


def _field_error(body: bytes, message: str) -> ApiError:
    match = _AT.match(message)
    if match is None:
        return invalid(f"JSON body: {_plain(message)}")
    path = match["path"].removeprefix(".")
    text = _plain(match["text"])
    got = _value_at(body, match["path"])
    if "got" not in text and isinstance(got, int | float | bool | str):
        text += f", but got {msgspec.json.encode(got).decode()[:80]}"
    return invalid_field(path, text)


def _plain(message: str) -> str:
    return message.replace("`", "").replace(" | null", "")


def _value_at(body: bytes, path: str) -> Any:
    """The value a validation message points at, None when it cannot be followed."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    for key, index in _STEP.findall(path):
        if key and isinstance(value, dict):
            value = value.get(key)
        elif index and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return value
