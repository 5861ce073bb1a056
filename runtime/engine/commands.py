"""Commands about slots and their answers.

A ticket is chosen by the caller from the same numbering as request ids; an answer is an `Event` whose
`request_id` is the ticket, so that one table routes every event. A command waits until its slot is idle.
"""

from dataclasses import dataclass

from runtime.engine.messages import CacheSource, Event, Tokens
from runtime.engine.port import PrefixSnapshot
from runtime.memory.prefix import Render


@dataclass(frozen=True, slots=True)
class CaptureSlot:
    """Lend everything the slot remembers; answered by `SlotCaptured`."""

    ticket: int
    id_slot: int


@dataclass(frozen=True, slots=True)
class InstallPrefix:
    """Make the slot remember `tokens`, from RAM or store; answered by `PrefixInstalled`."""

    ticket: int
    id_slot: int
    root: bytes
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class EraseSlot:
    """Empty the slot and forget in RAM what only its prefix needs; answered by `SlotErased`."""

    ticket: int
    id_slot: int


@dataclass(frozen=True, slots=True)
class ForgetText:
    """Forget in RAM all that begins with `text` below `root`; answered by `TextForgotten`.

    `render` gives the text of int32 [n] tokens; that of a whole is that of its parts in a row. Waits until no
    slot is at work on such a text.
    """

    ticket: int
    root: bytes
    text: bytes
    render: Render


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request, see `Engine.cancel`."""

    request_id: int


SlotCommand = CaptureSlot | InstallPrefix | EraseSlot | ForgetText


@dataclass(frozen=True, slots=True)
class SlotAnswer(Event):
    """Base of the answers to slot commands."""

    @property
    def ticket(self) -> int:
        return self.request_id


@dataclass(frozen=True, slots=True)
class SlotCaptured(SlotAnswer):
    """The receiver must release the snapshot. None comes with an error, also for an empty slot."""

    snapshot: PrefixSnapshot | None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class PrefixInstalled(SlotAnswer):
    """The slot now remembers the first `n_tokens` of the tokens; 0: it is as it was before."""

    n_tokens: int
    source: CacheSource = CacheSource.NONE
    reason: str = ""
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class SlotErased(SlotAnswer):
    n_erased: int
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class TextForgotten(SlotAnswer):
    n_blocks: int
    error: Exception | None = None


def refusal(command: SlotCommand, error: Exception) -> SlotAnswer:
    """The answer to a command that cannot be carried out."""
    match command:
        case CaptureSlot(ticket):
            return SlotCaptured(ticket, None, error)
        case EraseSlot(ticket):
            return SlotErased(ticket, 0, error)
        case ForgetText(ticket):
            return TextForgotten(ticket, 0, error)
        case InstallPrefix(ticket):
            return PrefixInstalled(ticket, 0, error=error)
