"""Which memory begins with a text that shall be forgotten."""

from collections.abc import Iterable

from runtime.engine.commands import ForgetText
from runtime.engine.messages import GenerateRequest, Tokens
from runtime.engine.slot import Slot
from runtime.memory.prefix import PrefixIndex, read_along


def in_use(slots: Iterable[Slot], waiting: Iterable[GenerateRequest], command: ForgetText) -> bool:
    """True while a request with that text lives: what it leaves behind is to be forgotten as well."""
    prompts = [request.prompt for request in waiting]
    for slot in slots:
        if slot.install is not None:
            prompts.append(slot.install.tokens)
        elif slot.task is not None and not slot.idle:
            prompts.append(slot.task.request.prompt)
    return any(_begins_with(prompt, command) for prompt in prompts)


def forget(slots: Iterable[Slot], index: PrefixIndex, command: ForgetText) -> int:
    """Empty the idle slots that remember the text, take it out of the index; the number of blocks."""
    for slot in slots:
        sequence = slot.sequence
        if slot.idle and sequence.root == command.root and _begins_with(sequence.tokens, command):
            sequence.clear()
    return index.forget_text(command.root, command.text, command.render)


def _begins_with(tokens: Tokens, command: ForgetText) -> bool:
    return read_along(tokens, command.text, command.render) == len(command.text)
