"""Weights of a GGUF file rearranged into panels of 16 rows, on several threads."""

from concurrent.futures import ThreadPoolExecutor

from runtime.kernels.formats import FORMATS
from runtime.kernels.simd import LANES

_CHUNK_BYTES = 4 << 20


def packed_bytes(type_name: str, n_rows: int, k: int) -> int:
    """Bytes that `pack` writes for n_rows rows of k weights."""
    return FORMATS[type_name].packed_bytes(n_rows, k)


def pack(type_name: str, src_address: int, n_rows: int, k: int, dst_address: int, n_threads: int = 1) -> None:
    """Rows as in the file at `src_address` into ``packed_bytes(...)`` bytes at `dst_address`.

    Rows that fill up the last panel have zero scales. Runs without the GIL, bound by memory.
    KeyError for a type without kernels, ValueError where k does not fit its blocks.
    """
    fmt = FORMATS[type_name]
    fmt.row_bytes(k)
    n_panels = -(-n_rows // LANES)
    chunk = max(1, _CHUNK_BYTES // fmt.panel_bytes(k))

    def pack_from(first: int) -> None:
        fmt.module.pack(src_address, n_rows, k, dst_address, first, min(n_panels, first + chunk))

    if n_threads == 1 or n_panels <= chunk:
        for first in range(0, n_panels, chunk):
            pack_from(first)
        return
    with ThreadPoolExecutor(n_threads, thread_name_prefix="pack") as pool:
        list(pool.map(pack_from, range(0, n_panels, chunk)))
