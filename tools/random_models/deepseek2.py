"""Latent attention: DeepSeek V2 Lite with its heads and latents, half its width, an eighth of its experts."""

from tools.random_models.writer import ModelWriter

N_LITE = 27  # layers by which files of the lite model are known


def write(w: ModelWriter, small: bool) -> None:
    """Keys and tensors of the model, or of a `small` one with the same kinds of layers."""
    n_embd, n_ff, n_expert = (256, 256, 4) if small else (1024, 512, 8)
    n_head, rank, nope, n_rot, d_v = (4, 256, 64, 32, 64) if small else (16, 512, 128, 64, 128)
    w.sizes(
        block_count=N_LITE, context_length=8192, embedding_length=n_embd, feed_forward_length=4 * n_ff,
        leading_dense_block_count=1, attention__head_count=n_head, attention__head_count_kv=1,
        attention__key_length=rank + n_rot, attention__value_length=rank,
        attention__key_length_mla=nope + n_rot, attention__value_length_mla=d_v,
        attention__kv_lora_rank=rank, attention__layer_norm_rms_epsilon=1e-6, rope__freq_base=1e4,
        rope__dimension_count=n_rot, expert_count=n_expert, expert_used_count=4, expert_shared_count=1,
        expert_feed_forward_length=n_ff, expert_gating_func=1, expert_weights_norm=False,
        expert_weights_scale=1.0,
    )  # fmt: skip
    w.embeddings(n_embd)
    for i in range(N_LITE):
        n = f"blk.{i}."
        w.ones(n + "attn_norm", n_embd)
        w.ones(n + "attn_kv_a_norm", rank)
        w.matrix(n + "attn_q", n_embd, n_head * (nope + n_rot))
        w.matrix(n + "attn_kv_a_mqa", n_embd, rank + n_rot)
        w.matrix(n + "attn_k_b", nope, rank, n_head)
        w.matrix(n + "attn_v_b", rank, d_v, n_head)
        w.matrix(n + "attn_output", n_head * d_v, n_embd)
        w.ones(n + "ffn_norm", n_embd)
        if i == 0:
            w.matrix(n + "ffn_gate", n_embd, 4 * n_ff)
            w.matrix(n + "ffn_up", n_embd, 4 * n_ff)
            w.matrix(n + "ffn_down", 4 * n_ff, n_embd)
            continue
        w.floats(n + "ffn_gate_inp", n_embd, n_expert)
        for part, n_in, n_out in (("gate", n_embd, n_ff), ("up", n_embd, n_ff), ("down", n_ff, n_embd)):
            w.matrix(f"{n}ffn_{part}_exps", n_in, n_out, n_expert)
            w.matrix(f"{n}ffn_{part}_shexp", n_in, n_out)
