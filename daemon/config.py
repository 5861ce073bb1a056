"""The daemon's configuration: one frozen value, built once from the command line and the environment."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from daemon.flags import Reader, UsageError
from daemon.machine import available_memory, usable_cores
from daemon.options import OPTIONS
from tools.store_admin import default_store_path

DEFAULT_SLOTS = 4
RAM_SHARE = 0.6


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting; `daemon.options` documents each. Sizes are bytes, durations seconds, counts tokens.

    After `build_config` nothing is left to be decided: automatic values are replaced by what they mean here,
    except `n_ctx` 0, `n_parallel` shares and rotations that are None, which need the model.
    """

    model: str
    hf_repo: str
    hf_file: str
    hf_token: str
    model_url: str
    offline: bool
    alias: str
    tags: str
    override_kv: tuple[str, ...]
    rope_scaling: str
    rope_scale: float
    rope_freq_base: float
    rope_freq_scale: float
    yarn_orig_ctx: int
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_slow: float
    yarn_beta_fast: float
    threads: int
    threads_batch: int
    repack: bool
    n_ctx: int
    n_parallel: int
    n_batch: int
    n_ubatch: int
    cache_type_k: str
    cache_type_v: str
    rotate_k: bool | None
    rotate_v: bool | None
    ram_budget: int
    slot_prompt_similarity: float
    ctx_checkpoints: int
    ctx_checkpoints_interval: int
    ctx_checkpoints_tolerance: int
    ctx_checkpoints_eviction: str
    cache_prompt: bool

    store: str
    store_path: str
    store_budget: int
    slot_save_path: str

    host: str
    port: int
    reuse_port: bool
    timeout: int
    request_timeout: int
    allowed_hosts: str
    api_prefix: str
    api_keys: tuple[str, ...]
    api_key_file: str
    ssl_key_file: str
    ssl_cert_file: str
    cors_origins: str
    cors_methods: str
    cors_headers: str
    cors_credentials: bool
    static_path: str
    ui: bool
    metrics: bool
    props: bool
    slots: bool
    spm_infill: bool
    embeddings: bool
    reranking: bool
    pooling: str
    embd_normalize: int
    sse_ping_interval: int
    queue_size: int
    drain_timeout: int
    log_format: str
    log_jsonl: bool
    log_file: str
    log_disable: bool
    log_colors: str
    verbosity: int
    verbose: bool

    system_prompt_file: str
    chat_template: str
    chat_template_file: str
    chat_template_kwargs: str
    prefill_assistant: bool
    reasoning: str
    reasoning_effort: str

    n_predict: int
    reverse_prompt: tuple[str, ...]
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    ignore_eos: bool
    logit_bias: tuple[str, ...]
    samplers: str
    sampler_seq: str

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.host.split(",") if part.strip())

    @property
    def aliases(self) -> tuple[str, ...]:
        """Names given with --alias, sorted: the first one is shown."""
        return tuple(sorted({part.strip() for part in self.alias.split(",") if part.strip()}))

    @property
    def template_variables(self) -> dict[str, Any]:
        """--chat-template-kwargs and the reasoning flags, as variables of the chat template."""
        variables: dict[str, Any] = _json_object("--chat-template-kwargs", self.chat_template_kwargs)
        if self.reasoning != "auto":
            variables.setdefault("enable_thinking", self.reasoning == "on")
        if self.reasoning_effort not in ("", "default"):
            variables.setdefault("reasoning_effort", self.reasoning_effort)
        return variables

    def slot_context(self, n_ctx_train: int, affordable: Callable[[int], int]) -> tuple[int, str]:
        """Tokens of one slot, and why when nobody asked for that number.

        With ``-c 0`` each slot gets the model's trained context, bounded by --ram-budget over all slots:
        ``affordable(n_bytes)`` is the context that a slot can have in so many.
        """
        if self.n_ctx:
            return max(1, self.n_ctx // self.n_parallel), ""
        n_ctx = affordable(self.ram_budget // self.n_parallel)
        if n_ctx >= n_ctx_train:
            return n_ctx_train, f"context of {n_ctx_train} tokens per slot, as the model was trained"
        return max(256, n_ctx), (
            f"context of {max(256, n_ctx)} tokens per slot instead of the model's {n_ctx_train}: "
            f"{self.n_parallel} slots within --ram-budget of {self.ram_budget / 2**30:.1f} GiB"
        )


_RENAMED = {"LLAMA_ARG_MODEL_ALIAS": "LLAMA_ARG_ALIAS"}
"""ik_llama.cpp's names of variables that llama.cpp calls otherwise."""


def build_config(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[Config, tuple[str, ...]]:
    """The configuration and the warnings to show. Raises UsageError with one line that names the flag."""
    environ = {_RENAMED.get(name, name): value for name, value in environ.items()} | dict(environ)
    parsed = Reader(OPTIONS).read(argv, environ)
    values = parsed.values
    warnings = (*parsed.warnings, *_settle_model(values, Reader(OPTIONS).read(argv, {}).values))
    if bool(values["ssl_key_file"]) != bool(values["ssl_cert_file"]):
        raise UsageError("--ssl-key-file and --ssl-cert-file belong together")
    if values["log_jsonl"]:
        values["log_format"] = "json"
    if values["threads"] <= 0:
        values["threads"] = usable_cores()
    if values["threads_batch"] <= 0:
        values["threads_batch"] = values["threads"]
    if values["n_parallel"] == 0:
        raise UsageError("--parallel: expected at least one slot, got '0'")
    if values["n_parallel"] < 0:
        values["n_parallel"] = DEFAULT_SLOTS
    if values["ram_budget"] == 0:
        values["ram_budget"] = int(available_memory() * RAM_SHARE)
    if environ.get("LLAMA_ATTN_ROT_DISABLE", "0") not in ("", "0"):
        values.update({field: False for field in ("rotate_k", "rotate_v") if values[field] is None})
    values["api_prefix"] = "/".join(["", *values["api_prefix"].split("/")]).replace("//", "/").rstrip("/")
    values["store_path"] = values["store_path"] or str(default_store_path(environ))
    values["api_keys"] = tuple(key for given in values["api_keys"] for key in given.split(",") if key)
    config = msgspec.convert(values, Config)
    _ = config.template_variables
    return config, warnings


def _settle_model(values: dict[str, Any], on_line: Mapping[str, Any]) -> tuple[str, ...]:
    """Leave one of the ways to name a model: -m before -hf before -mu, the command line before variables.

    Returns a warning for each setting that this leaves without an effect.
    """
    flags = {"model": "--model", "hf_repo": "--hf-repo", "model_url": "--model-url"}
    given = on_line if any(on_line[field] for field in flags) else values
    kept = next((field for field in flags if given[field]), "")
    if not kept:
        raise UsageError("no model: give one with -m FILE (emberd fetch smollm2 gets a small one)")
    dropped = [field for field in flags if field != kept and values[field]]
    if kept != "hf_repo" and values["hf_file"]:
        flags["hf_file"] = "--hf-file"
        dropped.append("hf_file")
    values.update(dict.fromkeys(dropped, ""))
    return tuple(f"{flags[one]} has no effect: the model is given with {flags[kept]}" for one in dropped)


def read_api_keys(config: Config) -> tuple[str, ...]:
    """Keys of --api-key and --api-key-file. Raises OSError when the file cannot be read."""
    keys = list(config.api_keys)
    if config.api_key_file:
        for line in Path(config.api_key_file).read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.startswith("#"):
                keys.append(line.strip())
    return tuple(keys)


def _json_object(flag: str, given: str) -> dict[str, Any]:
    if not given:
        return {}
    try:
        return msgspec.json.decode(given, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise UsageError(f"{flag}: expected a JSON object, got {given!r}") from None
