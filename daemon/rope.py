"""The rope and yarn flags, as overrides of the model file's own values."""

from daemon.config import Config
from daemon.flags import UsageError

_YARN = (
    ("yarn_ext_factor", "yarn_ext_factor"),
    ("yarn_attn_factor", "attn_factor"),
    ("yarn_beta_fast", "yarn_beta_fast"),
    ("yarn_beta_slow", "yarn_beta_slow"),
)


def rope_overrides(config: Config) -> tuple[str, ...]:
    """One ``KEY=TYPE:VALUE`` for each flag that was given; the keys are of whatever architecture is loaded.

    Raises UsageError when two flags contradict each other.
    """
    if config.rope_scale and config.rope_freq_scale:
        raise UsageError("--rope-scale and --rope-freq-scale are the same setting: give one of them")
    factor = config.rope_scale or (1 / config.rope_freq_scale if config.rope_freq_scale else 0.0)
    overrides = []
    if config.rope_scaling:
        overrides.append(f".rope.scaling.type=str:{config.rope_scaling}")
    if factor:
        overrides.append(f".rope.scaling.factor=float:{factor!r}")
    if config.rope_freq_base:
        overrides.append(f".rope.freq_base=float:{config.rope_freq_base!r}")
    if config.yarn_orig_ctx:
        overrides.append(f".rope.scaling.original_context_length=int:{config.yarn_orig_ctx}")
    for name, key in _YARN:
        if (value := getattr(config, name)) >= 0:
            overrides.append(f".rope.scaling.{key}=float:{value!r}")
    return tuple(overrides)
