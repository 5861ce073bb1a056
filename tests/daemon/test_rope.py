"""The rope flags: what they ask of the model file, and that the model listens."""

from typing import Any

import pytest

from daemon.config import build_config
from daemon.flags import UsageError
from daemon.rope import rope_overrides
from runtime.gguf import open_model
from runtime.model import ModelOptions, load_model
from tests.daemon.harness import MODEL


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
