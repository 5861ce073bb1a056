"""Every flag and variable that llama-server's and ik_llama.cpp's users have in unit files and scripts.

A row gives the spellings, the variable without ``LLAMA_ARG_``, a value ("" for a switch), and what comes of
it: the setting it changes, or None when it is accepted with a warning or has nothing to do.
"""

import re

import pytest

from daemon.config import Config, build_config
from daemon.options import OPTIONS
from tests.shared_data import shared

EFFECT: list[tuple[str, str, str, str]] = [
    ("--alias -a", "ALIAS", "x", "alias"),
    ("--tags", "TAGS", "x", "tags"),
    ("--ctx-size -c", "CTX_SIZE", "512", "n_ctx"),
    ("--predict --n-predict -n", "N_PREDICT", "5", "n_predict"),
    ("--batch-size -b", "BATCH", "64", "n_batch"),
    ("--ubatch-size -ub", "UBATCH", "64", "n_ubatch"),
    ("--threads -t", "THREADS", "3", "threads"),
    ("--no-repack -nr", "NO_REPACK", "", "repack"),
    ("--parallel -np", "N_PARALLEL", "3", "n_parallel"),
    ("--cache-type-k -ctk", "CACHE_TYPE_K", "q8_0", "cache_type_k"),
    ("--cache-type-v -ctv", "CACHE_TYPE_V", "q8_0", "cache_type_v"),
    ("--k-cache-hadamard -khad", "K_CACHE_HADAMARD", "", "rotate_k"),
    ("--v-cache-hadamard -vhad", "V_CACHE_HADAMARD", "", "rotate_v"),
    ("--override-kv", "", "a=int:1", "override_kv"),
    ("--host", "HOST", "127.0.0.2", "host"),
    ("--port", "PORT", "81", "port"),
    ("--timeout -to", "TIMEOUT", "7", "timeout"),
    ("--api-prefix", "API_PREFIX", "/x", "api_prefix"),
    ("--api-key", "", "k", "api_keys"),
    ("--api-key-file", "API_KEY_FILE", "f", "api_key_file"),
    ("--cors-origins", "CORS_ORIGINS", "localhost", "cors_origins"),
    ("--cors-methods", "CORS_METHODS", "GET", "cors_methods"),
    ("--cors-headers", "CORS_HEADERS", "X", "cors_headers"),
    ("--no-cors-credentials", "NO_CORS_CREDENTIALS", "", "cors_credentials"),
    ("--path", "STATIC_PATH", "d", "static_path"),
    ("--metrics", "ENDPOINT_METRICS", "", "metrics"),
    ("--no-slots --slots-endpoint-disable", "NO_ENDPOINT_SLOTS", "", "slots"),
    ("--props", "ENDPOINT_PROPS", "", "props"),
    ("--slot-save-path", "", "d", "slot_save_path"),
    ("--slot-prompt-similarity -sps", "", "0.5", "slot_prompt_similarity"),
    ("--ctx-checkpoints -ctxcp --swa-checkpoints", "CTX_CHECKPOINTS", "8", "ctx_checkpoints"),
    ("--ctx-checkpoints-interval", "", "-1", "ctx_checkpoints_interval"),
    ("--ctx-checkpoints-tolerance", "", "0", "ctx_checkpoints_tolerance"),
    ("--ctx-checkpoints-eviction", "", "fifo", "ctx_checkpoints_eviction"),
    ("--no-cache-prompt", "NO_CACHE_PROMPT", "", "cache_prompt"),
    ("--embeddings --embedding", "EMBEDDINGS", "", "embeddings"),
    ("--pooling", "POOLING", "mean", "pooling"),
    ("--embd-normalize", "", "1", "embd_normalize"),
    ("--reranking --rerank", "RERANKING", "", "reranking"),
    ("--chat-template", "CHAT_TEMPLATE", "chatml", "chat_template"),
    ("--chat-template-file", "CHAT_TEMPLATE_FILE", "f", "chat_template_file"),
    ("--chat-template-kwargs", "CHAT_TEMPLATE_KWARGS", "{}", "chat_template_kwargs"),
    ("--reasoning -rea", "REASONING", "off", "reasoning"),
    ("--reasoning-effort", "REASONING_EFFORT", "low", "reasoning_effort"),
    ("--no-prefill-assistant", "NO_PREFILL_ASSISTANT", "", "prefill_assistant"),
    ("--system-prompt-file -spf", "", "f", "system_prompt_file"),
    ("--spm-infill", "", "", "spm_infill"),
    ("--no-ui --no-webui", "NO_UI", "", "ui"),
    ("--sse-ping-interval", "SSE_PING_INTERVAL", "9", "sse_ping_interval"),
    ("--reuse-port", "REUSE_PORT", "", "reuse_port"),
    ("--offline", "OFFLINE", "", "offline"),
    ("--seed -s", "", "4", "seed"),
    ("--temp --temperature", "TEMPERATURE", "0.1", "temperature"),
    ("--top-k", "TOP_K", "3", "top_k"),
    ("--top-p", "TOP_P", "0.3", "top_p"),
    ("--min-p", "MIN_P", "0.3", "min_p"),
    ("--typical", "", "0.3", "typical_p"),
    ("--repeat-last-n", "", "3", "repeat_last_n"),
    ("--repeat-penalty", "REPEAT_PENALTY", "1.2", "repeat_penalty"),
    ("--presence-penalty", "PRESENCE_PENALTY", "1", "presence_penalty"),
    ("--frequency-penalty", "FREQUENCY_PENALTY", "1", "frequency_penalty"),
    ("--ignore-eos", "", "", "ignore_eos"),
    ("--logit-bias -l", "", "5+1", "logit_bias"),
    ("--samplers", "", "top_k;temperature", "samplers"),
    ("--sampling-seq --sampler-seq", "", "kt", "sampler_seq"),
    ("--reverse-prompt -r", "", "User:", "reverse_prompt"),
    ("--rope-scaling", "ROPE_SCALING_TYPE", "yarn", "rope_scaling"),
    ("--rope-scale", "ROPE_SCALE", "2", "rope_scale"),
    ("--rope-freq-base", "ROPE_FREQ_BASE", "10000", "rope_freq_base"),
    ("--rope-freq-scale", "ROPE_FREQ_SCALE", "0.5", "rope_freq_scale"),
    ("--yarn-orig-ctx", "YARN_ORIG_CTX", "4096", "yarn_orig_ctx"),
    ("--yarn-ext-factor", "YARN_EXT_FACTOR", "1", "yarn_ext_factor"),
    ("--yarn-attn-factor", "YARN_ATTN_FACTOR", "1", "yarn_attn_factor"),
    ("--yarn-beta-slow", "YARN_BETA_SLOW", "1", "yarn_beta_slow"),
    ("--yarn-beta-fast", "YARN_BETA_FAST", "32", "yarn_beta_fast"),
    ("--log-file", "LOG_FILE", "f", "log_file"),
    ("--log-format", "", "json", "log_format"),
    ("--log-disable", "", "", "log_disable"),
    ("--log-colors", "LOG_COLORS", "on", "log_colors"),
    ("--log-verbosity -lv --verbosity", "LOG_VERBOSITY", "4", "verbosity"),
    ("--verbose -v", "", "", "verbose"),
]

# flags whose effect has not come yet or has no meaning on a CPU: each is told in one line
WARNING: list[tuple[str, str, str]] = [
    ("--gpu-layers -ngl", "N_GPU_LAYERS", "99"),
    ("--split-mode -sm", "SPLIT_MODE", "row"),
    ("--tensor-split -ts", "TENSOR_SPLIT", "1,1"),
    ("--main-gpu -mg", "MAIN_GPU", "1"),
    ("--device -dev", "DEVICE", "CUDA0"),
    ("--override-tensor -ot", "OVERRIDE_TENSOR", "x=CPU"),
    ("--cpu-moe -cmoe", "CPU_MOE", ""),
    ("--n-cpu-moe -ncmoe", "N_CPU_MOE", "4"),
    ("--rpc", "RPC", "host:1"),
    ("--context-shift", "CONTEXT_SHIFT", ""),
    ("--cache-reuse", "CACHE_REUSE", "256"),
    ("--grp-attn-n -gan", "", "2"),
    ("--cache-ram -cram", "CACHE_RAM", "100"),
    ("--docker-repo -dr", "DOCKER_REPO", "x"),
    ("--lora", "", "a.gguf"),
    ("--control-vector", "", "a.gguf"),
    ("--mmproj -mm", "MMPROJ", "a.gguf"),
    ("--media-path", "", "d"),
    ("--spec-type", "SPEC_TYPE", "ngram-mod"),
    ("--spec-draft-model -md --model-draft", "SPEC_DRAFT_MODEL", "a.gguf"),
    ("--grammar", "", "root ::= x"),
    ("--grammar-file", "", "f"),
    ("--json-schema -j", "", "{}"),
    ("--json-schema-file -jf", "", "f"),
    ("--reasoning-format", "THINK", "deepseek"),
    ("--reasoning-budget", "THINK_BUDGET", "5"),
    ("--sleep-idle-seconds", "", "5"),
    ("--models-dir", "MODELS_DIR", "d"),
    ("--models-preset", "MODELS_PRESET", "f"),
    ("--models-max", "MODELS_MAX", "2"),
    ("--mirostat", "", "2"),
    ("--xtc-probability", "", "0.5"),
    ("--dry-multiplier", "", "0.5"),
    ("--dynatemp-range", "", "0.5"),
    ("--adaptive-target", "", "0.5"),
    ("--sql-save-file", "", "f"),
    ("--swa-compress", "", ""),
    ("-ctk-first", "", "q8_0,4"),
    ("-ctv-last", "", "q8_0,4"),
    ("--tools", "TOOLS", "all"),
    ("--ui-mcp-proxy", "UI_MCP_PROXY", ""),
]

# what emberd does anyway, or what only shapes a feature that is off: nothing to say
SILENT: list[tuple[str, str, str]] = [
    ("--cont-batching -cb", "CONT_BATCHING", ""),
    ("--flash-attn -fa", "FLASH_ATTN", "on"),
    ("--defrag-thold -dt", "DEFRAG_THOLD", "0.1"),
    ("--threads-http", "THREADS_HTTP", "4"),
    ("--jinja", "JINJA", ""),
    ("--kv-unified -kvu", "KV_UNIFIED", ""),
    ("--swa-full", "SWA_FULL", ""),
    ("--keep", "", "5"),
    ("--no-context-shift", "", ""),
    ("--cache-ram-similarity -crs", "", "0.5"),
    ("--cache-ram-n-min -cram-n-min", "", "0"),
    ("--checkpoint-min-step -cms", "CHECKPOINT_MIN_SPACING_NT", "8192"),
    ("--warmup", "", ""),
    ("--no-warmup", "", ""),
    ("--run-time-repack -rtr", "", ""),
    ("--send-done", "", ""),
    ("--log-prefix", "LOG_PREFIX", ""),
    ("--log-timestamps", "LOG_TIMESTAMPS", ""),
]

ROWS: list[tuple[str, str, str, str | None, bool]] = [
    *((names, env, value, field, False) for names, env, value, field in EFFECT),
    *((names, env, value, None, True) for names, env, value in WARNING),
    *((names, env, value, None, False) for names, env, value in SILENT),
]


def ways(names: str, env: str, value: str) -> list[tuple[list[str], dict[str, str]]]:
    values = [value] if value else []
    given: list[tuple[list[str], dict[str, str]]] = [([name, *values], {}) for name in names.split()]
    return [*given, ([], {f"LLAMA_ARG_{env}": value or "1"})] if env else given


PLAIN, _ = build_config(["-m", "x"], {})


@pytest.mark.parametrize(("names", "env", "value", "field", "warns"), ROWS, ids=[row[0] for row in ROWS])
def test_a_flag_and_its_variable_do_the_same(
    names: str, env: str, value: str, field: str | None, warns: bool
) -> None:
    outcomes = []
    for argv, environ in ways(names, env, value):
        config, warnings = build_config(["-m", "x", *argv], environ)
        assert len(warnings) == warns, (argv, environ, warnings)
        outcomes.append(config)
    assert len({changed(config) for config in outcomes}) == 1
    assert changed(outcomes[0]) == (() if field is None else (field,))


def changed(config: Config) -> tuple[str, ...]:
    """The settings that differ from those of a command line without the flag, less what follows from them."""
    return tuple(
        name
        for name in Config.__struct_fields__
        if name not in ("ram_budget", "threads_batch") and getattr(config, name) != getattr(PLAIN, name)
    )


@pytest.mark.parametrize("given", ["0", "off", "false", "disabled"])
def test_negatable_variables_are_off_in_all_spellings(given: str) -> None:
    assert build_config(["-m", "x"], {"LLAMA_ARG_ENDPOINT_SLOTS": given})[0].slots is False


def test_the_key_of_the_environment_and_the_model_are_read() -> None:
    config, _ = build_config([], {"LLAMA_ARG_MODEL": "m.gguf", "LLAMA_API_KEY": "k"})
    assert (config.model, config.api_keys) == ("m.gguf", ("k",))


def test_settings_that_follow_from_others() -> None:
    config, _ = build_config(["-m", "x", "-t", "3"], {})
    assert (config.threads, config.threads_batch) == (3, 3)
    assert build_config(["-m", "x", "-t", "3", "-tb", "2"], {})[0].threads_batch == 2
    assert build_config(["-m", "x", "--log-jsonl"], {})[0].log_format == "json"
    assert build_config(["-m", "x"], {"LLAMA_ARG_LOG_JSONL": "1"})[0].log_format == "json"


def test_key_and_certificate_are_given_together() -> None:
    argv = ["-m", "x", "--ssl-key-file", "k", "--ssl-cert-file", "c"]
    config, _ = build_config(argv, {})
    by_variable, _ = build_config(
        ["-m", "x"], {"LLAMA_ARG_SSL_KEY_FILE": "k", "LLAMA_ARG_SSL_CERT_FILE": "c"}
    )
    assert (config.ssl_key_file, config.ssl_cert_file) == ("k", "c")
    assert by_variable.ssl_key_file == "k"


def test_ik_llama_cpps_name_of_a_variable_is_known_and_llama_cpps_wins() -> None:
    assert build_config(["-m", "x"], {"LLAMA_ARG_MODEL_ALIAS": "a"})[0].alias == "a"
    both = {"LLAMA_ARG_MODEL_ALIAS": "a", "LLAMA_ARG_ALIAS": "b"}
    assert build_config(["-m", "x"], both)[0].alias == "b"


TOOLS_SECTION = re.compile(r"^## 10\..*?(?=^## 11\.)", re.DOTALL | re.MULTILINE)
PLACEHOLDERS = {"--no-", "-autoload", "-last", "-max", "-preset", "LLAMA_ARG_NO_X"}
"""Halves of names that stand behind a slash, and what stands for many names."""


def test_every_flag_and_variable_of_the_inventory_is_known() -> None:
    """All that stands in backquotes: flags, and variables except prefixes of families."""
    inventory = TOOLS_SECTION.sub("", shared("specs/features.md").read_text())
    words = {word for quoted in re.findall(r"`([^`]+)`", inventory) for word in re.split(r"[,/ ]+", quoted)}
    flags = {word for word in words if re.fullmatch(r"--?[a-zA-Z][\w-]*", word)}
    variables = set(re.findall(r"\bLLAMA_ARG_[A-Z_]+[A-Z]\b", inventory))
    assert len(flags) > 150 and len(variables) > 40
    names = {name for flag in OPTIONS for name in (*flag.names, *flag.off)}
    known = {flag.env for flag in OPTIONS} | {"LLAMA_ARG_MODEL_ALIAS"}
    assert flags - names - PLACEHOLDERS == set()
    assert variables - known - PLACEHOLDERS == set()


def test_every_flag_has_an_effect_or_a_reason_why_not() -> None:
    """And the tables above name every flag that changes a setting of llama-server's."""
    tried = {name for names, *_ in ROWS for name in names.split()}
    own = ("store", "ram_budget", "queue_size", "drain_timeout", "request_timeout", "allowed_hosts")
    # these depend on each other and have tests of their own
    own += ("model", "hf_", "ssl_", "threads_batch", "log_jsonl")
    untried = [
        flag.name
        for flag in OPTIONS
        if flag.field and not flag.field.startswith(own) and tried.isdisjoint((*flag.names, *flag.off))
    ]
    assert untried == [], untried
