"""The rope flags: what they ask of the model file, and that the model listens."""

import functools
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from daemon.config import build_config
from daemon.flags import UsageError
from daemon.rope import rope_overrides
from runtime.gguf import open_model
from runtime.model import ModelOptions, load_model
from tests.daemon.harness import MODEL
from tests.rewrite import rewrite
from tests.runtime.evaluation import Logits, all_logits, arch


def overrides(*flags: str) -> tuple[str, ...]:
    return rope_overrides(build_config(["-m", "x", *flags], {})[0])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), ()),
        (("--rope-freq-base", "0", "--rope-scale", "0", "--yarn-ext-factor", "-1"), ()),
        (("--rope-freq-base", "5e5"), (".rope.freq_base=float:500000.0",)),
        (("--rope-scale", "4"), (".rope.scaling.factor=float:4.0",)),
        (("--rope-freq-scale", "0.25"), (".rope.scaling.factor=float:4.0",)),
        (
            ("--rope-scaling", "yarn", "--yarn-orig-ctx", "4096"),
            (".rope.scaling.type=str:yarn", ".rope.scaling.original_context_length=int:4096"),
        ),
        (
            ("--yarn-ext-factor", "0", "--yarn-attn-factor", "1.5"),
            (".rope.scaling.yarn_ext_factor=float:0.0", ".rope.scaling.attn_factor=float:1.5"),
        ),
        (
            ("--yarn-beta-slow", "2", "--yarn-beta-fast", "16"),
            (".rope.scaling.yarn_beta_fast=float:16.0", ".rope.scaling.yarn_beta_slow=float:2.0"),
        ),
    ],
)
def test_each_flag_replaces_one_value(flags: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert overrides(*flags) == expected
    with_key = open_model(MODEL, overrides=expected)
    with_key.close()


def test_two_names_of_one_setting_are_refused_together() -> None:
    with pytest.raises(UsageError, match="--rope-freq-scale"):
        overrides("--rope-scale", "2", "--rope-freq-scale", "0.5")


def test_other_positions_are_another_identity() -> None:
    def identity(*flags: str) -> Any:
        options = ModelOptions(n_ctx=64, n_ubatch=16, n_threads=1, overrides=overrides(*flags))
        loaded = load_model(MODEL, options)
        try:
            return loaded.identity
        finally:
            loaded.close()

    plain = identity()
    assert identity() == plain
    assert identity("--rope-freq-base", "12345") != plain
    assert identity("--rope-scale", "2") != plain


PROMPT = np.random.default_rng(3).integers(0, 250, 200).astype(np.int32)
BASE, N_ROT, TRAINED = 500_000.0, 16, 1024


def logits(path: Path, *flags: str) -> Logits:
    options = ModelOptions(
        n_ctx=256, n_ubatch=256, n_threads=1, max_outputs=256, key_type="f32", value_type="f32",
        overrides=overrides(*flags),
    )  # fmt: skip
    loaded = load_model(path, options)
    try:
        return all_logits(loaded, PROMPT)
    finally:
        loaded.close()


@functools.cache
def own_logits() -> Logits:
    return logits(MODEL)


def plain_turns(base: float = BASE) -> np.ndarray:
    return base ** (-np.arange(0, N_ROT, 2) / N_ROT)


def yarn_turns(factor: float, original: int, fast: float = 32, slow: float = 1, ext: float = 1) -> np.ndarray:
    """NTK-by-parts as llama.cpp computes it: between whole pairs it goes from the one to the other."""
    turns = plain_turns()
    low, high = (N_ROT * np.log(original / (beta * 2 * np.pi)) / (2 * np.log(BASE)) for beta in (fast, slow))
    low, high = max(0, np.floor(low)), min(N_ROT - 1, np.ceil(high))
    share = ext * (1 - np.clip((np.arange(N_ROT // 2) - low) / max(0.001, high - low), 0, 1))
    return turns / factor * (1 - share) + turns * share


def turning(tmp_path: Path, turns: np.ndarray, magnitude: float = 1.0) -> Path:
    """The tiny model with these frequencies, through its tensor of divisors, and larger queries and keys."""
    own = {tensor.name: tensor.data.copy() for tensor in gguf.GGUFReader(MODEL).tensors}
    changed = {"rope_freqs.weight": (own["rope_freqs.weight"] * plain_turns() / turns).astype(np.float32)}
    for name, values in own.items():
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            changed[name] = (values * magnitude).astype(np.float32)
    return rewrite(MODEL, tmp_path / "turning.gguf", {}, changed)


YARN = ("--rope-scaling", "yarn", "--rope-scale", "8")
LOG8 = float(1 + 0.1 * np.log(8))


@pytest.mark.parametrize(
    ("flags", "turns", "magnitude"),
    [
        (("--rope-scale", "4"), plain_turns() / 4, 1.0),
        (("--rope-freq-scale", "0.5"), plain_turns() * 0.5, 1.0),
        (("--rope-freq-base", "10000"), plain_turns(10_000.0), 1.0),
        (("--rope-scaling", "none", "--rope-scale", "4"), plain_turns(), 1.0),
        (YARN, yarn_turns(8, TRAINED), LOG8),
        ((*YARN, "--yarn-orig-ctx", "128"), yarn_turns(8, 128), LOG8),
        ((*YARN, "--yarn-attn-factor", "1.3"), yarn_turns(8, TRAINED), 1.3 * LOG8),
        ((*YARN, "--yarn-ext-factor", "0.5"), yarn_turns(8, TRAINED, ext=0.5), LOG8),
        ((*YARN, "--yarn-ext-factor", "0"), plain_turns() / 8, 1.0),
        (("--rope-scale", "8", "--yarn-ext-factor", "0.5"), yarn_turns(8, TRAINED, ext=0.5), LOG8),
        (("--rope-scaling", "none", "--yarn-ext-factor", "0.5"), plain_turns(), 1.0),
        (
            (*YARN, "--yarn-beta-fast", "90", "--yarn-beta-slow", "4"),
            yarn_turns(8, TRAINED, fast=90, slow=4),
            LOG8,
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_flag_turns_positions_as_the_formula_says(
    tmp_path: Path, flags: tuple[str, ...], turns: np.ndarray, magnitude: float
) -> None:
    got = logits(MODEL, *flags)
    assert np.abs(got - logits(turning(tmp_path, turns, magnitude))).max() < 2e-3
    if "none" not in flags:
        assert np.abs(got - own_logits()).max() > 0.1


@pytest.mark.parametrize(
    ("flags", "metadata"),
    [
        (("--rope-freq-scale", "0.5"), {"factor": 2.0}),
        (YARN, {"type": "yarn", "factor": 8.0}),
        (
            (*YARN, "--yarn-orig-ctx", "128", "--yarn-attn-factor", "1.5", "--yarn-beta-fast", "16"),
            {"type": "yarn", "factor": 8.0, "original_context_length": 128, "attn_factor": 1.5,
             "yarn_beta_fast": 16.0},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_flag_means_what_the_files_own_metadata_means(
    tmp_path: Path, flags: tuple[str, ...], metadata: dict[str, Any]
) -> None:
    keys = {f"llama.rope.scaling.{name}": value for name, value in metadata.items()}
    same = rewrite(MODEL, tmp_path / "same.gguf", keys)
    assert np.array_equal(logits(MODEL, *flags), logits(same))


def test_a_files_own_scaling_can_be_taken_away(tmp_path: Path) -> None:
    scaled = arch("llama-bias")
    names = [name for name in gguf.GGUFReader(scaled).fields if ".rope.scaling." in name]
    bare = rewrite(scaled, tmp_path / "bare.gguf", dict.fromkeys(names))
    assert np.array_equal(logits(scaled, "--rope-scaling", "none"), logits(bare))
    assert not np.array_equal(logits(scaled), logits(bare))
