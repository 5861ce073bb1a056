"""SentencePiece's precompiled normalisation map: a double array trie of replacements."""

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelError

_BASE_SHIFTED = 0x200
_LEAF = 0x100
_CHECK = 0x8000_00FF
_VALUE = 0x7FFF_FFFF


class CharsMap:
    """Longest-match replacement of byte sequences.

    The blob holds a u32 size, that many bytes of u32 nodes, and NUL-terminated replacement strings. Of a
    node, the base is ``(n >> 10) << ((n & 0x200) >> 6)``, bit 8 marks a leaf, ``n & 0x800000ff`` must equal
    the byte that led to it, and the value of a leaf is ``n & 0x7fffffff`` of the node at its base.
    """

    def __init__(self, blob: bytes) -> None:
        size = int.from_bytes(blob[:4], "little")
        if len(blob) < 8 or size % 4 or not 4 <= size < len(blob) - 4:
            raise ModelError(f"precompiled_charsmap is damaged: {size} of {len(blob)} bytes are nodes")
        nodes: npt.NDArray[np.uint32] = np.frombuffer(blob, "<u4", size // 4, 4)
        self._nodes: list[int] = nodes.tolist()
        self._texts = blob[4 + size :]

    def longest(self, text: bytes, start: int) -> tuple[int, bytes] | None:
        """(bytes replaced, replacement) at `start`, None where nothing is to be replaced."""
        nodes = self._nodes
        best = None
        index = _base(nodes[0])
        for position in range(start, len(text)):
            byte = text[position]
            index ^= byte
            if byte == 0 or index >= len(nodes) or nodes[index] & _CHECK != byte:
                break
            node = nodes[index]
            index ^= _base(node)
            if index >= len(nodes):
                break
            if node & _LEAF:
                best = position + 1 - start, nodes[index] & _VALUE
        return None if best is None else (best[0], self._text(best[1]))

    def _text(self, offset: int) -> bytes:
        end = self._texts.find(b"\0", offset)
        if offset >= len(self._texts) or end < 0:
            raise ModelError("precompiled_charsmap is damaged: a replacement lies outside of it")
        return self._texts[offset:end]

    def stable_bytes(self) -> frozenset[int]:
        """ASCII bytes that are not replaced, alone or together with an ASCII byte after them."""
        ascii_bytes = [bytes([b]) for b in range(1, 0x80)]
        return frozenset(
            b[0]
            for b in ascii_bytes
            if self.longest(b, 0) is None and all(self._stops(b + after) for after in ascii_bytes)
        )

    def _stops(self, pair: bytes) -> bool:
        """Whether no replaced sequence begins with these bytes."""
        nodes = self._nodes
        index = _base(nodes[0])
        for byte in pair:
            index ^= byte
            if index >= len(nodes) or nodes[index] & _CHECK != byte:
                return True
            index ^= _base(nodes[index])
        return False


def _base(node: int) -> int:
    return (node >> 10) << ((node & _BASE_SHIFTED) >> 6)
