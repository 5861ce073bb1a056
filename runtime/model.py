"""From a model file to something that computes logits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runtime.errors import ModelError
from runtime.gguf import ModelFile, open_model
from runtime.memory.layout import MemoryLayout
from runtime.models import builder, is_encoder
from runtime.plan import checked
from runtime.plan.arena import Arena
from runtime.plan.builder import Plan
from runtime.plan.executor import PlanRunner
from runtime.plan.options import PlanOptions
from runtime.plan.weights import Weights
from runtime.pooling import Pooling
from runtime.readout import Readout, read_readout
from runtime.tokenizers import Tokenizer, load_tokenizer

NUMERICS = {
    "dense-attention": 1,
    "conv": 1,
    "delta-net": 1,
    "mamba": 1,
    "wkv": 1,
    "latent-attention": 1,
    "deepseek4": 1,
}
"""Versions of the arithmetic per kernel family; raised by hand when a change alters bits that are stored."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How to load. `n_ctx` is the context of one sequence (0: what the model was trained for).

    `n_threads` decode; `n_threads_batch` (0: as many) run the steps that read prompts. Without `repack`
    weights stay in the mapped file and are packed when they are met: less memory, slower, the same logits.

    `rotate_k` and `rotate_v` tell whether heads are rotated by a Hadamard matrix before they are stored;
    None means where they are quantised and 64 divides their size.

    `max_runs` bounds the sequences of a step, `max_outputs` the rows of a step that can have logits.
    `embeddings` makes a model that computes hidden states instead of logits; encoders do nothing else, and
    keep keys and values in f32. `draft` makes one whose logits at a position are those of the token after the
    next one, by the block that a file may have for that.
    """

    n_ctx: int = 0
    n_ubatch: int = 512
    n_threads: int = 2
    n_threads_batch: int = 0
    max_runs: int = 4
    max_outputs: int = 4
    key_type: str = "f16"
    value_type: str = "f16"
    rotate_k: bool | None = None
    rotate_v: bool | None = None
    embeddings: bool = False
    draft: bool = False
    repack: bool = True
    overrides: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. `identity` are the (name, value) pairs that decide the bytes of state."""

    file: ModelFile
    tokenizer: Tokenizer
    runner: PlanRunner
    n_ctx: int
    n_ctx_train: int
    identity: tuple[tuple[str, str | int | float], ...]

    @property
    def embeddings(self) -> bool:
        """Whether it computes embeddings; otherwise it computes logits."""
        return self.runner.n_embd > 0

    def readout(self, pooling: Pooling | None = None) -> Readout:
        """How hidden states become vectors; see `runtime.readout.read_readout`."""
        return read_readout(self.file, pooling)

    def close(self) -> None:
        self.runner.close()
        self.file.close()


def load_model(
    path: Path, options: ModelOptions, progress: Callable[[str, float], None] | None = None
) -> LoadedModel:
    """Open, check, pack and compile.

    `progress(stage, share)` is called with stage "load" while weights are packed and "compile" while kernels
    are compiled or loaded from the cache. Errors: ModelError, also for a file that changes meanwhile. Then
    nothing of it stays mapped.
    """
    file = open_model(path, overrides=options.overrides)
    try:
        return _load(file, options, progress)
    except BaseException:
        file.close()
        raise


def _load(
    file: ModelFile, options: ModelOptions, progress: Callable[[str, float], None] | None
) -> LoadedModel:
    build = builder(file.architecture, draft=options.draft)
    tokenizer = load_tokenizer(file)
    n_ctx_train = file.get_int(file.arch_key("context_length"))
    n_ctx = options.n_ctx or n_ctx_train
    if n_ctx == 0:
        raise ModelError(
            f"{file.path.name}: {file.arch_key('context_length')} is 0 and no context size was given"
        )
    if is_encoder(file):
        options = replace(
            options, embeddings=True, key_type="f32", value_type="f32", rotate_k=False, rotate_v=False
        )

    def report(share: float) -> None:
        if progress is not None:
            progress("load", share)

    arena = Arena(guarded=checked.wanted())
    n_threads_batch = options.n_threads_batch or options.n_threads
    weights = Weights(file, arena, max(options.n_threads, n_threads_batch), report, repack=options.repack)
    plan = Plan(file, weights, arena, _sizes(options, n_ctx))
    build(plan)
    layout = plan.finish()
    # weights were read through the mapping: what was written to the file meanwhile is in them
    file.verify_unchanged()
    runner = PlanRunner(plan, layout, options.n_threads, n_threads_batch, progress)
    identity = (
        ("architecture", file.architecture),
        *plan.identity,
        *((f"override.{i}", override) for i, override in enumerate(sorted(options.overrides))),
        *((f"numerics.{family}", version) for family, version in NUMERICS.items() if family in plan.families),
    )
    return LoadedModel(file, tokenizer, runner, n_ctx, n_ctx_train, identity)


def memory_layout(file: ModelFile, n_ctx: int) -> MemoryLayout:
    """What a sequence of the model remembers with f16 caches; also finds what keeps the model from running.

    Nothing is packed or compiled. Errors: those of `load_model`.
    """
    options = ModelOptions(n_ubatch=1, max_runs=1, max_outputs=1)
    arena = Arena()
    plan = Plan(file, Weights(file, arena, 1, _ignore, repack=False), arena, _sizes(options, n_ctx))
    builder(file.architecture)(plan)
    return plan.finish()


def _sizes(options: ModelOptions, n_ctx: int) -> PlanOptions:
    return PlanOptions(
        n_ctx=n_ctx,
        n_ubatch=options.n_ubatch,
        max_runs=options.max_runs,
        max_outputs=options.max_outputs,
        key_type=options.key_type,
        value_type=options.value_type,
        rotate_k=options.rotate_k,
        rotate_v=options.rotate_v,
        embeddings=options.embeddings,
    )


def _ignore(share: float) -> None:
    """Nobody watches the progress."""
