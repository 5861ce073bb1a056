"""Whether this process does nothing, told apart from a process that has not come to rest yet."""

import time

WINDOW_S = 0.3
PATIENCE_S = 60.0


def assert_it_rests(share: float = 0.1) -> None:
    """All threads together come to use less than `share` of one processor.

    What was begun before may still go on for a while: a slow machine takes its time. Whoever polls or spins
    never gets there.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        used, begun = time.process_time(), time.monotonic()
        time.sleep(WINDOW_S)
        used, now = time.process_time() - used, time.monotonic()
        if used < share * (now - begun):
            return
        assert now < deadline, f"{used:.3f} s of {now - begun:.3f} s are still used"
