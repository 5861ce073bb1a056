"""T5's encoder, held to the reference's logits through a float64 decoder made of the file's other half."""

import numpy as np

from runtime.gguf import ModelFile
from tests.runtime.evaluation import arch, hidden_rows, model
from tests.runtime.test_arch_oracles import TOLERANCE, oracle

HEADS, D, N_BUCKETS, N_LAYER, EPS = 4, 16, 16, 2, 1e-6


class Decoder:
    """The decoder half in numpy: causal attention with its own buckets, then attention to the encoder."""

    def __init__(self, file: ModelFile) -> None:
        self.file = file

    def tensor(self, name: str) -> np.ndarray:
        shape = self.file.tensor(f"{name}.weight").shape[::-1]
        return self.file.tensor_bytes(f"{name}.weight").view(np.float32).reshape(shape).astype(np.float64)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS) * self.tensor(name)

    def attend(self, x: np.ndarray, memory: np.ndarray, name: str, bias: np.ndarray) -> np.ndarray:
        q, k, v = (
            (rows @ self.tensor(f"{name}_{part}").T).reshape(len(rows), HEADS, D)
            for rows, part in ((x, "q"), (memory, "k"), (memory, "v"))
        )
        s = np.einsum("nhd,khd->hnk", q, k) + bias
        p = np.exp(s - s.max(-1, keepdims=True))
        out = np.einsum("hnk,khd->nhd", p / p.sum(-1, keepdims=True), v)
        return out.reshape(len(x), HEADS * D) @ self.tensor(f"{name}_o").T

    def logits(self, tokens: np.ndarray, memory: np.ndarray) -> np.ndarray:
        x = self.tensor("token_embd")[tokens]
        back = np.arange(len(x))[:, None] - np.arange(len(x))[None]
        assert len(x) < 16
        far = 8 + np.floor(np.log(np.maximum(back, 1) / 8) * 8 / np.log(128 / 8))
        index = np.where(back < 8, np.maximum(back, 0), far).astype(int)
        bias = self.tensor("dec.blk.0.attn_rel_b")[index].transpose(2, 0, 1) + np.where(back < 0, -np.inf, 0)
        for i in range(N_LAYER):
            n = f"dec.blk.{i}"
            h = self.norm(x, f"{n}.attn_norm")
            x = x + self.attend(h, h, f"{n}.attn", bias)
            x = x + self.attend(self.norm(x, f"{n}.cross_attn_norm"), memory, f"{n}.cross_attn", np.zeros(1))
            h = self.norm(x, f"{n}.ffn_norm")
            gate, up = h @ self.tensor(f"{n}.ffn_gate").T, h @ self.tensor(f"{n}.ffn_up").T
            gelu = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * gate * (1 + 0.044715 * gate**2)))
            x = x + (gelu * up) @ self.tensor(f"{n}.ffn_down").T
        return self.norm(x, "dec.output_norm") @ self.tensor("output").T


def test_the_references_decoder_gets_its_logits_from_our_encoder() -> None:
    with model(arch("t5"), n_ctx=256) as loaded:
        (rows,) = hidden_rows(loaded, oracle("t5", "prompt_ids").astype(np.int32))
        logits = Decoder(loaded.file).logits(oracle("t5", "dec_tokens"), rows.astype(np.float64))
    assert np.abs(logits - oracle("t5", "dec_logits")).max() < TOLERANCE
