"""llama-server's and ik_llama.cpp's flags that are understood and have no effect, and why.

One line per flag: its spellings (those after ``!`` switch it off), its variable without ``LLAMA_ARG_``, and
the values that ask for nothing, so that they bring no warning.
"""

from daemon.flags import FALSE, TRUE, Flag, text

_NOTHING = ""
_GPU = "emberd computes on the CPU"
_LATER = "emberd does not have it yet"
_DOCKER = "give a Hugging Face repository with -hf, a URL with -mu or a file with -m"
_SHIFT = "moving positions under cached state is not supported; a full context ends the answer with length"
_PLAN = "the engine decides this itself"
_BUDGET = "the block pool lies within --ram-budget"
_SPEC = "speculative decoding is not there yet"
_MEDIA = "images and audio are not supported"
_ROUTER = "emberd serves one model per process"
_AGENT = "emberd runs no tools"

# (why it has no effect, number of values, flags); -1: one value, then a scale where none is attached to it
# fmt: off
_ROWS: tuple[tuple[str, int, str], ...] = (
    (_NOTHING, 0, """
        -cb --cont-batching | CONT_BATCHING
        -kvu --kv-unified ! -no-kvu --no-kv-unified | KV_UNIFIED
        --warmup ! --no-warmup
        --jinja ! --no-jinja | JINJA
        -e --escape ! --no-escape
        --perf ! --no-perf | PERF
        --log-prefix ! --no-log-prefix | LOG_PREFIX
        --log-timestamps ! --no-log-timestamps | LOG_TIMESTAMPS
        --log-new
        --log-append
        --simple-io
        --verbose-prompt
        -rtr --run-time-repack
        -fmoe --fused-moe
        -muge --merge-up-gate-experts
        -mqkv --merge-qkv
        -thp --transparent-huge-pages
        --no-context-shift
        --no-display-prompt
        -no-fmoe --no-fused-moe
        --penalize-nl
        --skip-chat-parsing ! --no-skip-chat-parsing | SKIP_CHAT_PARSING
        --cache-idle-slots ! --no-cache-idle-slots | CACHE_IDLE_SLOTS
        --send-done
        -co --color
        --swa-full | SWA_FULL
    """),
    (_NOTHING, 1, """
        --threads-http | THREADS_HTTP
        --keep
        -dt --defrag-thold | DEFRAG_THOLD
        -fa --flash-attn | FLASH_ATTN
        --xtc-threshold
        --dynatemp-exp
        --dry-base
        --dry-allowed-length
        --dry-penalty-last-n
        --dry-sequence-breaker
        --mirostat-lr
        --mirostat-ent
        --adaptive-decay
        --reasoning-budget-message | THINK_BUDGET_MESSAGE
        --kv-unified-per-slot | KV_UNIFIED_PER_SLOT
        --poll
        --poll-batch
        -crs --cache-ram-similarity
        -cram-n-min --cache-ram-n-min
        -mla --mla-use
        -amb --attention-max-batch
        -cms --checkpoint-min-step | CHECKPOINT_MIN_SPACING_NT
        --ui-config --webui-config | UI_CONFIG
        --ui-config-file --webui-config-file | UI_CONFIG_FILE
        -ld --logdir
        --log-prompts-dir
        -ptc --print-token-count
    """),
    (_PLAN, 0, """
        -nocb --no-cont-batching
        --mlock | MLOCK
        --mmap ! --no-mmap | MMAP | true
        --no-host | NO_HOST
        --defer-experts
        --prefetch-experts
    """),
    (_PLAN, 1, """
        -C --cpu-mask
        -Cr --cpu-range
        --cpu-strict | | off false 0 disabled none
        --prio | | 0
        -Cb --cpu-mask-batch
        -Crb --cpu-range-batch
        --cpu-strict-batch | | off false 0 disabled none
        --prio-batch | | 0
        --numa | NUMA
        -lm --load-mode | LOAD_MODE | auto mmap
        -lzm --lazy-mode | LAZY_MODE | auto none
    """),
    (_BUDGET, 1, """
        -cram --cache-ram | CACHE_RAM | 8192 -1
    """),
    (_GPU, 0, """
        -kvo --kv-offload ! -nkvo --no-kv-offload | KV_OFFLOAD | false true
        --op-offload ! --no-op-offload | | false true
        -cmoe --cpu-moe | CPU_MOE
        -bs --backend-sampling | BACKEND_SAMPLING
        --list-devices
        --mmproj-offload ! --no-mmproj-offload | MMPROJ_OFFLOAD | false true
    """),
    (_GPU, 1, """
        -ngl --gpu-layers --n-gpu-layers | N_GPU_LAYERS | 0
        -dev --device | DEVICE | none
        -ot --override-tensor | OVERRIDE_TENSOR
        -ncmoe --n-cpu-moe | N_CPU_MOE
        -ncffn --n-cpu-ffn | N_CPU_FFN
        -sm --split-mode | SPLIT_MODE | none
        -ts --tensor-split | TENSOR_SPLIT
        -mg --main-gpu | MAIN_GPU
        -fit --fit | FIT | off false 0 disabled none
        -fitt --fit-target | FIT_TARGET
        -fitc --fit-ctx | FIT_CTX
        --rpc | RPC
        -mmdev --mmproj-device | | none
    """),
    (_SHIFT, 0, """
        --context-shift | CONTEXT_SHIFT | false
    """),
    (_SHIFT, 1, """
        --cache-reuse | CACHE_REUSE | 0
        -gan --grp-attn-n | | 1
        -gaw --grp-attn-w
    """),
    (_DOCKER, 1, """
        -dr --docker-repo | DOCKER_REPO
    """),
    (_LATER, 0, """
        --swa-compress
        --check-tensors
        -sp --special
        --lora-init-without-apply
        --reasoning-preserve ! --no-reasoning-preserve | REASONING_PRESERVE | false
        -ptcall --parallel-tool-calls
        -vq --validate-quants
    """),
    (_LATER, 1, """
        -ctk-first
        -ctk-last
        -ctv-first
        -ctv-last
        --attention | | causal
        --lora
        --control-vector
        --grammar
        --grammar-file
        -j --json-schema
        -jf --json-schema-file
        --mirostat | | 0
        --tfs | | 1 1.0
        --xtc-probability | | 0 0.0
        --top-nsigma --top-n-sigma | | -1 -1.0 0 0.0
        --dynatemp-range | | 0 0.0
        --dry-multiplier | | 0 0.0
        --adaptive-target | | -1 -1.0
        --cfg-negative-prompt
        --cfg-negative-prompt-file
        --cfg-scale | | 1 1.0
        --banned-string-file
        --banned-n | | 1
        --allowlist-unicode-rule
        --allowlist-pieces
        --allowlist-keyword
        --allowlist-keyword-delay
        --reasoning-format | THINK | none auto
        --reasoning-budget | THINK_BUDGET | -1
        --reasoning-tokens | | none auto
        --sleep-idle-seconds | | -1
        -ser --smart-expert-reduction
        --sql-save-file
        -lcs --lookup-cache-static
        -lcd --lookup-cache-dynamic
    """),
    (_LATER, 2, """
        --control-vector-layer-range
    """),
    (_LATER, -1, """
        --lora-scaled
        --control-vector-scaled
    """),
    (_MEDIA, 0, """
        --mmproj-auto ! --no-mmproj --no-mmproj-auto | MMPROJ_AUTO | false true
    """),
    (_MEDIA, 1, """
        -mm --mmproj | MMPROJ
        -mmu --mmproj-url | MMPROJ_URL
        --media-path
        --image-min-tokens | IMAGE_MIN_TOKENS
        --image-max-tokens | IMAGE_MAX_TOKENS
        --mtmd-batch-max-tokens | MTMD_BATCH_MAX_TOKENS
        --video-fps | VIDEO_FPS
        --video-timestamp-interval | VIDEO_TIMESTAMP_INTERVAL
        --video-ffmpeg-dir | VIDEO_FFMPEG_DIR
    """),
    (_ROUTER, 0, """
        --models-autoload ! --no-models-autoload | MODELS_AUTOLOAD | false
    """),
    (_ROUTER, 1, """
        --models-dir | MODELS_DIR
        --models-preset | MODELS_PRESET
        --models-max | MODELS_MAX
    """),
    (_AGENT, 0, """
        --ui-mcp-proxy --webui-mcp-proxy ! --no-ui-mcp-proxy --no-webui-mcp-proxy | UI_MCP_PROXY | false
        -ag --agent ! -no-ag --no-agent | AGENT | false
    """),
    (_AGENT, 1, """
        --tools | TOOLS
        --tools-runtime | TOOLS_RUNTIME
        --mcp-servers-config | MCP_SERVERS_CONFIG
        --mcp-servers-json | MCP_SERVERS_JSON
    """),
    (_SPEC, 0, """
        --spec-default
        --spec-autotune
        --spec-draft-cpu-moe -cmoed --cpu-moe-draft | SPEC_DRAFT_CPU_MOE
        --spec-draft-backend-sampling ! --no-spec-draft-backend-sampling | SPEC_DRAFT_BACKEND_SAMPLING | false
    """),
    (_SPEC, 1, """
        --spec-type | SPEC_TYPE | none
        --spec-draft-model -md --model-draft | SPEC_DRAFT_MODEL
        --spec-draft-hf -hfd -hfrd --hf-repo-draft | SPEC_DRAFT_HF_REPO
        --spec-draft-n-max | SPEC_DRAFT_N_MAX
        --spec-draft-n-min | SPEC_DRAFT_N_MIN
        --spec-draft-p-split -ps --p-split --draft-p-split | SPEC_DRAFT_P_SPLIT
        --spec-draft-p-min --draft-p-min | SPEC_DRAFT_P_MIN
        --spec-draft-sampling | SPEC_DRAFT_SAMPLING
        --spec-synth-len | SPEC_SYNTH_LEN
        --spec-synth-rates | SPEC_SYNTH_RATES
        --spec-draft-threads -td --threads-draft
        --spec-draft-threads-batch -tbd --threads-batch-draft
        --spec-draft-cpu-mask -Cd --cpu-mask-draft
        --spec-draft-cpu-range -Crd --cpu-range-draft
        --spec-draft-cpu-strict --cpu-strict-draft
        --spec-draft-prio --prio-draft
        --spec-draft-poll --poll-draft
        --spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft
        --spec-draft-cpu-strict-batch --cpu-strict-batch-draft
        --spec-draft-prio-batch --prio-batch-draft
        --spec-draft-poll-batch --poll-batch-draft
        --spec-draft-override-tensor -otd --override-tensor-draft
        --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft | SPEC_DRAFT_N_CPU_MOE
        --spec-draft-type-k -ctkd --cache-type-k-draft | SPEC_DRAFT_CACHE_TYPE_K
        --spec-draft-type-v -ctvd --cache-type-v-draft | SPEC_DRAFT_CACHE_TYPE_V
        --spec-draft-device -devd --device-draft
        -cd --ctx-size-draft
        --spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft | N_GPU_LAYERS_DRAFT
        --spec-ngram-mod-n-min
        --spec-ngram-mod-n-max
        --spec-ngram-mod-n-match
        --spec-ngram-simple-size-n
        --spec-ngram-simple-size-m
        --spec-ngram-simple-min-hits
        --spec-ngram-map-k-size-n
        --spec-ngram-map-k-size-m
        --spec-ngram-map-k-min-hits
        --spec-ngram-map-k4v-size-n
        --spec-ngram-map-k4v-size-m
        --spec-ngram-map-k4v-min-hits
        --draft --draft-n --draft-max | DRAFT_MAX
        --draft-min --draft-n-min | DRAFT_MIN
        --spec-ngram-size-n
        --spec-ngram-size-m
        --spec-ngram-min-hits
    """),
)
# fmt: on

_OPTIONAL = {"--flash-attn": TRUE | FALSE | {"auto"}, "--fit": TRUE | FALSE}


def _flag(reason: str, values: int, row: str) -> Flag:
    spellings, env, neutral = (*(cell.strip() for cell in row.split("|")), "", "")[:3]
    on, _, off = spellings.partition("!")
    names = tuple(on.split())
    return Flag(
        names=names,
        off=tuple(off.split()),
        value=text("VALUE") if values else None,
        extra=max(values - 1, 0) if values >= 0 else -1,
        env=f"LLAMA_ARG_{env}" if env else "",
        optional=frozenset(_OPTIONAL.get(names[-1], ())),
        note=reason,
        neutral=frozenset(neutral.split()),
    )


ACCEPTED: tuple[Flag, ...] = tuple(
    _flag(reason, values, row.strip()) for reason, values, rows in _ROWS for row in rows.strip().splitlines()
)
