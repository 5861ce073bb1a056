"""State spaces: Mamba 2 at the dimensions of its 780M model, with fewer layers."""

from tools.random_models.writer import ModelWriter

HEAD = 64


def write(w: ModelWriter, small: bool) -> None:
    """Keys and tensors of the model, or of a `small` one with the same kinds of layers."""
    n_layer, n_embd, d_state = (2, 256, 64) if small else (32, 1536, 128)
    inner = 2 * n_embd
    n_head, n_conv = inner // HEAD, inner + 2 * d_state
    w.sizes(
        block_count=n_layer, context_length=8192, embedding_length=n_embd, feed_forward_length=0,
        attention__head_count=0, attention__head_count_kv=0, attention__layer_norm_rms_epsilon=1e-5,
        ssm__conv_kernel=4, ssm__group_count=1, ssm__inner_size=inner, ssm__state_size=d_state,
        ssm__time_step_rank=n_head,
    )  # fmt: skip
    w.embeddings(n_embd)
    for i in range(n_layer):
        n = f"blk.{i}."
        w.ones(n + "attn_norm", n_embd)
        w.matrix(n + "ssm_in", n_embd, 2 * inner + 2 * d_state + n_head)
        w.floats(n + "ssm_conv1d", 4, n_conv)
        w.values(n + "ssm_conv1d.bias", -0.1, 0.1, n_conv)
        w.values(n + "ssm_dt.bias", -6.0, -2.0, n_head)
        w.values(n + "ssm_a", -16.0, -1.0, n_head, 1)
        w.values(n + "ssm_d", 0.5, 1.5, n_head, 1)
        w.ones(n + "ssm_norm", 1, inner)
        w.matrix(n + "ssm_out", inner, n_embd)
