"""Which memory begins with a text that shall be forgotten."""

from collections.abc import Iterable

from runtime.engine.commands import ForgetText
from runtime.engine.messages import Tokens
from runtime.engine.slot import Slot
from runtime.memory.prefix import PrefixIndex, Render

_CHUNK = 256


def in_use(slots: Iterable[Slot], command: ForgetText) -> bool:
    """True while a request with that text runs: what it leaves behind is to be forgotten as well."""
    for slot in slots:
        if slot.idle:
            continue
        prompt = slot.install.tokens if slot.install is not None else _prompt(slot)
        if _begins_with(prompt, command.text, command.render):
            return True
    return False


def forget(slots: Iterable[Slot], index: PrefixIndex, command: ForgetText) -> int:
    """Empty the idle slots that remember the text, take it out of the index; the number of blocks."""
    for slot in slots:
        sequence = slot.sequence
        remembers = sequence.root == command.root and _begins_with(
            sequence.tokens, command.text, command.render
        )
        if slot.idle and remembers:
            sequence.clear()
    return index.forget_text(command.root, command.text, command.render)


def _prompt(slot: Slot) -> Tokens:
    assert slot.task is not None
    return slot.task.request.prompt


def _begins_with(tokens: Tokens, text: bytes, render: Render) -> bool:
    read = b""
    for start in range(0, len(tokens), _CHUNK):
        read += render(tokens[start : start + _CHUNK])
        if len(read) >= len(text):
            return read.startswith(text)
        if not text.startswith(read):
            return False
    return False
