"""DeepSeek V4 with the heads, latents and index of Flash, a quarter of its width and few experts."""

from tools.random_models.writer import N_VOCAB, ModelWriter

STREAMS = 4
N_HASHED = 2
CSA, HCA = 4, 128


def write(w: ModelWriter, small: bool) -> None:
    """Keys and tensors of the model, or of a `small` one with the same kinds of layers."""
    n_embd, n_ff, n_expert = (256, 256, 8) if small else (1024, 512, 32)
    n_head, d, q_rank, n_groups, o_rank = (4, 64, 256, 2, 128) if small else (16, 512, 512, 4, 512)
    n_index, d_index, top_k, n_rot = (4, 64, 16, 32) if small else (16, 128, 512, 64)
    ratios = [0, CSA, HCA, 0] if small else [0, 0, *[CSA, HCA] * 5]
    n_layer, n_mix = len(ratios), (2 + STREAMS) * STREAMS
    w.sizes(
        block_count=n_layer, context_length=8192, embedding_length=n_embd, feed_forward_length=n_ff,
        embedding_length_out=STREAMS * n_embd, vocab_size=N_VOCAB, attention__head_count=n_head,
        attention__head_count_kv=1, attention__key_length=d, attention__value_length=d,
        attention__layer_norm_rms_epsilon=1e-6, attention__q_lora_rank=q_rank,
        attention__output_group_count=n_groups, attention__output_lora_rank=o_rank,
        attention__sliding_window=128, attention__compress_ratios=ratios,
        attention__compress_rope_freq_base=160000.0, attention__indexer__head_count=n_index,
        attention__indexer__key_length=d_index, attention__indexer__top_k=top_k,
        rope__dimension_count=n_rot, rope__freq_base=10000.0, rope__scaling__type="yarn",
        rope__scaling__factor=16.0, rope__scaling__original_context_length=65536,
        hyper_connection__count=STREAMS, hyper_connection__sinkhorn_iterations=20,
        hyper_connection__epsilon=1e-6, hash_layer_count=N_HASHED, expert_count=n_expert,
        expert_used_count=6, expert_shared_count=1, expert_feed_forward_length=n_ff,
        expert_gating_func=4, expert_weights_norm=True, expert_weights_scale=1.5,
        swiglu_clamp_exp=[10.0] * n_layer,
    )  # fmt: skip
    w.embeddings(n_embd)
    w.floats("output_hc_fn", STREAMS * n_embd, STREAMS)
    w.values("output_hc_base.weight", -1.0, 1.0, STREAMS)
    w.values("output_hc_scale.weight", 0.1, 0.2, 1)
    for i, ratio in enumerate(ratios):
        n = f"blk.{i}."
        for part in ("attn", "ffn"):
            w.floats(f"{n}hc_{part}_fn", STREAMS * n_embd, n_mix)
            w.values(f"{n}hc_{part}_base.weight", -1.0, 1.0, n_mix)
            w.values(f"{n}hc_{part}_scale.weight", 0.1, 0.2, 3)
            w.ones(f"{n}{part}_norm", n_embd)
        w.matrix(n + "attn_q_a", n_embd, q_rank)
        w.ones(n + "attn_q_a_norm", q_rank)
        w.matrix(n + "attn_q_b", q_rank, n_head * d)
        w.matrix(n + "attn_kv", n_embd, d)
        w.ones(n + "attn_kv_a_norm", d)
        w.values(n + "attn_sinks.weight", -1.0, 1.0, n_head)
        w.matrix(n + "attn_output_a", n_head * d // n_groups, n_groups * o_rank)
        w.matrix(n + "attn_output_b", n_groups * o_rank, n_embd)
        if ratio:
            _compressor(w, n + "attn_compressor", n_embd, d, ratio)
        if ratio == CSA:
            w.floats(n + "indexer.proj", n_embd, n_index, half=True)
            w.matrix(n + "indexer.attn_q_b", q_rank, n_index * d_index)
            _compressor(w, n + "indexer_compressor", n_embd, d_index, ratio)
        w.floats(n + "ffn_gate_inp", n_embd, n_expert)
        if i < N_HASHED:
            w.ids(n + "ffn_gate_tid2eid", n_expert, N_VOCAB, 6)
        else:
            w.values(n + "exp_probs_b.bias", -0.1, 0.1, n_expert)
        for part, n_in, n_out in (("gate", n_embd, n_ff), ("up", n_embd, n_ff), ("down", n_ff, n_embd)):
            w.matrix(f"{n}ffn_{part}_exps", n_in, n_out, n_expert)
            w.matrix(f"{n}ffn_{part}_shexp", n_in, n_out)


def _compressor(w: ModelWriter, name: str, n_embd: int, d: int, ratio: int) -> None:
    width = 2 * d if ratio == CSA else d
    w.floats(f"{name}_kv", n_embd, width, half=True)
    w.floats(f"{name}_gate", n_embd, width, half=True)
    w.floats(f"{name}_ape", width, ratio, spread=0.1)
    w.ones(f"{name}_norm", d)
