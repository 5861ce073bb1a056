"""The algorithms as one would first write them: slow, and plainly what the specification says."""

from collections.abc import Callable, Sequence


def merge(symbols: Sequence[bytes], rank: Callable[[bytes, bytes], float | None]) -> list[bytes]:
    """Merge the adjacent pair of the lowest rank, the leftmost of equals, until there is none."""
    parts = list(symbols)
    while True:
        ranked = [(r, i) for i in range(len(parts) - 1) if (r := rank(parts[i], parts[i + 1])) is not None]
        if not ranked:
            return parts
        _, i = min(ranked)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def partition(
    text: bytes, tokens: dict[bytes, int], left: frozenset[int], right: frozenset[int]
) -> list[bytes | int]:
    """Search one special token after the other, the longest first, in all fragments that are left."""
    fragments: list[bytes | int] = [text] if text else []
    for token, id in sorted(tokens.items(), key=lambda item: (-len(item[0]), item[1])):
        found: list[bytes | int] = []
        for fragment in fragments:
            if isinstance(fragment, int):
                found.append(fragment)
                continue
            rest = fragment
            while token in rest:
                before, _, rest = rest.partition(token)
                before = before.rstrip(b" \t\n\v\f\r") if id in left else before
                rest = rest.lstrip(b" \t\n\v\f\r") if id in right else rest
                found += [before, id] if before else [id]
            if rest:
                found.append(rest)
        fragments = found
    return fragments
