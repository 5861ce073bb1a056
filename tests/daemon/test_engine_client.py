"""Between the engine's thread and the event loop: nothing is lost, nothing is kept."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from daemon.engine_client import EngineClient
from daemon.errors import SHUTTING_DOWN, ApiError
from runtime.engine import (
    EmbedRequest,
    EngineStatistics,
    EraseSlot,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Output,
    PrefixSnapshot,
    SlotCaptured,
    SlotErased,
    StopReason,
    Timings,
)


class RecordingEngine:
    """Remembers what it is told; the test delivers the events."""

    def __init__(self) -> None:
        self.submitted: list[int] = []
        self.cancelled: list[int] = []
        self.posted: list[Any] = []

    def submit(self, request: GenerateRequest | EmbedRequest) -> None:
        self.submitted.append(request.request_id)

    def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)

    def post(self, message: Any) -> None:
        self.posted.append(message)

    def statistics(self) -> EngineStatistics:
        return EngineStatistics()

    def start(self) -> None:
        return

    def close(self) -> None:
        return


def connected(n_slots: int = 2, queue_size: int = 2) -> tuple[EngineClient, RecordingEngine]:
    client, engine = EngineClient(n_slots, queue_size), RecordingEngine()
    client.attach(engine)
    return client, engine


def requests(client: EngineClient, n: int) -> list[GenerateRequest]:
    return [GenerateRequest(client.next_request_id(), np.zeros(1, dtype=np.int32)) for _ in range(n)]


def output(request_id: int, text: str) -> Output:
    return Output(request_id, text, ())


def finished(request_id: int) -> Finished:
    return Finished(request_id, 0, StopReason.EOS, "", False, 1, 1, Timings())


async def deliver(client: EngineClient, events: Sequence[Event]) -> None:
    """As the engine does it: from another thread."""
    await trio.to_thread.run_sync(client.deliver, events)
    await trio.testing.wait_all_tasks_blocked()


def test_events_reach_their_completion_in_order() -> None:
    async def main() -> None:
        client, _ = connected()
        first, second = requests(client, 2)
        with client.generate([first, second]) as generation:
            await deliver(client, [output(second.request_id, "b"), output(first.request_id, "a")])
            await deliver(client, [finished(first.request_id), finished(second.request_id)])
            received = [await generation.receive() for _ in range(4)]
        assert [(index, type(event).__name__) for index, event in received] == [
            (1, "Output"),
            (0, "Output"),
            (0, "Finished"),
            (1, "Finished"),
        ]
        assert client.n_live == 0

    trio.run(main)


def test_leaving_cancels_only_what_still_runs() -> None:
    async def main() -> None:
        client, engine = connected()
        first, second = requests(client, 2)
        with client.generate([first, second]):
            await deliver(client, [finished(first.request_id)])
        assert engine.cancelled == [second.request_id]
        await deliver(client, [output(second.request_id, "late")])

    trio.run(main)


def test_one_failure_cancels_the_others() -> None:
    async def main() -> None:
        client, engine = connected()
        first, second = requests(client, 2)
        with client.generate([first, second]) as generation:
            await deliver(client, [Failed(first.request_id, ValueError("x"))])
            with pytest.raises(ValueError, match="x"):
                await generation.receive()
            assert engine.cancelled == [second.request_id]

    trio.run(main)


def test_cancelling_a_wait_loses_no_event() -> None:
    async def main() -> None:
        client, _ = connected()
        (request,) = requests(client, 1)
        with client.generate([request]) as generation:
            with trio.move_on_after(0.01) as scope:
                await generation.receive()
            assert scope.cancelled_caught
            await deliver(client, [output(request.request_id, "a")])
            assert (await generation.receive())[1] == output(request.request_id, "a")

    trio.run(main)


def test_more_than_slots_and_queue_hold_is_refused() -> None:
    async def main() -> None:
        client, engine = connected(n_slots=1, queue_size=1)
        with client.generate(requests(client, 2)):
            with pytest.raises(ApiError) as caught:
                client.generate(requests(client, 1))
            assert caught.value.code == 503
        assert len(engine.submitted) == 2
        client.generate(requests(client, 1)).close()

    trio.run(main)


def test_closing_lets_running_requests_finish_and_refuses_new_ones() -> None:
    async def main() -> None:
        client, _ = connected()
        (request,) = requests(client, 1)
        with client.generate([request]) as generation:
            client.close()
            with pytest.raises(ApiError):
                client.generate(requests(client, 1))
            await deliver(client, [finished(request.request_id)])
            assert isinstance((await generation.receive())[1], Finished)
        with trio.fail_after(60):
            await client.wait_idle()

    trio.run(main)


def test_failing_all_tells_every_reader() -> None:
    async def main() -> None:
        client, engine = connected()
        pair = requests(client, 2)
        generations = [client.generate([request]) for request in pair]
        client.fail_all()
        for generation in generations:
            with pytest.raises(ApiError) as caught:
                await generation.receive()
            assert caught.value is SHUTTING_DOWN
        assert sorted(engine.cancelled) == [request.request_id for request in pair]
        with trio.fail_after(60):
            await client.wait_idle()

    trio.run(main)


def test_an_answer_to_a_command_reaches_who_asked() -> None:
    async def main() -> None:
        client, engine = connected()
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await client.ask(lambda ticket: EraseSlot(ticket, 1)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            (command,) = engine.posted
            await deliver(client, [SlotErased(command.ticket, 5)])
        assert answers == [SlotErased(command.ticket, 5)]

    trio.run(main)


def test_a_snapshot_that_nobody_waits_for_is_given_back() -> None:
    async def main() -> None:
        client, engine = connected()
        released: list[bool] = []
        tokens = np.zeros(1, dtype=np.int32)
        snapshot = PrefixSnapshot(b"", tokens, (), "test", lambda: released.append(True))
        with trio.move_on_after(0.01):
            await client.ask(lambda ticket: EraseSlot(ticket, 0))
        await deliver(client, [SlotCaptured(engine.posted[0].ticket, snapshot)])
        assert released == [True]

    trio.run(main)


def test_events_after_the_loop_has_ended_are_dropped() -> None:
    async def main() -> EngineClient:
        return connected()[0]

    trio.run(main).deliver([finished(1)])


def test_what_has_arrived_is_taken_without_a_wait_and_a_failure_after_it() -> None:
    async def main() -> None:
        client, engine = connected()
        first, second = requests(client, 2)
        with client.generate([first, second]) as generation:
            assert generation.receive_nowait() is None
            piece = output(first.request_id, "a")
            await deliver(client, [piece, Failed(second.request_id, ValueError("broken"))])
            assert generation.receive_nowait() == (0, piece)
            with pytest.raises(ValueError, match="broken"):
                generation.receive_nowait()
            assert engine.cancelled == [first.request_id]

    trio.run(main)


def test_a_command_made_on_another_thread_is_answered_and_its_errors_are_the_askers() -> None:
    async def main() -> None:
        client, engine = connected()
        threads: list[threading.Thread] = []

        def post(call: Callable[[], None]) -> None:
            threads.append(threading.Thread(target=call))
            threads[-1].start()

        def fails(ticket: int) -> EraseSlot:
            raise LookupError("no such save")

        with pytest.raises(LookupError, match="no such save"):
            await client.ask_through(post, fails)
        assert not engine.posted
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await client.ask_through(post, lambda ticket: EraseSlot(ticket, 1)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            threads[-1].join()
            (command,) = engine.posted
            await deliver(client, [SlotErased(command.ticket, 7)])
        assert answers == [SlotErased(command.ticket, 7)]

    trio.run(main)


def test_an_error_for_an_asker_who_has_left_is_nobodys() -> None:
    async def main() -> None:
        client, _ = connected()
        calls: list[Callable[[], None]] = []

        def fails(ticket: int) -> EraseSlot:
            raise LookupError("no such save")

        with trio.move_on_after(0):
            await client.ask_through(calls.append, fails)
        await trio.to_thread.run_sync(calls[0])
        await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
