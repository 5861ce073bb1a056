"""Repetition, frequency and presence penalties over the last tokens."""

from collections import deque

import numpy as np

from runtime.engine.candidates import Logits
from runtime.engine.messages import SamplingParams, Tokens


class Penalties:
    """Counts the tokens of a sliding window and lowers their logits.

    With c occurrences in the last `repeat_last_n` tokens (-1: all of `n_ctx`), as llama.cpp has it: divide a
    positive logit by `repeat_penalty`, multiply any other, then subtract ``c · frequency + presence``.
    """

    def __init__(self, params: SamplingParams, n_ctx: int, history: Tokens) -> None:
        last_n = n_ctx if params.repeat_last_n < 0 else params.repeat_last_n
        self._repeat = params.repeat_penalty
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        neutral = self._repeat == 1.0 and self._frequency == 0.0 and self._presence == 0.0
        self.active = last_n > 0 and not neutral
        self._last_n = last_n
        self._window: deque[int] = deque()
        self._counts: dict[int, int] = {}
        if self.active:
            for token in history[-last_n:].tolist():
                self.accept(token)

    def accept(self, token: int) -> None:
        """`token` is now the newest of the window."""
        if not self.active:
            return
        if len(self._window) == self._last_n:
            oldest = self._window.popleft()
            if self._counts[oldest] == 1:
                del self._counts[oldest]
            else:
                self._counts[oldest] -= 1
        self._window.append(token)
        self._counts[token] = self._counts.get(token, 0) + 1

    def apply(self, logits: Logits) -> None:
        """Lower the logits in place."""
        if not self._counts:
            return
        ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float64, len(self._counts))
        values = logits[ids].astype(np.float64)
        # Absurd parameters make infinities, which sampling refuses; they are no reason for a warning.
        with np.errstate(all="ignore"):
            values = np.where(values <= 0, values * self._repeat, values / self._repeat)
            logits[ids] = values - counts * self._frequency - self._presence
