"""The engine: one thread that owns the model, the sequences and the step loop."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from runtime.engine import candidates
from runtime.engine.commands import Cancel, SlotCommand
from runtime.engine.config import EngineConfig
from runtime.engine.core import Core, Message
from runtime.engine.embedding import EmbeddingQueue, EmbedRequest
from runtime.engine.messages import EngineStatistics, Event, Failed, GenerateRequest
from runtime.engine.port import LoadDone, LookupDone, MemoryPort
from runtime.engine.stepping import Step, Stepper
from runtime.errors import InvalidRequest, StepCancelled, StepFailed
from runtime.runner import Runner
from runtime.tokenizers import StreamDetokenizer, Tokenizer

log = logging.getLogger(__name__)


class Engine:
    """Answers requests with a model. Idle it waits without using the CPU.

    `submit`, `cancel` and `post` may be called from any thread; they return at once and never raise. What
    comes of them is told in batches through `deliver`, on the engine's thread: every request ends with one
    `Finished`, `Embedded` or `Failed`, every slot command with one answer. After `close` messages are
    ignored. The runner stays the caller's.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        config: EngineConfig,
        deliver: Callable[[list[Event]], None],
        port: MemoryPort | None = None,
    ) -> None:
        candidates.warm_up()
        self._runner = runner
        self._deliver = deliver
        self._core = Core(
            layout=runner.layout,
            n_vocab=runner.n_vocab,
            eog_ids=frozenset(tokenizer.eog_ids),
            decoder=lambda: StreamDetokenizer(tokenizer),
            config=config,
            port=port,
            clock=time.monotonic,
            wake=self._wake,
            clear_rows=runner.clear_rows,
        )
        self._stepper = Stepper(self._core, runner.n_ubatch)
        self._embeddings = EmbeddingQueue(
            runner, config.n_ctx, config.n_slots, config.max_queue, self._core.emit
        )
        # Held while slots and counters change, not while the model computes: statistics wait for no step.
        self._state = threading.Lock()
        self._signal = threading.Condition()
        self._inbox: deque[Message | EmbedRequest] = deque()
        self._woken = False
        self._closing = False
        # The requests whose cancellation ends the step that is being computed.
        self._reading: frozenset[int] = frozenset()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: GenerateRequest | EmbedRequest) -> None:
        """Queue a request."""
        self._send(request)

    def cancel(self, request_id: int) -> None:
        """End a request; unknown ids are ignored.

        A step that reads its prompt is given up, which takes milliseconds; any other step is finished first.
        """
        with self._signal:
            if not self._closing:
                self._inbox.append(Cancel(request_id))
                self._signal.notify()
                if request_id in self._reading:
                    self._runner.cancel()

    def post(self, message: SlotCommand | LookupDone | LoadDone) -> None:
        """Hand over a slot command, or an answer of the memory port."""
        self._send(message)

    def statistics(self) -> EngineStatistics:
        """A consistent snapshot, taken between steps or while one computes."""
        with self._state:
            return self._core.statistics()

    def close(self) -> None:
        """End all requests as cancelled, offer their prefixes to the store, end the thread. Idempotent."""
        with self._signal:
            self._closing = True
            self._signal.notify()
            if self._reading:
                self._runner.cancel()
        if self._thread.is_alive():
            self._thread.join()

    def _send(self, message: Message | EmbedRequest) -> None:
        with self._signal:
            if not self._closing:
                self._inbox.append(message)
                self._signal.notify()

    def _wake(self) -> None:
        with self._signal:
            self._woken = True
            self._signal.notify()

    def _loop(self) -> None:
        busy = False
        while True:
            messages = self._receive(busy)
            try:
                busy = self._turn(messages)
            except Exception as error:
                # A defect of the engine itself must not take the daemon's other requests with it.
                log.exception("the engine failed")
                with self._state:
                    self._core.abort(StepFailed(f"internal error: {error}"))
                    self._embeddings.abort(StepFailed(f"internal error: {error}"))
                busy = self._flush()
            if self._closing:
                break
        with self._state:
            for message in self._receive(busy=True):
                self._accept(message)
            self._core.shut_down()
            self._embeddings.abort(StepCancelled("the engine is shutting down"))
        self._flush()

    def _receive(self, busy: bool) -> list[Message | EmbedRequest]:
        """The messages since the last time; unless `busy`, wait for one, for a wake-up or for a deadline."""
        with self._signal:
            if not (busy or self._inbox or self._woken or self._closing):
                self._signal.wait(self._timeout())
            self._woken = False
            messages = list(self._inbox)
            self._inbox.clear()
            return messages

    def _timeout(self) -> float | None:
        deadlines = [self._core.next_deadline(), self._stepper.next_deadline()]
        first = min((d for d in deadlines if d is not None), default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def _turn(self, messages: list[Message | EmbedRequest]) -> bool:
        """Take messages, compute one step of each kind; returns whether there may be more to do at once."""
        with self._state:
            for message in messages:
                self._accept(message)
            self._core.expire()
            self._core.admit()
            step = self._stepper.plan()
        told = self._flush()
        embedded = self._embed()
        if step is None:
            return told or embedded or self._prepare()
        self._compute(step)
        self._flush()
        self._prepare()
        return True

    def _prepare(self) -> bool:
        """After everything was told, before anybody waits: see `Checkpoints`."""
        return not self._runner.n_embd and self._core.checkpoints.prepare()

    def _accept(self, message: Message | EmbedRequest) -> None:
        match message:
            case EmbedRequest():
                self._embeddings.accept(message)
                return
            case GenerateRequest(request_id) if self._runner.n_embd:
                refusal = InvalidRequest("the model was loaded for embeddings and cannot generate text")
                self._core.emit(Failed(request_id, refusal))
                return
            case Cancel(request_id):
                self._embeddings.cancel(request_id)
        self._core.accept(message)

    def _embed(self) -> bool:
        """One step of the embeddings that wait; returns whether there were any."""
        step = self._embeddings.plan()
        if step is None:
            return False
        try:
            rows = self._runner.embed(step.runs)
        except StepCancelled:
            # meant for a step of generation that had just ended: this one is computed again
            return True
        except Exception as error:
            log.exception("a step of %d prompts to embed failed", len(step.runs))
            failure = StepFailed(f"the model could not compute a step: {error}")
            with self._state:
                self._embeddings.fail(step, failure)
        else:
            with self._state:
                self._embeddings.finish(step, rows)
        self._flush()
        return True

    def _compute(self, step: Step) -> None:
        begun = time.perf_counter()
        try:
            logits = self._step(step)
        except StepCancelled:
            with self._state:
                self._stepper.give_up(step)
            return
        except Exception as error:
            log.exception("a step of %d rows failed", step.n_rows)
            with self._state:
                self._stepper.fail(step, StepFailed(f"the model could not compute a step: {error}"))
            return
        elapsed = (time.perf_counter() - begun) * 1e3
        with self._state:
            self._stepper.finish(step, logits, elapsed)

    def _step(self, step: Step) -> npt.NDArray[np.float32]:
        """The step's logits. Errors: StepCancelled when a request whose prompt it reads ends meanwhile."""
        reading = self._stepper.reading(step)
        with self._signal:
            ended = {message.request_id for message in self._inbox if isinstance(message, Cancel)}
            if self._closing or ended & reading:
                raise StepCancelled("its requests ended before it began")
            self._reading = reading
        try:
            return self._runner.step(step.runs)
        finally:
            with self._signal:
                self._reading = frozenset()

    def _flush(self) -> bool:
        events = self._core.take_events()
        if events:
            try:
                self._deliver(events)
            except Exception:
                log.exception("%d events could not be delivered", len(events))
        return bool(events)
