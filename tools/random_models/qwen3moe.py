"""Experts: Qwen 3 MoE with 64 of them in each layer, of which a token takes 8."""

from tools.random_models.writer import ModelWriter


def write(w: ModelWriter, small: bool) -> None:
    """Keys and tensors of the model, or of a `small` one with the same kinds of layers."""
    n_layer, n_expert = (2, 16) if small else (8, 64)
    n_embd, n_ff, d, n_head, n_kv = (256, 256, 64, 4, 2) if small else (1024, 512, 128, 16, 4)
    w.sizes(
        block_count=n_layer, context_length=8192, embedding_length=n_embd, feed_forward_length=n_ff,
        attention__head_count=n_head, attention__head_count_kv=n_kv, attention__key_length=d,
        attention__value_length=d, attention__layer_norm_rms_epsilon=1e-6, rope__freq_base=1e6,
        expert_count=n_expert, expert_used_count=8, expert_feed_forward_length=n_ff,
    )  # fmt: skip
    w.embeddings(n_embd)
    for i in range(n_layer):
        n = f"blk.{i}."
        w.ones(n + "attn_norm", n_embd)
        w.ones(n + "ffn_norm", n_embd)
        w.ones(n + "attn_q_norm", d)
        w.ones(n + "attn_k_norm", d)
        w.matrix(n + "attn_q", n_embd, n_head * d)
        w.matrix(n + "attn_k", n_embd, n_kv * d)
        w.matrix(n + "attn_v", n_embd, n_kv * d)
        w.matrix(n + "attn_output", n_head * d, n_embd)
        w.floats(n + "ffn_gate_inp", n_embd, n_expert)
        w.matrix(n + "ffn_gate_exps", n_embd, n_ff, n_expert)
        w.matrix(n + "ffn_up_exps", n_embd, n_ff, n_expert)
        w.matrix(n + "ffn_down_exps", n_ff, n_embd, n_expert)
