"""The table of flags: llama-server's own, plus what only emberd has (store, budgets, shutdown).

Rows with a field have an effect; the rest, in `daemon.options_accepted`, are understood so that a user's unit
file or script keeps working. `daemon.config.Config` holds one attribute per field.
"""

from daemon.flags import FALSE, TRUE, Flag, Value, choice, integer, number, size, text
from daemon.options_accepted import ACCEPTED

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


def _tri_state() -> Value:
    def read(given: str) -> str:
        lowered = given.lower()
        if lowered == "auto":
            return "auto"
        if lowered in TRUE or lowered in FALSE:
            return "on" if lowered in TRUE else "off"
        raise ValueError("expected on, off or auto")

    return Value("[on|off|auto]", read)


_TRI_WORDS = TRUE | FALSE | {"auto"}

# fmt: off
_MODEL = (
    Flag(("-m", "--model"), "model", text("FILE"), "", "LLAMA_ARG_MODEL", "the GGUF file to serve"),
    Flag(("-hf", "-hfr", "--hf-repo"), "hf_repo", text("USER/REPO[:QUANT]"), "", "LLAMA_ARG_HF_REPO",
         "serve a model of Hugging Face or of HF_ENDPOINT, fetched into the cache (quant: Q4_K_M, else Q8_0, "
         "else the first one)"),
    Flag(("-hff", "--hf-file"), "hf_file", text("FILE"), "", "LLAMA_ARG_HF_FILE",
         "that file of the repository, whatever its quant"),
    Flag(("-hft", "--hf-token"), "hf_token", text("TOKEN"), "", "HF_TOKEN",
         "token for gated and private repositories"),
    Flag(("-mu", "--model-url"), "model_url", text("URL"), "", "LLAMA_ARG_MODEL_URL",
         "serve the model at a web address, fetched into the cache"),
    Flag(("--offline",), "offline", None, False, "LLAMA_ARG_OFFLINE",
         "take the model of -hf or -mu from the cache, without asking anybody"),
    Flag(("-a", "--alias"), "alias", text("NAME"), "", "LLAMA_ARG_ALIAS",
         "names of the model in answers, comma separated"),
    Flag(("--tags",), "tags", text("TAGS"), "", "LLAMA_ARG_TAGS",
         "tags shown by /v1/models, comma separated"),
    Flag(("--override-kv",), "override_kv", text("KEY=TYPE:VALUE"), (), "",
         "replace a metadata value; types int, float, bool, str; repeatable", repeat=True),
    Flag(("-t", "--threads"), "threads", integer(-1, 1024), -1, "LLAMA_ARG_THREADS",
         "compute threads (-1: the cores this process may use)"),
    Flag(("-tb", "--threads-batch"), "threads_batch", integer(-1, 1024), -1, "",
         "threads of the steps that read prompts (-1: as --threads)"),
    Flag(("--repack",), "repack", None, True, "LLAMA_ARG_REPACK",
         "rearrange weights at load; without, they stay in the mapped file: less memory, slower",
         off=("-nr", "--no-repack")),
    Flag(("-c", "--ctx-size"), "n_ctx", integer(0), 0, "LLAMA_ARG_CTX_SIZE",
         "context of all slots together, in tokens (0: from the model, within --ram-budget)"),
    Flag(("-np", "--parallel"), "n_parallel", integer(-1, 256), -1, "LLAMA_ARG_N_PARALLEL",
         "slots; each gets its share of the context (-1: 4)"),
    Flag(("-b", "--batch-size"), "n_batch", integer(1, 2**20), 2048, "LLAMA_ARG_BATCH",
         "largest logical batch, in tokens"),
    Flag(("-ub", "--ubatch-size"), "n_ubatch", integer(1, 2**16), 512, "LLAMA_ARG_UBATCH",
         "largest number of tokens in one step"),
    Flag(("-ctk", "--cache-type-k"), "cache_type_k", choice(*CACHE_TYPES, metavar="TYPE"), "f16",
         "LLAMA_ARG_CACHE_TYPE_K", f"type of cached keys: {', '.join(CACHE_TYPES)}"),
    Flag(("-ctv", "--cache-type-v"), "cache_type_v", choice(*CACHE_TYPES, metavar="TYPE"), "f16",
         "LLAMA_ARG_CACHE_TYPE_V", "type of cached values, as for keys"),
    Flag(("-khad", "--k-cache-hadamard"), "rotate_k", None, None, "LLAMA_ARG_K_CACHE_HADAMARD",
         "rotate keys before they are stored (default: where they are quantised and 64 divides their size)",
         off=("--no-k-cache-hadamard",)),
    Flag(("-vhad", "--v-cache-hadamard"), "rotate_v", None, None, "LLAMA_ARG_V_CACHE_HADAMARD",
         "rotate values likewise", off=("--no-v-cache-hadamard",)),
    Flag(("--ram-budget",), "ram_budget", size(), 0, "EMBERD_RAM_BUDGET",
         "bytes for the model's memory of prompts (0: 60 % of what is available)"),
    Flag(("-sps", "--slot-prompt-similarity"), "slot_prompt_similarity", number(0, 1), 0.1, "",
         "share of a prompt that a slot must already hold to be preferred (0: off)"),
    Flag(("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"), "ctx_checkpoints", integer(-1, 4096), 32,
         "LLAMA_ARG_CTX_CHECKPOINTS",
         "points of a conversation that a recurrent model can go on from (0: none)"),
    Flag(("--ctx-checkpoints-interval",), "ctx_checkpoints_interval", integer(-(2**31)), 512, "",
         "tokens from one such point to the next (0: only at turns, the prompt's end and the answer's)"),
    Flag(("--ctx-checkpoints-tolerance",), "ctx_checkpoints_tolerance", integer(-(2**31)), 5, "",
         "tokens before a prompt's end at which there is one as well (0: none)"),
    Flag(("--ctx-checkpoints-eviction",), "ctx_checkpoints_eviction", choice("fifo", "variance", "auto"),
         "variance", "", "which goes when there are too many: the first, or so that the rest stays spread"),
    Flag(("--cache-prompt",), "cache_prompt", None, True, "LLAMA_ARG_CACHE_PROMPT",
         "reuse the common prefix of earlier prompts", off=("--no-cache-prompt",)),
)

_ROPE = (
    Flag(("--rope-scaling",), "rope_scaling", choice("none", "linear", "yarn"), "",
         "LLAMA_ARG_ROPE_SCALING_TYPE", "how positions are scaled (default: as the model says)"),
    Flag(("--rope-scale",), "rope_scale", number(0, 1e6), 0.0, "LLAMA_ARG_ROPE_SCALE",
         "factor by which the context is stretched (0: the model's)"),
    Flag(("--rope-freq-base",), "rope_freq_base", number(0, 1e12), 0.0, "LLAMA_ARG_ROPE_FREQ_BASE",
         "base frequency of rotary positions (0: the model's)"),
    Flag(("--rope-freq-scale",), "rope_freq_scale", number(0, 1e6), 0.0, "LLAMA_ARG_ROPE_FREQ_SCALE",
         "the inverse of --rope-scale (0: the model's)"),
    Flag(("--yarn-orig-ctx",), "yarn_orig_ctx", integer(0), 0, "LLAMA_ARG_YARN_ORIG_CTX",
         "context the model was trained with before it was stretched (0: the model's)"),
    Flag(("--yarn-ext-factor",), "yarn_ext_factor", number(-1, 1e6), -1.0, "LLAMA_ARG_YARN_EXT_FACTOR",
         "share of extrapolation (-1: the model's)"),
    Flag(("--yarn-attn-factor",), "yarn_attn_factor", number(-1, 1e6), -1.0, "LLAMA_ARG_YARN_ATTN_FACTOR",
         "factor on attention's magnitude (-1: the model's)"),
    Flag(("--yarn-beta-slow",), "yarn_beta_slow", number(-1, 1e6), -1.0, "LLAMA_ARG_YARN_BETA_SLOW",
         "high correction dimension (-1: the model's)"),
    Flag(("--yarn-beta-fast",), "yarn_beta_fast", number(-1, 1e6), -1.0, "LLAMA_ARG_YARN_BETA_FAST",
         "low correction dimension (-1: the model's)"),
)

_STORE = (
    Flag(("--store",), "store", choice("on", "off", metavar="{on,off}"), "on", "EMBERD_STORE",
         "remember prompts across restarts"),
    Flag(("--store-path",), "store_path", text("DIR"), "", "EMBERD_STORE_PATH",
         "where they are kept (default: $STATE_DIRECTORY, else the user's state directory)"),
    Flag(("--store-budget",), "store_budget", size(), 0, "EMBERD_STORE_BUDGET",
         "bytes the store may use (0: 10 % of the disk, at most 32G)"),
    Flag(("--slot-save-path",), "slot_save_path", text("DIR"), "", "",
         "also write each slot save as a file into this directory, and find saves there"),
)

_SERVER = (
    Flag(("--host",), "host", text("HOST"), "127.0.0.1", "LLAMA_ARG_HOST",
         "addresses to listen on, comma separated; names ending in .sock are UNIX sockets"),
    Flag(("--port",), "port", integer(0, 65535, "PORT"), 8080, "LLAMA_ARG_PORT",
         "port to listen on (0: a free one)"),
    Flag(("--reuse-port",), "reuse_port", None, False, "LLAMA_ARG_REUSE_PORT",
         "let several processes bind the port"),
    Flag(("-to", "--timeout"), "timeout", integer(1, 10**6), 3600, "LLAMA_ARG_TIMEOUT",
         "seconds a connection may stall while reading or writing"),
    Flag(("--request-timeout",), "request_timeout", integer(0, 10**6), 0, "EMBERD_REQUEST_TIMEOUT",
         "seconds that a request may wait and run; then it is ended with 504 (0: no limit)"),
    Flag(("--allowed-hosts",), "allowed_hosts", text("NAMES"), "", "EMBERD_ALLOWED_HOSTS",
         "further names that requests may use in their Host header, comma separated (*: any)"),
    Flag(("--api-prefix",), "api_prefix", text("PREFIX"), "", "LLAMA_ARG_API_PREFIX",
         "path put before every route"),
    Flag(("--api-key",), "api_keys", text("KEY"), (), "LLAMA_API_KEY",
         "key that requests must carry; comma separated, repeatable", repeat=True),
    Flag(("--api-key-file",), "api_key_file", text("FILE"), "", "LLAMA_ARG_API_KEY_FILE",
         "file of keys, one a line; lines starting with # are skipped"),
    Flag(("--ssl-key-file",), "ssl_key_file", text("FILE"), "", "LLAMA_ARG_SSL_KEY_FILE",
         "PEM private key for TLS"),
    Flag(("--ssl-cert-file",), "ssl_cert_file", text("FILE"), "", "LLAMA_ARG_SSL_CERT_FILE",
         "PEM certificate for TLS"),
    Flag(("--cors-origins",), "cors_origins", text("ORIGINS"), "*", "LLAMA_ARG_CORS_ORIGINS",
         "allowed origins; * echoes the caller's, localhost only local ones"),
    Flag(("--cors-methods",), "cors_methods", text("METHODS"), "GET, POST, DELETE, OPTIONS",
         "LLAMA_ARG_CORS_METHODS", "allowed methods"),
    Flag(("--cors-headers",), "cors_headers", text("HEADERS"), "*", "LLAMA_ARG_CORS_HEADERS",
         "allowed headers"),
    Flag(("--cors-credentials",), "cors_credentials", None, True, "LLAMA_ARG_CORS_CREDENTIALS",
         "allow credentials", off=("--no-cors-credentials",)),
    Flag(("--path",), "static_path", text("DIR"), "", "LLAMA_ARG_STATIC_PATH",
         "serve this directory instead of the chat page"),
    Flag(("--webui", "--ui"), "ui", None, True, "LLAMA_ARG_UI", "serve the chat page on /",
         off=("--no-webui", "--no-ui")),
    Flag(("--metrics",), "metrics", None, False, "LLAMA_ARG_ENDPOINT_METRICS",
         "serve /metrics for Prometheus", off=("--no-metrics",)),
    Flag(("--props",), "props", None, False, "LLAMA_ARG_ENDPOINT_PROPS", "allow POST /props",
         off=("--no-props",)),
    Flag(("--slots",), "slots", None, True, "LLAMA_ARG_ENDPOINT_SLOTS", "serve /slots", off=("--no-slots",
         "--slots-endpoint-disable")),
    Flag(("--sse-ping-interval",), "sse_ping_interval", integer(-1, 86400), 30,
         "LLAMA_ARG_SSE_PING_INTERVAL", "seconds of silence before a stream carries a comment (-1: never)"),
    Flag(("--embedding", "--embeddings"), "embeddings", None, False, "LLAMA_ARG_EMBEDDINGS",
         "serve /embeddings"),
    Flag(("--rerank", "--reranking"), "reranking", None, False, "LLAMA_ARG_RERANKING", "serve /rerank"),
    Flag(("--pooling",), "pooling", choice("none", "mean", "cls", "last", "rank"), "", "LLAMA_ARG_POOLING",
         "how a text's rows become its embedding (default: as the model says)"),
    Flag(("--embd-normalize",), "embd_normalize", integer(-1), 2, "",
         "norm of embeddings (-1: as they are, 0: largest 32760, 1: taxicab, 2: Euclidean, more: p-norm)"),
    Flag(("--spm-infill",), "spm_infill", None, False, "",
         "let /infill put the text after the gap before the one before it"),
    Flag(("--queue-size",), "queue_size", integer(0, 2**20), 256, "EMBERD_QUEUE_SIZE",
         "requests that may wait for a slot; further ones get 503"),
    Flag(("--drain-timeout",), "drain_timeout", integer(0, 3600), 5, "EMBERD_DRAIN_TIMEOUT",
         "seconds that running answers get to finish after SIGTERM"),
    Flag(("--log-format",), "log_format", choice("text", "human", "json"), "text", "EMBERD_LOG_FORMAT",
         "one line per event, for people or as JSON"),
    Flag(("--log-jsonl",), "log_jsonl", None, False, "LLAMA_ARG_LOG_JSONL",
         "the same as --log-format json", off=("--no-log-jsonl",)),
    Flag(("--log-file",), "log_file", text("FILE"), "", "LLAMA_ARG_LOG_FILE",
         "append the log to this file as well"),
    Flag(("--log-disable",), "log_disable", None, False, "", "log nothing", off=("--log-enable",)),
    Flag(("--log-colors",), "log_colors", _tri_state(), "auto", "LLAMA_ARG_LOG_COLORS", "coloured log",
         optional=_TRI_WORDS),
    Flag(("-lv", "--log-verbosity", "--verbosity"), "verbosity", integer(-(2**31)), 3,
         "LLAMA_ARG_LOG_VERBOSITY", "1 errors, 2 warnings, 3 requests, 4 and more: everything"),
    Flag(("-v", "--log-verbose", "--verbose"), "verbose", None, False, "",
         "log everything and add __verbose to OpenAI style answers"),
)

_CHAT = (
    Flag(("-spf", "--system-prompt-file"), "system_prompt_file", text("FILE"), "", "",
         "text before every prompt of every slot; or a JSON object with prompt and anti_prompt"),
    Flag(("--chat-template",), "chat_template", text("TEMPLATE"), "", "LLAMA_ARG_CHAT_TEMPLATE",
         "Jinja text, or chatml (default: the model's own)"),
    Flag(("--chat-template-file",), "chat_template_file", text("FILE"), "", "LLAMA_ARG_CHAT_TEMPLATE_FILE",
         "file with a Jinja chat template"),
    Flag(("--chat-template-kwargs",), "chat_template_kwargs", text("JSON"), "",
         "LLAMA_ARG_CHAT_TEMPLATE_KWARGS", "further variables of the template, as a JSON object"),
    Flag(("--prefill-assistant",), "prefill_assistant", None, True, "LLAMA_ARG_PREFILL_ASSISTANT",
         "continue a final assistant message", off=("--no-prefill-assistant",)),
    Flag(("-rea", "--reasoning"), "reasoning", _tri_state(), "auto", "LLAMA_ARG_REASONING",
         "sets enable_thinking of the template", optional=_TRI_WORDS),
    Flag(("--reasoning-effort",), "reasoning_effort", text("LEVEL"), "", "LLAMA_ARG_REASONING_EFFORT",
         "reasoning_effort of the template"),
)

_SAMPLING = (
    Flag(("-n", "--predict", "--n-predict"), "n_predict", integer(-2), -1, "LLAMA_ARG_N_PREDICT",
         "tokens to predict (-1: until the model ends)"),
    Flag(("-r", "--reverse-prompt"), "reverse_prompt", text("TEXT"), (), "",
         "stop string of requests that bring none; repeatable", repeat=True),
    Flag(("-s", "--seed"), "seed", integer(-1, 2**32 - 1), -1, "", "seed (-1: random)"),
    Flag(("--temp", "--temperature"), "temperature", number(-(2**31), 2**31), 0.8, "LLAMA_ARG_TEMPERATURE",
         "temperature (0: greedy)"),
    Flag(("--top-k",), "top_k", integer(-(2**31)), 40, "LLAMA_ARG_TOP_K",
         "keep the k likeliest tokens (0: all)"),
    Flag(("--top-p",), "top_p", number(0, 1), 0.95, "LLAMA_ARG_TOP_P",
         "keep the likeliest tokens up to this mass (1: all)"),
    Flag(("--min-p",), "min_p", number(0, 1), 0.05, "LLAMA_ARG_MIN_P",
         "keep tokens at least this likely, relative to the best (0: all)"),
    Flag(("--typical", "--typical-p"), "typical_p", number(0, 1), 1.0, "",
         "locally typical sampling (1: off)"),
    Flag(("--repeat-last-n",), "repeat_last_n", integer(-1), 64, "",
         "tokens that penalties look back at (0: off, -1: the context)"),
    Flag(("--repeat-penalty",), "repeat_penalty", number(1e-6, 1e6), 1.0, "LLAMA_ARG_REPEAT_PENALTY",
         "penalty of repeated tokens (1: off)"),
    Flag(("--presence-penalty",), "presence_penalty", number(-1e6, 1e6), 0.0, "LLAMA_ARG_PRESENCE_PENALTY",
         "presence penalty (0: off)"),
    Flag(("--frequency-penalty",), "frequency_penalty", number(-1e6, 1e6), 0.0,
         "LLAMA_ARG_FREQUENCY_PENALTY", "frequency penalty (0: off)"),
    Flag(("--ignore-eos",), "ignore_eos", None, False, "", "never end before the token budget"),
    Flag(("-l", "--logit-bias"), "logit_bias", text("ID(+/-)BIAS"), (), "",
         "change a token's logit, as 15043+1; repeatable", repeat=True),
    Flag(("--samplers",), "samplers", text("NAMES"), "", "", "samplers in order, separated by ;"),
    Flag(("--sampler-seq", "--sampling-seq"), "sampler_seq", text("LETTERS"), "", "",
         "the same as one letter each"),
)

# fmt: on

OPTIONS: tuple[Flag, ...] = (*_MODEL, *_ROPE, *_STORE, *_SERVER, *_CHAT, *_SAMPLING, *ACCEPTED)
