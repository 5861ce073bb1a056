"""Removing what an operator chooses: what was used least recently, before some date, or with one model."""

from collections.abc import Callable
from dataclasses import dataclass

from store.records import Usage
from store.update import Evicted, Update

_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of the blocks and points that no save holds may go.

    Those last used before `unused_since_ms` (Unix time), None for any; those stored under the fingerprint
    whose id starts with `fingerprint`, empty for any.
    """

    unused_since_ms: int | None = None
    fingerprint: bytes = b""

    def takes(self, update: Update, id_: bytes) -> bool:
        usage = update.usage(id_)
        if self.unused_since_ms is not None and usage.last_used_ms >= self.unused_since_ms:
            return False
        return not self.fingerprint or _fingerprint(update, id_, usage).startswith(self.fingerprint)


def _fingerprint(update: Update, id_: bytes, usage: Usage) -> bytes:
    """The first eight bytes of the fingerprint that a record is of, empty when it is gone."""
    record = update.point(usage.place + id_) if usage.place else update.block(id_)
    return record.fingerprint if record is not None else b""


EVERYTHING = Selection()


def prune_some(
    update: Update, down_to: int, selection: Selection, is_pinned: Callable[[bytes], bool]
) -> Evicted:
    """Remove some of the selected records, least valuable first, while more than `down_to` live bytes remain.

    None, when there is nothing left to do. What lies above a removed record can go with the next call.
    """
    victims: list[bytes] = []
    for id_ in update.eviction_order():
        if len(victims) == _AT_ONCE:
            break
        if not is_pinned(id_) and selection.takes(update, id_):
            victims.append(id_)
    before = update.ledger
    for victim in victims:
        if update.ledger.live_bytes <= down_to:
            break
        update.remove(victim)
    return update.evicted_since(before)
