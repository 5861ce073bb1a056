"""Which record below a given block shares the most positions with a prompt?

The hash chain finds whole equal blocks. Where a conversation leaves the stored one, the answer is among the
children of the last equal block: any of them, full or leaf, serves its first common rows. Comparing with each
would be slow below a root with thousands of children, so the children's elements lie sorted in table `kid`:
of a sorted set, the longest common prefix is next to where the searched string would stand.

LMDB keys end at 511 bytes and a block has 1,024, so the elements are cut into runs of 384 bytes, and a run
lies below a node named by what precedes it:  key = node(parent, elements[:k]) | elements[k:k+384],  value =
id.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b

import lmdb

from store.chain import ELEMENT_BYTES, ID_BYTES, common_positions
from store.environment import Txn

_RUN = 384
_PERSON = b"kvnode1"


def _node(parent: bytes, before: bytes) -> bytes:
    if not before:
        return parent
    return blake2b(parent + before, digest_size=ID_BYTES, person=_PERSON).digest()


def _keys(parent: bytes, elements: bytes) -> Iterator[bytes]:
    for start in range(0, len(elements), _RUN):
        yield _node(parent, elements[:start]) + elements[start : start + _RUN]


def n_entries(elements: bytes) -> int:
    """How many entries a record with these elements has."""
    return -(-len(elements) // _RUN)


def insert(txn: Txn, kid: lmdb._Database, parent: bytes, elements: bytes, record: bytes) -> None:
    """Enter record id `record` below `parent`."""
    for key in _keys(parent, elements):
        txn.put(key, record, db=kid)


def remove(txn: Txn, kid: lmdb._Database, parent: bytes, elements: bytes, record: bytes) -> None:
    """Take record id `record` out again."""
    for key in _keys(parent, elements):
        txn.delete(key, record, db=kid)


def children(txn: Txn, kid: lmdb._Database, parent: bytes) -> list[bytes]:
    """Ids of all records below `parent`."""
    cursor = txn.cursor(db=kid)
    found = []
    if cursor.set_range(parent):
        for key, value in cursor:
            if bytes(key[:ID_BYTES]) != parent:
                break
            found.append(bytes(value))
    return found


def nearest(
    txn: Txn, kid: lmdb._Database, parent: bytes, elements: bytes, usable: Callable[[bytes], bool]
) -> tuple[bytes, int] | None:
    """The usable record below `parent` with the longest common prefix, and that length in positions (> 0)."""
    return _nearest(txn, kid, parent, elements, 0, usable)


def _nearest(
    txn: Txn, kid: lmdb._Database, parent: bytes, elements: bytes, start: int, usable: Callable[[bytes], bool]
) -> tuple[bytes, int] | None:
    run = elements[start : start + _RUN]
    node = _node(parent, elements[:start])
    if len(run) == _RUN and start + _RUN < len(elements) and txn.get(node + run, db=kid) is not None:
        deeper = _nearest(txn, kid, parent, elements, start + _RUN, usable)
        if deeper:
            return deeper
    for record, common in _by_common_prefix(txn, kid, node, run):
        if usable(record):
            return record, start // ELEMENT_BYTES + common
    return None


def _by_common_prefix(txn: Txn, kid: lmdb._Database, node: bytes, run: bytes) -> Iterator[tuple[bytes, int]]:
    """Records of one node, those with the longest common prefix first, down to one position."""
    up = _walk(txn.cursor(db=kid), node, run, forward=True)
    down = _walk(txn.cursor(db=kid), node, run, forward=False)
    a, b = next(up, None), next(down, None)
    while a or b:
        if b is None or (a is not None and a[1] >= b[1]):
            assert a is not None
            yield a
            a = next(up, None)
        else:
            yield b
            b = next(down, None)


def _walk(
    cursor: "lmdb.Cursor[memoryview]", node: bytes, run: bytes, forward: bool
) -> Iterator[tuple[bytes, int]]:
    """From where `run` stands in a node outwards: common prefixes only become shorter."""
    found = cursor.set_range(node + run)
    if not forward:
        found = cursor.prev() if found else cursor.last()
    while found:
        key = cursor.key()
        if bytes(key[:ID_BYTES]) != node:
            return
        common = common_positions(key[ID_BYTES:], run)
        if not common:
            return
        yield bytes(cursor.value()), common
        found = cursor.next() if forward else cursor.prev()
