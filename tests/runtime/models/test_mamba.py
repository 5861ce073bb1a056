"""Mamba's forward passes in float64, for what no oracle has: FalconMamba's norms, Falcon H1 without norm."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.evaluation import all_logits, model
from tests.runtime.rewriting import rewritten

EPS, RANK, N_STATE = 1e-5, 16, 16

Mixer = Callable[[np.ndarray, dict[str, np.ndarray], bool], np.ndarray]


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def rms(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS)


def convolved(x: np.ndarray, at: dict[str, np.ndarray]) -> np.ndarray:
    padded = np.concatenate([np.zeros((3, x.shape[1])), x])
    taps = (padded[j : j + len(x)] * at["ssm_conv1d.weight"][:, j] for j in range(4))
    return silu(sum(taps) + at["ssm_conv1d.bias"])


def scanned(u: np.ndarray, dt: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Channels u and steps dt [T, n], A [n, states or 1], B and C [T, n or 1, states]."""
    h, y = np.zeros((u.shape[1], N_STATE)), np.zeros_like(u)
    for t in range(len(u)):
        h = np.exp(dt[t, :, None] * a) * h + (dt[t] * u[t])[:, None] * b[t]
        y[t] = (h * c[t]).sum(1)
    return y


def mamba(x: np.ndarray, at: dict[str, np.ndarray], normed: bool) -> np.ndarray:
    inputs, z = np.split(x @ at["ssm_in.weight"].T, 2, axis=1)
    u = convolved(inputs, at)
    parts = np.split(u @ at["ssm_x.weight"].T, [RANK, RANK + N_STATE], axis=1)
    steps, b, c = map(rms, parts) if normed else parts
    dt = np.logaddexp(0, steps @ at["ssm_dt.weight"].T + at["ssm_dt.bias"])
    y = scanned(u, dt, at["ssm_a"], b[:, None], c[:, None]) + at["ssm_d"] * u
    return y * silu(z) @ at["ssm_out.weight"].T


def mamba2(x: np.ndarray, at: dict[str, np.ndarray], normed: bool) -> np.ndarray:
    """128 channels in 8 heads and 2 groups."""
    z, inputs, steps = np.split(x @ at["ssm_in.weight"].T, [128, 128 + 192], axis=1)
    u, b, c = np.split(convolved(inputs, at), [128, 160], axis=1)
    dt = np.repeat(np.logaddexp(0, steps + at["ssm_dt.bias"]), 16, axis=1)
    b, c = (np.repeat(part.reshape(-1, 2, N_STATE), 64, axis=1) for part in (b, c))
    a, skip = (np.repeat(at[name], 16, axis=0) for name in ("ssm_a", "ssm_d"))
    y = (scanned(u, dt, a, b, c) + skip[:, 0] * u) * silu(z)
    if normed:
        y = (rms(y.reshape(-1, 2, 64)) * at["ssm_norm.weight"]).reshape(-1, 128)
    return y @ at["ssm_out.weight"].T


def forward(mixer: Mixer, w: dict[str, np.ndarray], tokens: np.ndarray, *, normed: bool) -> np.ndarray:
    x = w["token_embd.weight"][tokens]
    for layer in range(3):
        at = {name.split(".", 2)[2]: v for name, v in w.items() if name.startswith(f"blk.{layer}.")}
        x = x + mixer(rms(x) * at["attn_norm.weight"], at, normed)
    return rms(x) * w["output_norm.weight"] @ w["token_embd.weight"].T


def error(path: Path, mixer: Mixer, tensors: dict[str, np.ndarray], *, normed: bool) -> float:
    with model(path, n_ctx=256) as loaded:
        tokens = np.random.default_rng(0).integers(0, loaded.runner.n_vocab, 40).astype(np.int32)
        logits = all_logits(loaded, tokens)
    return float(np.abs(logits - forward(mixer, tensors, tokens, normed=normed)).max())


@pytest.mark.parametrize("normed", [False, True])
def test_steps_and_b_and_c_are_normed_where_the_file_says_so(normed: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)

    def of_rank_16(name: str, data: np.ndarray) -> np.ndarray:
        if name.endswith("ssm_x.weight"):
            return (rng.standard_normal((RANK + 2 * N_STATE, 128)) / 11).astype(np.float32)
        if name.endswith("ssm_dt.weight"):
            return (rng.standard_normal((128, RANK)) / 4).astype(np.float32)
        return data

    keys = {"mamba.ssm.time_step_rank": RANK, "mamba.ssm.dt_b_c_rms": normed}
    tensors = rewritten("mamba", tmp_path / "model.gguf", of_rank_16, keys=keys)
    assert error(tmp_path / "model.gguf", mamba, tensors, normed=normed) < 1e-3


@pytest.mark.parametrize("normed", [False, True])
def test_what_was_gated_is_normed_where_there_are_weights_for_it(normed: bool, tmp_path: Path) -> None:
    def with_or_without(name: str, data: np.ndarray) -> np.ndarray | None:
        return data if normed or not name.endswith("ssm_norm.weight") else None

    tensors = rewritten("mamba2", tmp_path / "model.gguf", with_or_without)
    assert error(tmp_path / "model.gguf", mamba2, tensors, normed=normed) < 1e-3
