"""The loaded model as the HTTP surface shows it."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from daemon.config import Config
from runtime.gguf import Metadata, StringArray
from runtime.tokenizers import Tokenizer

_VOCAB_TYPES = {"llama": 1, "gpt2": 2, "bert": 3, "t5": 4, "rwkv": 5, "plamo2": 6}
"""llama.cpp's numbers of tokenizer families, by ``tokenizer.ggml.model``."""


@dataclass(frozen=True, slots=True)
class ModelMeta:
    """``meta`` of /v1/models. `n_ctx_train` and `n_embd` are 0 where the file does not say."""

    vocab_type: int
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    ftype: str
    architecture: str


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`n_ctx` is the context of one slot. `name` is the first alias, else the repository or path as given."""

    name: str
    aliases: tuple[str, ...]
    tags: tuple[str, ...]
    path: str
    meta: ModelMeta
    n_ctx: int
    tokenizer: Tokenizer
    template: str
    template_tool_use: str = ""
    template_rerank: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token; special ones have their name."""
        return self.tokenizer.token_bytes(token, special=True)

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of `tokens` with special ones rendered; what is not UTF-8 is replaced."""
        return self.tokenizer.decode([int(token) for token in tokens], special=True)

    def token_text(self, token: int | None) -> str:
        """Text of a special token, "" for a model without it."""
        if token is None or token < 0:
            return ""
        return self.token_bytes(token).decode(errors="replace")

    @property
    def bos_text(self) -> str:
        return self.token_text(self.tokenizer.bos_id)

    @property
    def eos_text(self) -> str:
        return self.token_text(self.tokenizer.eos_id)


def describe(metadata: Metadata, *, n_params: int, size: int, ftype: str) -> ModelMeta:
    """What /v1/models says, read from a model file's metadata; missing keys are shown as 0 or ""."""
    architecture = metadata.get_str("general.architecture", "")
    tokens = metadata.metadata.get("tokenizer.ggml.tokens")
    return ModelMeta(
        vocab_type=_VOCAB_TYPES.get(metadata.get_str("tokenizer.ggml.model", ""), 0),
        n_vocab=len(tokens) if isinstance(tokens, StringArray) else 0,
        n_ctx_train=metadata.get_int(f"{architecture}.context_length", 0),
        n_embd=metadata.get_int(f"{architecture}.embedding_length", 0),
        n_params=n_params,
        size=size,
        ftype=ftype,
        architecture=architecture,
    )


def served_name(config: Config) -> str:
    return config.aliases[0] if config.aliases else config.hf_repo or config.model
