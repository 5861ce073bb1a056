"""The pre types of BPE vocabularies: how each splits text, and what else it implies."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreType:
    """What a ``tokenizer.ggml.pre`` name stands for.

    `family` names the splitting expressions. `raw`: symbols are UTF-8 characters with spaces as U+2581
    instead of the byte alphabet. `newline_runs`: a run of newlines that is a token is taken whole.
    `word_prefix`: every word gets a leading U+2581. The rest are the defaults of llama.cpp's flags.
    """

    family: str
    ignore_merges: bool = False
    add_bos: bool = False
    add_sep: bool = False
    clean_spaces: bool = False
    raw: bool = False
    newline_runs: bool = False
    word_prefix: bool = False


def _table(*rows: tuple[str, PreType]) -> dict[str, PreType]:
    return {name: pre for names, pre in rows for name in names.split()}


PRE_TYPES = _table(
    ("default", PreType("R31", clean_spaces=True)),
    ("minicpm5", PreType("R29", ignore_merges=True, clean_spaces=True)),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreType("R1", ignore_merges=True, add_bos=True, clean_spaces=True),
    ),
    ("glm4 glm5", PreType("R1", ignore_merges=True, clean_spaces=True)),
    ("dbrx smaug-bpe chatglm-bpe", PreType("R1", clean_spaces=True)),
    ("jais-2", PreType("R2", clean_spaces=True)),
    ("deepseek-llm", PreType("R3")),
    ("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", PreType("R4")),
    ("spark2_5", PreType("R5")),
    ("youtu", PreType("R6", ignore_merges=True)),
    ("deepseek-coder", PreType("R7")),
    ("falcon", PreType("R8", clean_spaces=True)),
    ("starcoder refact codeshell exaone minerva-7b mellum2", PreType("R9", clean_spaces=True)),
    ("command-r smollm", PreType("R9")),
    (
        "mpt gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert olmo jais "
        "exaone4",
        PreType("R10", clean_spaces=True),
    ),
    ("jina-v1-en jina-v2-code roberta-bpe", PreType("R10", add_sep=True, clean_spaces=True)),
    ("trillion granite-docling", PreType("R10")),
    ("stablelm2 megrez", PreType("R11", clean_spaces=True)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan grok-2 solar-open", PreType("R11")),
    ("qwen35", PreType("R12")),
    ("bloom gpt3-finnish", PreType("R13", clean_spaces=True)),
    ("poro-chat", PreType("R13")),
    ("viking", PreType("R14")),
    ("tekken", PreType("R15", ignore_merges=True, add_bos=True)),
    ("chameleon", PreType("R16", add_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreType("R17")),
    ("granite-embed-multi-97m", PreType("R18", ignore_merges=True)),
    ("tiny_aya cohere2moe", PreType("R19")),
    ("kimi-k2", PreType("R20")),
    ("superbpe", PreType("R21")),
    ("bailingmoe bailingmoe2 llada-moe", PreType("R22")),
    ("seed-coder", PreType("R23")),
    ("ufakzeka", PreType("R24")),
    ("afmoe", PreType("R25")),
    ("laguna", PreType("R26")),
    ("exaone-moe", PreType("R27", clean_spaces=True)),
    ("gemma4 granite-embed-multi-311m", PreType("R28", clean_spaces=True, raw=True, newline_runs=True)),
    ("mmbert", PreType("R28", clean_spaces=True, raw=True, newline_runs=True, word_prefix=True)),
    ("sarvam-moe", PreType("R28", raw=True)),
    ("whitespace", PreType("R30", clean_spaces=True, raw=True)),
)
