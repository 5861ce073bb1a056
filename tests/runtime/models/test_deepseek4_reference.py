"""The float64 model that DeepSeek V4 is held to, itself held to what llama.cpp computed, rule by rule.

For each rule that is easily got wrong there is the mistake nearest to it: made in the reference, it must show
in the oracles far above any tolerance. So an engine that agrees with the oracles has not made it.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.runtime.models.deepseek4_reference import (
    Accumulator,
    Array,
    Reference,
    rms,
    sigmoid,
    softmax,
    turn,
)
from tests.shared_data import shared

NOTICED = 0.05  # fifty times what an engine may differ by


def dsv4(name: str) -> Path:
    return shared(f"models/dsv4/dsv4-tiny-{name}")


def oracle(name: str) -> dict[str, Array]:
    return dict(np.load(dsv4(f"{name}.npz")))


@pytest.mark.parametrize(
    ("name", "kind"), [("a-f32", "short"), ("a-f32", "long"), ("a-q8_0", "short"), ("a-q8_0", "long")]
)
def test_prompt_and_continuation_equal_the_oracle(name: str, kind: str) -> None:
    o = oracle(f"{name}.{kind}")
    exact = "_exact" if "logits_exact" in o else ""
    greedy = o[f"greedy_tokens{exact}"]
    got = Reference(dsv4(f"{name}.gguf")).logits(np.concatenate([o["tokens"], greedy]))
    want = np.concatenate([o[f"logits{exact}"], o[f"greedy_logits{exact}"]])
    assert np.abs(got - want).max() < 1e-4


def test_going_back_to_a_saved_state_equals_a_fresh_run() -> None:
    o = oracle("a-f32.rollback")
    reference = Reference(dsv4("a-f32.gguf"))
    saved = {}
    for i, token in enumerate(o["base"]):
        logits = reference.feed(int(token))
        if i + 1 in o["points"]:
            saved[i + 1] = reference.save(), logits
    for n, (state, logits) in saved.items():
        reference.restore(state)
        got = np.concatenate([logits[None], reference.logits(o[f"alt_{n}"])])
        assert np.abs(got - o[f"logits_{n}"]).max() < 1e-4


def test_the_block_that_predicts_a_further_token_equals_the_oracle() -> None:
    o = oracle("a-mtp-f32.mtp")
    reference = Reference(dsv4("a-mtp-f32.gguf"))
    trunk, drafts = [], []
    for p, token in enumerate(o["tokens"]):
        drafts.append(reference.draft(int(token), p, reference.streams))
        trunk.append(reference.feed(int(token)))
    assert np.abs(trunk - o["logits"]).max() < 1e-4
    assert np.abs(drafts - o["mtp_logits"]).max() < 1e-4


class SwappedHalves(Reference):
    """1: the block before gives the second half, the block itself the first."""

    def pooled(self, accumulator: Accumulator, row: int, ratio: int) -> Array:
        if ratio != 4:
            return super().pooled(accumulator, row, ratio)
        swapped = Accumulator(8, accumulator.values.shape[1])
        swapped.values = np.roll(accumulator.values, self.d, 1)
        swapped.scores = np.roll(accumulator.scores, self.d, 1)
        if accumulator.values.shape[1] != 2 * self.d:
            return super().pooled(accumulator, row, ratio)
        return super().pooled(swapped, row, ratio)


class ZeroesBeforeTheFirst(Reference):
    """1: the block before the first takes weight with values of zero, instead of no part."""

    def pooled(self, accumulator: Accumulator, row: int, ratio: int) -> Array:
        if ratio != 4 or row:
            return super().pooled(accumulator, row, ratio)
        values, scores = accumulator.get(-4, 8)
        half = values.shape[1] // 2
        values = np.concatenate([0 * values[:4, :half], values[4:, half:]])
        scores = np.concatenate([0 * scores[:4, :half], scores[4:, half:]])
        return (softmax(scores, 0) * values).sum(0)


class FirstDims(Reference):
    """2: rope on the first dims of a head instead of the last."""

    def rope(self, x: Array, ratio: int, position: int) -> Array:
        return np.roll(turn(np.roll(x, -self.n_rot, -1), self.frequencies(ratio), position), self.n_rot, -1)


class Halves(Reference):
    """2: pairs half a rotation apart."""

    def rope(self, x: Array, ratio: int, position: int) -> Array:
        order = np.arange(x.shape[-1])
        order[-self.n_rot :] = order[-self.n_rot :].reshape(2, -1).T.reshape(-1)
        out = np.empty_like(x)
        out[..., order] = super().rope(x[..., order], ratio, position)
        return out


class OneBase(Reference):
    """2: layers that compress rotate as the others do."""

    def frequencies(self, ratio: int) -> Array:
        return self.plain


class LastPosition(Reference):
    """2: a compressed row rotated at its block's last position."""

    def row_position(self, row: int, ratio: int) -> int:
        return row * ratio + ratio - 1


class StillRotated(Reference):
    """2: the attention output not rotated back."""

    def unrotated(self, out: Array, ratio: int, p: int) -> Array:
        return out


class NormPerStream(Reference):
    """3: a norm for each stream instead of one over all."""

    def mix(self, streams: Array, name: str) -> Array:
        return self.w(f"{name}_fn") @ rms(streams, self.eps).reshape(-1)


class NotTransposed(Reference):
    """3: C applied from target to source."""

    def hc_post(self, streams: Array, y: Array, post: Array, c: Array) -> Array:
        return post[:, None] * y + c @ streams


class SoftmaxOverSources(Reference):
    """3: softmax over the wrong side."""

    def sinkhorn(self, logits: Array) -> Array:
        self.iterations, kept = 1, self.iterations
        c = super().sinkhorn(logits.T).T
        self.iterations = kept
        return c


class PostWithoutTwo(Reference):
    """3: post without its factor."""

    def hc_post(self, streams: Array, y: Array, post: Array, c: Array) -> Array:
        return super().hc_post(streams, y, post / 2, c)


class OneSoftmaxForAllChannels(Reference):
    """4: a block's rows weighed as a whole."""

    def pooled(self, accumulator: Accumulator, row: int, ratio: int) -> Array:
        flat = Accumulator(len(accumulator.scores), accumulator.scores.shape[1])
        flat.values = accumulator.values
        flat.scores = np.repeat(accumulator.scores.mean(1, keepdims=True), flat.scores.shape[1], 1)
        return super().pooled(flat, row, ratio)


class VisibleLater(Reference):
    """5: a row hidden from the position that completes it."""

    def visible(self, p: int, ratio: int) -> int:
        return p // ratio


class ShortRing(Reference):
    """6: raw rows overwritten before the batch's earlier queries read them, as if one fewer were there."""

    def attention(self, layer: int, x: Array, p: int) -> Array:
        state = self.states[layer]
        state.raw[(p + 1) % self.S] = state.raw[p % self.S]
        return super().attention(layer, x, p)


class NormedIndexQueries(Reference):
    """7: the index's queries normed as the others are."""

    def index_queries(self, qr: Array, n: str) -> Array:
        return rms(super().index_queries(qr, n), 1.0)


class QueriesWithoutNorm(Reference):
    """7: queries as they are."""

    def queries(self, qr: Array, n: str) -> Array:
        return (self.w(f"{n}attn_q_b") @ qr).reshape(self.H, self.d)


class RotatedThenNormed(Reference):
    """7: a raw row's norm, whose weights are not alike, after its rope."""

    def raw_row(self, x: Array, n: str, ratio: int, p: int) -> Array:
        return rms(self.rope(self.w(f"{n}attn_kv") @ x, ratio, p), self.eps, self.w(f"{n}attn_kv_a_norm"))


class ScaledSinks(Reference):
    """7: sinks scaled like the scores."""

    def weigh(self, scores: Array, sinks: Array) -> Array:
        return super().weigh(scores, sinks / np.sqrt(self.d))


class InterleavedGroups(Reference):
    """8: groups of every G-th head instead of consecutive ones."""

    def project(self, out: Array, n: str) -> Array:
        return super().project(out.reshape(-1, self.G, self.d).swapaxes(0, 1).reshape(self.H, self.d), n)


class ScoredHashLayers(Reference):
    """9: layers with a table choose by scores."""

    def choose(self, g: Array, layer: int, token: int) -> Array:
        return np.argsort(-g)[: self.K] if layer < self.n_hash else super().choose(g, layer, token)


class ChosenWithoutBias(Reference):
    """9: the bias left out of the selection."""

    def choose(self, g: Array, layer: int, token: int) -> Array:
        return super().choose(g, layer, token) if layer < self.n_hash else np.argsort(-g)[: self.K]


class ClampedAfterSilu(Reference):
    """9: the gate clamped when silu has been taken."""

    def activate(self, gate: Array, up: Array, limit: float) -> Array:
        return np.minimum(gate * sigmoid(gate), limit) * np.clip(up, -limit, limit)


class GateClampedBelow(Reference):
    """9: the gate clamped on both sides."""

    def activate(self, gate: Array, up: Array, limit: float) -> Array:
        return super().activate(np.maximum(gate, -limit), up, limit)


MISTAKES = [
    *(SwappedHalves, ZeroesBeforeTheFirst),
    *(FirstDims, Halves, OneBase, LastPosition, StillRotated),
    *(NormPerStream, NotTransposed, SoftmaxOverSources, PostWithoutTwo),
    *(OneSoftmaxForAllChannels, VisibleLater, ShortRing),
    *(NormedIndexQueries, QueriesWithoutNorm, RotatedThenNormed, ScaledSinks),
    *(InterleavedGroups, ScoredHashLayers, ChosenWithoutBias, ClampedAfterSilu, GateClampedBelow),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.__name__)
def test_a_rule_broken_shows_in_the_oracle(mistake: type[Reference]) -> None:
    o = oracle("a-f32.long")
    reference = mistake(dsv4("a-f32.gguf"))
    worst = 0.0
    for token, want in zip(o["tokens"], o["logits"], strict=True):
        worst = max(worst, float(np.abs(reference.feed(int(token)) - want).max()))
        if worst > NOTICED:
            return
    pytest.fail(f"differs by {worst} only")


def test_a_truncated_raw_cache_beside_untouched_accumulators_shows_in_the_oracle() -> None:
    """10: going back without a saved state; there is no error, only other logits."""
    o = oracle("a-f32.rollback")
    reference = Reference(dsv4("a-f32.gguf"))
    reference.logits(o["base"])
    n = 200
    reference.n_tokens = n
    for state, ratio in zip(reference.states, reference.ratios, strict=False):
        del state.rows[n // max(1, ratio) :], state.index_rows[n // max(1, ratio) :]
    worst = np.abs(reference.logits(o[f"alt_{n}"]) - o[f"logits_{n}"][1:]).max()
    assert worst > NOTICED
