"""One answer in the making: sampled tokens become text until something ends it."""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from runtime.engine.candidates import Logits
from runtime.engine.messages import GenerateRequest, StopReason, TokenOutput
from runtime.engine.sampling import Sampler
from runtime.engine.stops import StopSearch


class TextDecoder(Protocol):
    """Turns token ids into text; keeps back bytes that do not make a whole character yet."""

    def feed(self, token: int, /) -> str: ...

    def flush(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token released. `reason` is NONE while the answer goes on."""

    token: int
    text: str
    outputs: tuple[TokenOutput, ...]
    reason: StopReason


class Answer:
    """Checks in llama-server's order (http-api.md §15.6): stop string, context full, budget, end token.

    Tokens are handed out together with the end of their text; those that lie wholly in a stop string never
    are.
    """

    def __init__(
        self, request: GenerateRequest, decoder: TextDecoder, eog_ids: frozenset[int], n_ctx: int
    ) -> None:
        self.n_decoded = 0
        self.has_new_line = False
        self.stopping_word = ""
        self.truncated = False
        self.sampler = Sampler(request.sampling, request.prompt, eog_ids, n_ctx)
        self._n_predict = request.n_predict
        self._n_room = n_ctx - len(request.prompt)
        self._eog_ids = eog_ids
        self._decoder = decoder
        self._stops = StopSearch(request.stop)
        self._held: deque[_Held] = deque()
        self._n_assembled = 0
        self._n_released = 0
        self._ended = False

    @property
    def n_remain(self) -> int:
        """Tokens left of the budget, -1 without one."""
        return -1 if self._n_predict < 0 else max(0, self._n_predict - self.n_decoded)

    def advance(self, logits: Logits) -> Piece:
        """Sample the next token and decide whether it is the last."""
        output = self.sampler.sample(logits)
        self.n_decoded += 1
        ends = output.id in self._eog_ids
        text = "" if ends else self._decoder.feed(output.id)
        start = self._n_assembled
        self._n_assembled += len(text)
        # A token whose character is not whole yet belongs to text that is still to come.
        self._held.append(_Held(output, start, self._n_assembled if text or ends else start + 1))
        released, word = self._scan(text)
        reason = StopReason.WORD if word else self._limit(ends)
        if reason not in (StopReason.NONE, StopReason.WORD):
            more, word = self._scan(self._decoder.flush())
            reason = StopReason.WORD if word else reason
            released += more if word else more + self._stops.flush()
        self._n_released += len(released)
        self._ended = reason is not StopReason.NONE
        self.stopping_word = word
        self.has_new_line = self.has_new_line or "\n" in released
        return Piece(output.id, released, self._release(reason), reason)

    def cut(self) -> tuple[str, tuple[TokenOutput, ...]]:
        """End here, if nothing ended the answer before: the text and tokens that were held back."""
        if self._ended:
            return "", ()
        self._ended = True
        text = self._stops.flush()
        self._n_released += len(text)
        self.has_new_line = self.has_new_line or "\n" in text
        return text, self._release(StopReason.LIMIT)

    def _scan(self, text: str) -> tuple[str, str]:
        if not text:
            return "", ""
        scan = self._stops.feed(text)
        return scan.text, scan.word

    def _limit(self, ends: bool) -> StopReason:
        self.truncated = self.n_decoded >= self._n_room
        if ends:
            return StopReason.EOS
        if self.truncated or (0 <= self._n_predict <= self.n_decoded):
            return StopReason.LIMIT
        return StopReason.NONE

    def _release(self, reason: StopReason) -> tuple[TokenOutput, ...]:
        """Tokens whose text is out; at the end also those that have no text or only a part of it out."""
        held = self._held
        if reason is StopReason.NONE:
            done = []
            while held and held[0].end <= self._n_released:
                done.append(held.popleft().output)
            return tuple(done)
        cut_off = reason is StopReason.WORD
        done = [h.output for h in held if not cut_off or h.start < self._n_released]
        held.clear()
        return tuple(done)


@dataclass(frozen=True, slots=True)
class _Held:
    """A token and where its text begins and ends in the answer, in characters."""

    output: TokenOutput
    start: int
    end: int
