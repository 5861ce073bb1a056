"""Hyperparameters that nearly every decoder reads from its GGUF."""

from dataclasses import dataclass

from runtime.errors import ModelError
from runtime.gguf import ModelFile


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a pre-norm decoder: widths in floats, counts in heads or layers."""

    n_layer: int
    n_embd: int
    n_head: int
    n_kv: int
    d_k: int
    d_v: int
    n_ff: int
    eps: float

    @classmethod
    def read(cls, f: ModelFile) -> "Decoder":
        """Errors: ModelError when a key is missing or makes no sense."""
        key = f.arch_key
        n_embd, n_head = f.get_int(key("embedding_length")), f.get_int(key("attention.head_count"))
        n_kv = f.get_int(key("attention.head_count_kv"), default=n_head)
        if min(n_embd, n_head, n_kv) < 1:
            raise ModelError(f"{f.path.name}: embedding and head counts must be positive")
        d = n_embd // n_head
        self = cls(
            n_layer=f.get_int(key("block_count")),
            n_embd=n_embd,
            n_head=n_head,
            n_kv=n_kv,
            d_k=f.get_int(key("attention.key_length"), default=d),
            d_v=f.get_int(key("attention.value_length"), default=d),
            n_ff=f.get_int(key("feed_forward_length")),
            eps=f.get_float(key("attention.layer_norm_rms_epsilon")),
        )
        if not (1 <= self.n_layer <= 4096 and self.d_k > 0 and self.d_v > 0 and self.n_ff > 0):
            raise ModelError(f"{f.path.name}: {self} makes no sense")
        return self
