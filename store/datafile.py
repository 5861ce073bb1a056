"""The data file seen from outside LMDB: its meta pages, and what to do about a file that is too short.

LMDB maps the file and believes its meta pages. A file cut short by a full disk or a bad copy then kills the
process with SIGBUS at the first missing page, so it is extended with zeros before anybody maps it: what is
lost shows up as checksum errors instead. Meta page (format 1, pages 0 and 1, after a 16-byte page header):
magic u32, version u32, address u64, map size u64, two 48-byte database records (the first starts with the
page size), last page u64, transaction u64; the larger transaction wins.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from store.errors import Damaged, StoreUnusable

_MAGIC = 0xBEEFC0DE
_FORMAT = 1
_META = struct.Struct("<IIQQI92xQQ")
_PAGE_HEADER = 16
_PAGE_SIZES = frozenset(1 << shift for shift in range(9, 17))


@dataclass(frozen=True, slots=True)
class Meta:
    """The newest meta page: bytes per page, number of the last used page, transaction id."""

    page_bytes: int
    last_page: int
    transaction: int

    @property
    def needed_bytes(self) -> int:
        return (self.last_page + 1) * self.page_bytes


def read_meta(path: Path) -> Meta | None:
    """The newest readable meta page of a data file, None when it has none."""
    with path.open("rb") as file:
        head = file.read(_PAGE_HEADER + _META.size)
        first = _parse(head)
        pages = [first] if first else []
        for page_bytes in [first.page_bytes] if first else sorted(_PAGE_SIZES):
            file.seek(page_bytes)
            second = _parse(file.read(_PAGE_HEADER + _META.size))
            if second and second.page_bytes == page_bytes:
                pages.append(second)
    return max(pages, key=lambda meta: meta.transaction, default=None)


def _parse(page: bytes) -> Meta | None:
    if len(page) < _PAGE_HEADER + _META.size:
        return None
    magic, version, _, _, page_bytes, last_page, transaction = _META.unpack_from(page, _PAGE_HEADER)
    if magic != _MAGIC or page_bytes not in _PAGE_SIZES:
        return None
    if version != _FORMAT:
        raise StoreUnusable(f"the data file has LMDB format {version}, this program reads {_FORMAT}")
    return Meta(page_bytes, last_page, transaction)


def missing_bytes(path: Path) -> int:
    """Bytes that the file lacks of what its meta page promises; raises `Damaged` when it has none."""
    meta = read_meta(path)
    if meta is None:
        raise Damaged(f"{path} is not a store's data file")
    return max(0, meta.needed_bytes - path.stat().st_size)


def extend(path: Path) -> int:
    """Make a short data file as long as its meta page promises; return the number of bytes added."""
    missing = missing_bytes(path)
    if missing:
        os.truncate(path, path.stat().st_size + missing)
    return missing


def is_unused(path: Path) -> bool:
    """True when there is no data file, or one in which nothing was ever committed."""
    if not path.exists() or path.stat().st_size == 0:
        return True
    meta = read_meta(path)
    return meta is not None and meta.transaction == 0
