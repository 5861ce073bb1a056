"""The gated delta rule: Qwen 3.5 at the dimensions of its 0.8B model, with a smaller vocabulary."""

from tools.random_models.writer import ModelWriter

PERIOD = 4  # every fourth layer has attention


def write(w: ModelWriter, small: bool) -> None:
    """Keys and tensors of the model, or of a `small` one with the same kinds of layers."""
    n_layer, n_embd, n_ff = (4, 256, 512) if small else (24, 1024, 3584)
    n_head, n_kv, d = (2, 1, 64) if small else (8, 2, 256)
    n_groups, d_state = (2, 64) if small else (16, 128)
    inner = n_groups * d_state
    w.sizes(
        block_count=n_layer, context_length=8192, embedding_length=n_embd, feed_forward_length=n_ff,
        attention__head_count=n_head, attention__head_count_kv=n_kv, attention__key_length=d,
        attention__value_length=d, attention__layer_norm_rms_epsilon=1e-6, rope__freq_base=1e7,
        rope__dimension_count=d // 4, rope__dimension_sections=[d // 24, d // 24, d // 8 - 2 * (d // 24), 0],
        full_attention_interval=PERIOD, ssm__conv_kernel=4, ssm__group_count=n_groups, ssm__inner_size=inner,
        ssm__state_size=d_state, ssm__time_step_rank=n_groups,
    )  # fmt: skip
    w.embeddings(n_embd)
    for i in range(n_layer):
        n = f"blk.{i}."
        w.ones(n + "attn_norm", n_embd)
        w.ones(n + "post_attention_norm", n_embd)
        if (i + 1) % PERIOD:
            w.matrix(n + "attn_qkv", n_embd, 3 * inner)
            w.matrix(n + "attn_gate", n_embd, inner)
            w.floats(n + "ssm_conv1d", 4, 3 * inner)
            w.values(n + "ssm_dt.bias", -4.0, -2.0, n_groups)
            w.values(n + "ssm_a", -8.0, -1.0, n_groups)
            w.matrix(n + "ssm_beta", n_embd, n_groups)
            w.matrix(n + "ssm_alpha", n_embd, n_groups)
            w.ones(n + "ssm_norm", d_state)
            w.matrix(n + "ssm_out", inner, n_embd)
        else:
            w.matrix(n + "attn_q", n_embd, 2 * n_head * d)
            w.matrix(n + "attn_k", n_embd, n_kv * d)
            w.matrix(n + "attn_v", n_embd, n_kv * d)
            w.matrix(n + "attn_output", n_head * d, n_embd)
            w.ones(n + "attn_q_norm", d)
            w.ones(n + "attn_k_norm", d)
        w.matrix(n + "ffn_gate", n_embd, n_ff)
        w.matrix(n + "ffn_up", n_embd, n_ff)
        w.matrix(n + "ffn_down", n_ff, n_embd)
