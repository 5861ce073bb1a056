"""Removing a text on purpose: what only it holds goes, what others share stays.

Deleting makes bytes unreachable; they leave the file when it is compacted.
"""

from dataclasses import dataclass

from store import branches, chain
from store.environment import Environment
from store.errors import UnknownName
from store.update import Update, read_block, read_usage


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was removed: blocks, their bytes, names of saves."""

    n_blocks: int
    n_bytes: int
    saves: tuple[str, ...]


class Forgetting:
    """Steps of one write transaction, counting what they remove."""

    def __init__(self, environment: Environment, update: Update) -> None:
        self._env = environment
        self._update = update
        self._n_blocks = 0
        self._n_bytes = 0
        self._saves: list[str] = []

    @property
    def result(self) -> Forgotten:
        return Forgotten(self._n_blocks, self._n_bytes, tuple(self._saves))

    def prefix(self, root: bytes, elements: bytes, *, saves: bool) -> None:
        """Everything below `root` that starts with `elements`, and the part of them that nothing else needs.

        Blocks held by a save stay, with all above them, unless `saves` says that such saves go too.
        """
        if saves:
            for name in _manifests_starting_with(self._env, self._update, root, elements):
                self.manifest(name)
        path = [root]
        for _, parent, part in chain.chain(root, elements):
            is_last = len(path) * chain.BLOCK * chain.ELEMENT_BYTES >= len(elements)
            for child in branches.children(self._update.txn, self._env.kid, parent):
                record = read_block(self._env, self._update.txn, child)
                if record is None:
                    continue
                continues = is_last and record.elements.startswith(part)
                is_stale_leaf = record.is_leaf and part.startswith(record.elements)
                if continues or is_stale_leaf:
                    self._subtree(child)
            path.append(chain.block_id(parent, part))
        for block in reversed(path[1:]):
            self._if_unneeded(block)

    def everything(self) -> None:
        """All blocks and all saves."""
        self._n_blocks, self._n_bytes = self._update.ledger.n_blocks, self._update.ledger.live_bytes
        self._saves = [name for name, _ in self._update.manifests()]
        self._update.clear()

    def manifest(self, name: str) -> None:
        """A save, and of its blocks what nothing else needs. Raises `UnknownName`."""
        record = self._update.delete_manifest(name)
        if record is None:
            raise UnknownName(name)
        self._saves.append(name)
        for block in reversed(record.ids):
            self._if_unneeded(block)

    def _subtree(self, block: bytes) -> None:
        """A block and all below it, the deepest first, as far as no save holds them."""
        order, at = [block], 0
        while at < len(order):
            order += branches.children(self._update.txn, self._env.kid, order[at])
            at += 1
        for each in reversed(order):
            self._if_unneeded(each)

    def _if_unneeded(self, block: bytes) -> None:
        usage = read_usage(self._env, self._update.txn, block)
        record = read_block(self._env, self._update.txn, block)
        if usage is not None and record is not None and usage.evictable:
            self._n_bytes += self._update.remove_block(block, record)
            self._n_blocks += 1


def _manifests_starting_with(
    environment: Environment, update: Update, root: bytes, elements: bytes
) -> list[str]:
    """Names of saves under `root` whose text starts with `elements`."""
    names = []
    n_blocks = -(-len(elements) // (chain.BLOCK * chain.ELEMENT_BYTES))
    for name, record in update.manifests():
        if record.root != root:
            continue
        stored = [read_block(environment, update.txn, block) for block in record.ids[:n_blocks]]
        text = b"".join(block.elements for block in stored if block)
        if text[: record.n_tokens * chain.ELEMENT_BYTES].startswith(elements):
            names.append(name)
    return names
