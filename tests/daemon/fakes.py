"""An engine that keeps the contract of `runtime.engine` and says what a test tells it to."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count, islice

import numpy as np

from runtime.engine import (
    Embedded,
    EmbedRequest,
    EngineConfig,
    EngineStatistics,
    EraseSlot,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Output,
    Progress,
    SlotErased,
    SlotState,
    Started,
    StopReason,
    Timings,
    TokenOutput,
    TokenProb,
)
from runtime.errors import ContextExceeded

Script = Callable[[GenerateRequest], list[str]]


def alphabet(request: GenerateRequest) -> list[str]:
    """`n_predict` words, eight when there is no limit."""
    n = 8 if request.n_predict < 0 else request.n_predict
    return [f" w{i}" for i in islice(count(), n)]


class FakeEngine:
    """Answers with the words of `script`, one per turn of its thread, when `gate` is open."""

    def __init__(self, config: EngineConfig, deliver: Callable[[list[Event]], None]) -> None:
        self.config = config
        self.script: Script = alphabet
        self.logprob: Callable[[GenerateRequest], float] = lambda request: -0.5
        self.gate = threading.Event()
        self.gate.set()
        self.requests: list[GenerateRequest] = []
        self.embedded: list[EmbedRequest] = []
        self.cancelled: list[int] = []
        self.failure: Exception | None = None
        self.pace = 0.0
        self._deliver = deliver
        self._inbox: deque[GenerateRequest | int | EraseSlot] = deque()
        self._waiting: deque[GenerateRequest] = deque()
        self._running: dict[int, tuple[GenerateRequest, list[str], int]] = {}
        self._slots = [SlotState(i, config.n_ctx, False) for i in range(config.n_slots)]
        self._wake = threading.Event()
        self._closing = False
        self._steps = 0
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: GenerateRequest | EmbedRequest) -> None:
        """Rows of embeddings are (token id, position), whatever the readout makes of them."""
        if isinstance(request, EmbedRequest):
            self._embed(request)
            return
        self.requests.append(request)
        self._post(request)

    def _embed(self, request: EmbedRequest) -> None:
        n = sum(map(len, request.prompts))
        longest = max(map(len, request.prompts))
        self.embedded.append(request)
        if longest > self.config.n_ctx:
            error = ContextExceeded(longest, self.config.n_ctx)
            self._deliver([Failed(request.request_id, error)])
            return
        rows = [np.stack([p, np.arange(len(p))], axis=1).astype(np.float32) for p in request.prompts]
        vectors = tuple(request.readout(one) for one in rows)
        self._deliver([Embedded(request.request_id, vectors, n)])

    def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)
        self._post(request_id)

    def post(self, message: object) -> None:
        assert isinstance(message, EraseSlot)
        self._post(message)

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            prompt_tokens_total=sum(len(r.prompt) for r in self.requests),
            requests_processing=len(self._running),
            requests_deferred=len(self._waiting),
            steps_total=self._steps,
            n_decode_total=self._steps,
            slots=tuple(self._slots),
        )

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self.gate.set()
        self._thread.join()

    def _post(self, message: GenerateRequest | int | EraseSlot) -> None:
        self._inbox.append(message)
        self._wake.set()

    def _loop(self) -> None:
        while not self._closing:
            if not (self._running or self._inbox):
                self._wake.wait(1)
            self._wake.clear()
            self._take_messages()
            self._admit()
            if self.gate.wait(0.005):
                self._step()

    def _take_messages(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, EraseSlot):
                self._deliver([SlotErased(message.ticket, n_erased=7)])
            elif isinstance(message, int):
                self._waiting = deque(r for r in self._waiting if r.request_id != message)
                for slot, (request, _, _) in list(self._running.items()):
                    if request.request_id == message:
                        self._finish(slot, StopReason.CANCELLED)
            elif self.failure is not None:
                self._deliver([Failed(message.request_id, self.failure)])
            elif len(message.prompt) >= self.config.n_ctx:
                error = ContextExceeded(len(message.prompt), self.config.n_ctx)
                self._deliver([Failed(message.request_id, error)])
            else:
                self._waiting.append(message)

    def _admit(self) -> None:
        for slot in self._slots:
            if not self._waiting:
                return
            if slot.id in self._running:
                continue
            request = self._waiting.popleft()
            self._running[slot.id] = (request, self.script(request), 0)
            n = len(request.prompt)
            self._slots[slot.id] = replace(
                slot, is_processing=True, id_task=request.request_id, n_prompt_tokens=n
            )
            events: list[Event] = [Started(request.request_id, slot.id, n, 0)]
            if request.return_progress:
                events += [Progress(request.request_id, n, 0, done, 1.0) for done in (0, n)]
            self._deliver(events)

    def _step(self) -> None:
        self._steps += 1
        for slot, (request, words, done) in list(self._running.items()):
            if done == len(words):
                limited = request.n_predict >= 0 and done >= request.n_predict
                self._finish(slot, StopReason.LIMIT if limited else StopReason.EOS)
                continue
            self._running[slot] = (request, words, done + 1)
            token = TokenOutput(65 + done % 26)
            if n := request.sampling.n_probs:
                probs = [TokenProb(65 + i, -float(i), 0.5**i if i < 2 else 0.0) for i in range(n)]
                token = TokenOutput(token.id, TokenProb(token.id, self.logprob(request), 0.6), tuple(probs))
            timings = Timings(predicted_n=done + 1)
            self._deliver([Output(request.request_id, words[done], (token,), timings)])

    def _finish(self, slot: int, reason: StopReason) -> None:
        request, _, done = self._running.pop(slot)
        self._slots[slot] = replace(self._slots[slot], is_processing=False)
        n = len(request.prompt)
        timings = Timings(prompt_n=n, prompt_ms=2.0, predicted_n=done, predicted_ms=4.0)
        self._deliver([Finished(request.request_id, slot, reason, "", False, n, n + done, timings)])
