"""Ops with a state: runs of a sequence in chunks, alone and beside others, must not change a bit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from runtime.kernels import job
from tests.runtime.ops.harness import Bench, bench

CHUNKINGS = ((1,), (17,), (64,), (10**6,))
THREADS = (1, 2, 3)


@dataclass
class Stream:
    """One sequence: rows of inputs, the outputs so far, and its state, replaced by every step."""

    inputs: np.ndarray
    state: np.ndarray
    outputs: list[np.ndarray]
    at: int = 0

    @classmethod
    def over(cls, inputs: np.ndarray, n_state: int) -> "Stream":
        return cls(inputs, np.zeros(n_state, np.float32), [])


Emit = Callable[[Bench, np.ndarray, np.ndarray], None]
"""Runs the op on rows x (changed in place, if at all) into rows out."""


def step(b: Bench, emit: Emit, streams: Sequence[Stream], lengths: Sequence[int], width: int) -> None:
    """One step: the next rows of each stream, one run for each."""
    parts = [s.inputs[s.at : s.at + n] for s, n in zip(streams, lengths, strict=True)]
    x = b.array(np.concatenate(parts))
    out = b.array(np.full((len(x), width), np.nan))
    before = [b.array(s.state) for s in streams]
    after = [b.array(np.full_like(s.state, np.nan)) for s in streams]
    starts = np.cumsum([0, *lengths])
    b.runs([(int(starts[i]), n, streams[i].at, []) for i, n in enumerate(lengths)])
    for i in range(len(streams)):
        b.run_words[i, job.RUN_BEFORE] = before[i].ctypes.data
        b.run_words[i, job.RUN_AFTER] = after[i].ctypes.data
    emit(b, x, out)
    for i, (s, n) in enumerate(zip(streams, lengths, strict=True)):
        assert np.array_equal(before[i], s.state), "an op may not change the state it starts from"
        s.state = after[i].copy()
        s.outputs.append(out[starts[i] : starts[i + 1]].copy())
        s.at += n


def alone(
    emit: Emit,
    inputs: np.ndarray,
    n_state: int,
    width: int,
    chunks: Sequence[int] = (10**6,),
    n_threads: int = 2,
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs [rows, width] and the state at the end, of one sequence in chunks (sizes repeat)."""
    stream = Stream.over(inputs, n_state)
    with bench(n_threads) as b:
        i = 0
        while stream.at < len(inputs):
            n = min(chunks[i % len(chunks)], len(inputs) - stream.at)
            step(b, emit, [stream], [n], width)
            i += 1
    return np.concatenate(stream.outputs), stream.state


def assert_bits_depend_on_the_sequence_alone(
    emit: Emit, draw: Callable[[int], np.ndarray], n_state: int, width: int
) -> None:
    """`draw(seed)` gives the inputs of a sequence; those of seed 0 run in every schedule."""
    inputs = draw(0)
    expected, state = alone(emit, inputs, n_state, width)
    assert np.isfinite(expected).all() and np.isfinite(state).all()
    for chunks in CHUNKINGS:
        for n_threads in THREADS:
            got, end = alone(emit, inputs, n_state, width, chunks, n_threads)
            assert np.array_equal(got, expected) and np.array_equal(end, state), (chunks, n_threads)
    streams = [Stream.over(draw(seed), n_state) for seed in (1, 0, 2)]
    with bench(3) as b:
        while streams[1].at < len(inputs):
            left = len(inputs) - streams[1].at
            step(b, emit, streams, [1, min(left, 13), 3], width)
    assert np.array_equal(np.concatenate(streams[1].outputs), expected)
    assert np.array_equal(streams[1].state, state)
