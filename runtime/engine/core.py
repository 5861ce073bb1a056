"""The engine without its thread: requests, slots and commands. One thread at a time drives it.

`accept` takes messages, `admit` gives slots to what waits, `plan` / `finish` / `fail` frame the one step that
the model computes in between, `take_events` hands out what happened. Nothing here waits or computes logits.
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable, Collection

import numpy as np

from runtime.engine.answer import Answer, TextDecoder
from runtime.engine.checkpoints import Checkpoints
from runtime.engine.commands import (
    Cancel,
    CaptureSlot,
    EraseSlot,
    ForgetText,
    InstallPrefix,
    PrefixInstalled,
    SlotCaptured,
    SlotCommand,
    SlotErased,
    TextForgotten,
    refusal,
)
from runtime.engine.config import EngineConfig
from runtime.engine.counters import Counters
from runtime.engine.forgetting import forget, in_use
from runtime.engine.lending import ClearRows, Lender
from runtime.engine.messages import (
    CacheSource,
    EngineStatistics,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Output,
    Progress,
    Started,
    StopReason,
    Timings,
)
from runtime.engine.port import LoadDone, LookupDone, MemoryPort
from runtime.engine.restore import Restored, Restorer, Wanted
from runtime.engine.resume import CacheReason, spaced_turns
from runtime.engine.schedule import SlotView, choose_slot
from runtime.engine.slot import Phase, Slot, Task
from runtime.engine.validation import check_prefix, check_request, no_such_slot
from runtime.errors import InvalidRequest, PoolExhausted, QueueFull
from runtime.memory.layout import MemoryLayout
from runtime.memory.pool import BlockPool
from runtime.memory.prefix import PrefixIndex, common_prefix
from runtime.memory.sequence import BlockSequence

log = logging.getLogger(__name__)

Message = GenerateRequest | Cancel | SlotCommand | LookupDone | LoadDone


class Core:
    """`eog_ids` end an answer, `decoder` makes its text decoder, `wake` is called when a lease returns.

    `clear_rows` is the runner's.
    """

    def __init__(
        self,
        layout: MemoryLayout,
        n_vocab: int,
        eog_ids: frozenset[int],
        decoder: Callable[[], TextDecoder],
        config: EngineConfig,
        port: MemoryPort | None,
        clock: Callable[[], float],
        wake: Callable[[], None],
        clear_rows: ClearRows,
    ) -> None:
        self.config = config
        self.clock = clock
        self.counters = Counters()
        tail_bytes = layout.tail.memory_bytes(config.n_slots, config.point_bytes) if layout.tail else None
        self.pool = BlockPool(layout, config.n_blocks, config.pool_bytes, tail_bytes)
        self.index = PrefixIndex(self.pool)
        self.checkpoints = Checkpoints(config, self.index, layout.tail)
        self.slots = [Slot(i, self._empty_sequence(b"")) for i in range(config.n_slots)]
        self._n_vocab = n_vocab
        self._eog_ids = eog_ids
        self._decoder = decoder
        self.lender = Lender(self.pool, port, config, wake, clear_rows)
        self._restorer = Restorer(self.index, port, self._allocate, config.restore_seconds, clock, n_vocab)
        self._waiting: deque[tuple[int, GenerateRequest]] = deque()
        self._deferred: deque[SlotCommand] = deque()
        self._arrivals = itertools.count(1)
        self._uses = itertools.count(1)
        self._events: list[Event] = []

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def emit(self, event: Event) -> None:
        self._events.append(event)

    def next_deadline(self) -> float | None:
        """When `expire` has something to do, in seconds of the clock."""
        return self._restorer.next_deadline()

    def statistics(self) -> EngineStatistics:
        return self.counters.statistics(self.index, self.slots, len(self._waiting))

    def accept(self, message: Message) -> None:
        match message:
            case GenerateRequest():
                self._enqueue(message)
            case Cancel():
                self._cancel(message.request_id)
            case LookupDone() | LoadDone():
                ended = self._restorer.answered(message)
                if ended is not None:
                    self._restored(*ended)
            case ForgetText():
                self._deferred.append(message)
            case CaptureSlot() | InstallPrefix() | EraseSlot():
                if 0 <= message.id_slot < len(self.slots):
                    self._deferred.append(message)
                else:
                    self.emit(refusal(message, no_such_slot(message.id_slot, len(self.slots))))

    def expire(self) -> None:
        """Go on without the store where it took too long."""
        for slot, restored in self._restorer.expired():
            log.warning("slot %d: the store did not answer in time", slot.id)
            self._restored(slot, restored)

    def admit(self) -> None:
        """Run the commands whose slot is idle, then give idle slots to waiting requests in FIFO order."""
        for _ in range(len(self._deferred)):
            command = self._deferred.popleft()
            if isinstance(command, ForgetText):
                waits = in_use(self.slots, (request for _, request in self._waiting), command)
            else:
                waits = not self.slots[command.id_slot].idle
            if waits:
                self._deferred.append(command)
            else:
                self._run(command)
        self.lender.offer_again(self.slots)
        for entry in list(self._waiting):
            if not any(slot.idle for slot in self.slots):
                return
            slot_id = self._choose(entry[1])
            if slot_id is not None:
                self._waiting.remove(entry)
                self._assign(self.slots[slot_id], *entry)

    def release(self, slot: Slot, reason: StopReason) -> None:
        """End the slot's request in order; what it computed stays cached and is offered to the store."""
        task = slot.task
        assert task is not None
        text, outputs = task.answer.cut()
        if text or outputs:
            self.emit(Output(task.request.request_id, text, outputs))
        self._close_timings(task)
        self.emit(
            Finished(
                request_id=task.request.request_id,
                id_slot=slot.id,
                reason=reason,
                stopping_word=task.answer.stopping_word,
                truncated=task.answer.truncated,
                n_prompt=len(task.request.prompt),
                n_cached_total=slot.sequence.n_tokens,
                timings=task.timings,
                has_new_line=task.answer.has_new_line,
            )
        )
        # A step that was given up has reserved more.
        slot.sequence.truncate(slot.sequence.n_tokens)
        slot.sequence.publish_tail()
        self.checkpoints.passed(slot, self.slots, releasing=True)
        self.lender.offer(slot, slot.sequence.n_tokens, "release")
        self._rest(slot)

    def fail(self, slot: Slot, error: Exception) -> None:
        """End the slot's request with an error and forget the rows that only it relied on."""
        task = slot.task
        assert task is not None
        self._close_timings(task)
        self.emit(Failed(task.request.request_id, error))
        self._erase(slot)
        self._rest(slot)

    def preempt(self, slot: Slot) -> None:
        """Take the slot away from a request that has no output yet; it is the next to get one."""
        task = slot.task
        assert task is not None
        self._waiting.appendleft((task.arrival, task.request))
        slot.sequence.clear()
        self._rest(slot)

    def reclaim(self) -> bool:
        """Empty the idle slot that was unused the longest, so that its blocks can be evicted."""
        idle = [slot for slot in self.slots if slot.idle and slot.sequence.n_tokens]
        if not idle:
            return False
        min(idle, key=lambda slot: slot.last_used).sequence.clear()
        return True

    def abort(self, error: Exception) -> None:
        """Fail everything that lives or waits."""
        while self._waiting:
            self.emit(Failed(self._waiting.popleft()[1].request_id, error))
        while self._deferred:
            self.emit(refusal(self._deferred.popleft(), error))
        for slot in self.slots:
            self._restorer.abandon(slot)
            if slot.install is not None:
                self.emit(refusal(slot.install, error))
                self._rest(slot)
            elif not slot.idle:
                self.fail(slot, error)

    def shut_down(self) -> None:
        """End everything that lives or waits as cancelled."""
        while self._waiting:
            self._finish_unstarted(self._waiting.popleft()[1], StopReason.CANCELLED)
        while self._deferred:
            self.emit(refusal(self._deferred.popleft(), InvalidRequest("the engine is shutting down")))
        for slot in self.slots:
            if slot.install is not None:
                self.emit(refusal(slot.install, InvalidRequest("the engine is shutting down")))
                self._restorer.abandon(slot)
                self._rest(slot)
            elif not slot.idle:
                self._stop(slot)

    def _enqueue(self, request: GenerateRequest) -> None:
        error = check_request(request, len(self.slots), self.config.n_ctx, self._n_vocab)
        if error is not None:
            self.emit(Failed(request.request_id, error))
        elif not len(request.prompt):
            self._finish_unstarted(request, StopReason.NONE)
        elif len(self._waiting) >= self.config.max_queue:
            self.emit(Failed(request.request_id, QueueFull(len(self._waiting))))
        else:
            self._waiting.append((next(self._arrivals), request))

    def _choose(self, request: GenerateRequest) -> int | None:
        views = [
            SlotView(
                slot.id, slot.idle, self._similarity(slot, request) if slot.idle else 0.0, slot.last_used
            )
            for slot in self.slots
        ]
        return choose_slot(views, request.id_slot, self.config.similarity)

    def _similarity(self, slot: Slot, request: GenerateRequest) -> float:
        if slot.sequence.root != request.root or not request.cache_prompt:
            return 0.0
        return common_prefix(slot.sequence.tokens, request.prompt) / len(request.prompt)

    def _assign(self, slot: Slot, arrival: int, request: GenerateRequest) -> None:
        try:
            answer = Answer(request, self._decoder(), self._eog_ids, self.config.n_ctx)
        except (ArithmeticError, TypeError, ValueError) as error:
            self.emit(Failed(request.request_id, InvalidRequest(f"the request cannot be sampled: {error}")))
            return
        turns = spaced_turns(request.turn_starts, len(request.prompt))
        slot.task = Task(request, arrival, answer, self.clock(), turns=turns)
        slot.phase = Phase.RESTORING
        slot.last_used = next(self._uses)
        if not request.cache_prompt:
            slot.sequence.clear()
            slot.sequence = self._empty_sequence(request.root, private=not request.store)
            self._restored(slot, Restored(0, CacheSource.NONE, CacheReason.DISABLED.explain(0)))
            return
        wanted = Wanted(request.root, request.prompt, len(request.prompt) - 1, private=not request.store)
        self._restore(slot, wanted)

    def _restore(self, slot: Slot, wanted: Wanted) -> None:
        for other in self.slots:
            if other.running:
                other.sequence.publish_tail()
        restored = self._restorer.begin(slot, wanted)
        if restored is not None:
            self._restored(slot, restored)

    def _restored(self, slot: Slot, restored: Restored) -> None:
        if slot.install is not None:
            self.emit(
                PrefixInstalled(slot.install.ticket, restored.n_tokens, restored.source, restored.reason)
            )
            self._rest(slot)
            return
        task = slot.task
        assert task is not None
        slot.phase = Phase.PREFILL
        self.checkpoints.fit(self.slots)
        if restored.logits is not None:
            task.keep_logits(restored.logits, restored.n_tokens)
        timings, request = task.timings, task.request
        timings.cache_n = restored.n_tokens
        timings.cache_source = restored.source
        timings.cache_reason = restored.reason
        self.counters.prompt_tokens_cached += restored.n_tokens
        self.emit(Started(request.request_id, slot.id, len(request.prompt), restored.n_tokens))
        self.progress(slot, task)

    def progress(self, slot: Slot, task: Task) -> None:
        """Tell how far the prompt is read, where that was asked for."""
        request = task.request
        if request.return_progress:
            elapsed = (self.clock() - task.started) * 1e3
            n = slot.sequence.n_tokens
            self.emit(Progress(request.request_id, len(request.prompt), task.timings.cache_n, n, elapsed))

    def _cancel(self, request_id: int) -> None:
        for entry in self._waiting:
            if entry[1].request_id == request_id:
                self._waiting.remove(entry)
                self._finish_unstarted(entry[1], StopReason.CANCELLED)
                return
        for slot in self.slots:
            task = None if slot.idle or slot.install is not None else slot.task
            if task is not None and task.request.request_id == request_id:
                self._stop(slot)

    def _stop(self, slot: Slot) -> None:
        if slot.phase is Phase.RESTORING:
            self._restorer.abandon(slot)
        self.release(slot, StopReason.CANCELLED)

    def _finish_unstarted(self, request: GenerateRequest, reason: StopReason) -> None:
        self.emit(Finished(request.request_id, -1, reason, "", False, len(request.prompt), 0, Timings()))

    def _run(self, command: SlotCommand) -> None:
        if isinstance(command, ForgetText):
            self.emit(TextForgotten(command.ticket, forget(self.slots, self.index, command)))
            return
        slot = self.slots[command.id_slot]
        match command:
            case CaptureSlot(ticket):
                if not slot.sequence.n_tokens:
                    self.emit(refusal(command, InvalidRequest(f"slot {slot.id} is empty")))
                    return
                try:
                    snapshot = self.lender.save(slot)
                except PoolExhausted as exhausted:
                    self.emit(refusal(command, exhausted))
                else:
                    self.emit(SlotCaptured(ticket, snapshot))
            case EraseSlot(ticket):
                self.emit(SlotErased(ticket, self._erase(slot)))
            case InstallPrefix(_, _, root, tokens):
                error = check_prefix(tokens, self.config.n_ctx, self._n_vocab)
                if error is not None:
                    self.emit(refusal(command, error))
                    return
                slot.install = command
                slot.phase = Phase.RESTORING
                slot.last_used = next(self._uses)
                self._restore(slot, Wanted(root, tokens, len(tokens), keep=True))

    def _erase(self, slot: Slot) -> int:
        sequence = slot.sequence
        tokens = np.array(sequence.tokens)
        sequence.clear()
        if not sequence.private:
            self.index.forget(sequence.root, tokens)
        return len(tokens)

    def _rest(self, slot: Slot) -> None:
        slot.phase = Phase.IDLE
        slot.install = None
        slot.last_used = next(self._uses)

    def _close_timings(self, task: Task) -> None:
        now = self.clock()
        timings = task.timings
        if task.answering is not None:
            timings.predicted_n = task.answer.n_decoded
            timings.predicted_ms = (now - task.answering) * 1e3
            self.counters.predicted_ms += timings.predicted_ms
        else:
            timings.prompt_ms = (now - task.started) * 1e3
            self.counters.prompt_ms += timings.prompt_ms

    def _allocate(self, without: Collection[int] = ()) -> int:
        while True:
            try:
                return self.index.allocate(without, cleared=False)
            except PoolExhausted:
                if not self.reclaim():
                    raise

    def _empty_sequence(self, root: bytes, private: bool = False) -> BlockSequence:
        return BlockSequence(self.index, root, self.config.n_ctx, private)
