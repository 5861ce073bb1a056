"""The merge loop of BPE and SPM: the best adjacent pair first, ties to the left."""

from heapq import heapify, heappop, heappush
from itertools import pairwise

_NONE = 1 << 62
_SHORT = 64
_POSITION_BITS = 32
_POSITION = (1 << _POSITION_BITS) - 1


def merge_symbols(symbols: list[bytes], ranks: dict[bytes, int], joint: bytes) -> list[bytes]:
    """Merge until no pair is left that `ranks` knows. `symbols` is consumed.

    A pair (a, b) is looked up as ``a + joint + b``; the lowest rank goes first. O(n log n) in the symbols.
    """
    rank = ranks.get
    pairs = [rank(a + joint + b, _NONE) for a, b in pairwise(symbols)]
    if len(symbols) <= _SHORT:
        return _merge_short(symbols, pairs, ranks, joint)
    return _merge_long(symbols, pairs, ranks, joint)


def _merge_short(
    symbols: list[bytes], pairs: list[int], ranks: dict[bytes, int], joint: bytes
) -> list[bytes]:
    rank = ranks.get
    while pairs:
        best = min(pairs)
        if best == _NONE:
            break
        i = pairs.index(best)
        symbols[i] += symbols.pop(i + 1)
        del pairs[i]
        if i < len(pairs):
            pairs[i] = rank(symbols[i] + joint + symbols[i + 1], _NONE)
        if i:
            pairs[i - 1] = rank(symbols[i - 1] + joint + symbols[i], _NONE)
    return symbols


def _merge_long(symbols: list[bytes], pairs: list[int], ranks: dict[bytes, int], joint: bytes) -> list[bytes]:
    """The same with a heap of ``rank << 32 | position``, outdated entries of which are skipped."""
    rank = ranks.get
    n = len(symbols)
    pairs.append(_NONE)
    before = list(range(-1, n - 1))
    after = list(range(1, n + 1))
    heap = [r << _POSITION_BITS | i for i, r in enumerate(pairs) if r != _NONE]
    heapify(heap)
    while heap:
        key = heappop(heap)
        i = key & _POSITION
        if pairs[i] != key >> _POSITION_BITS:
            continue
        j = after[i]
        symbols[i] += symbols[j]
        symbols[j] = b""
        pairs[j] = _NONE
        k = after[i] = after[j]
        if k < n:
            before[k] = i
            pairs[i] = r = rank(symbols[i] + joint + symbols[k], _NONE)
            if r != _NONE:
                heappush(heap, r << _POSITION_BITS | i)
        else:
            pairs[i] = _NONE
        h = before[i]
        if h >= 0:
            pairs[h] = r = rank(symbols[h] + joint + symbols[i], _NONE)
            if r != _NONE:
                heappush(heap, r << _POSITION_BITS | h)
    return [symbol for symbol in symbols if symbol]
