"""Row-major cache rows: where they lie, how they are written and read.

A row is one vector of `d` values that all query heads share: a latent whose first values are also what
attention sums, a compressed key, the key of an index. Rows have any cache type, as the rows of values of
`kvtypes` have. A source says where those of one layer are:

paged   row r in the block of position ``r * ratio``: blocks hold ``256 / ratio`` rows in tiles of
        `tile_rows` rows, a tile has the rows of all layers of its cache group one layer after the other
ring    row r at ``r % capacity`` of a ring of the run's tail, a row for each position

A query at position p sees rows ``[max(0, p + 1 - window), (p + 1) // ratio)``. A source with a selection
shows the `top_k` rows of the query's list instead, as soon as there are more than those.
"""

import numba as nb

from runtime.kernels.job import ROW_POSITION, ROW_RUN, ROWS, RUN_BLOCKS, RUN_RINGS, RUN_TABLE, RUN_WORDS
from runtime.kernels.simd import LANES, inline, ld_i32, ld_i64
from runtime.kernels.tape import Op, arg, call_op, variable
from runtime.memory.layout import BLOCK
from runtime.team import grab

(
    R_D,  # values of a row
    R_RATIO,  # positions per row
    R_WINDOW,  # rows a query sees, 0 for all
    R_ROW_BYTES,
    R_OFFSET,  # of the layer's first row in a tile, or of its row in a ring's
    R_GROUP,  # paged: index of the cache group
    R_TILE_ROWS,
    R_TILE_BYTES,
    R_RING,  # ring: its offset after the run's address of rings
    R_STRIDE,  # bytes from row to row
    R_CAPACITY,  # rows; 0 for a paged source
    R_TOP_K,  # 0 for no selection
    R_LISTS,  # i32 [rows of the step][top_k], each ascending
    R_PUT,  # address of a cache type's put_value, see kvtypes
    R_GET,  # and of its get_values
) = range(15)
R_WORDS = 15


@nb.njit(**inline)
def in_block(s, block, i):
    """Address of row i of a block."""
    rows = arg(s, R_TILE_ROWS)
    return block + i // rows * arg(s, R_TILE_BYTES) + arg(s, R_OFFSET) + i % rows * arg(s, R_ROW_BYTES)


@nb.njit(**inline)
def row_address(s, run_at, r):
    """Address of row r for the sequence of the run whose words are at `run_at`."""
    capacity = arg(s, R_CAPACITY)
    if capacity > 0:
        ring = ld_i64(run_at + 8 * RUN_RINGS) + arg(s, R_RING)
        return ring + r % capacity * arg(s, R_STRIDE) + arg(s, R_OFFSET)
    per_block = BLOCK // arg(s, R_RATIO)
    table = ld_i64(run_at + 8 * (RUN_BLOCKS + arg(s, R_GROUP)))
    return in_block(s, ld_i64(table + 8 * (r // per_block)), r % per_block)


@nb.njit(**inline)
def put_row(s, run_at, r, x):
    """f32 [d] at x becomes row r."""
    call_op(arg(s, R_PUT), x, row_address(s, run_at, r), arg(s, R_D), nb.int64(0), nb.int64(0))


@nb.njit(**inline)
def is_selected(s, position):
    """Whether a query at `position` sees its list only."""
    top_k = arg(s, R_TOP_K)
    return top_k > 0 and (position + 1) // arg(s, R_RATIO) > top_k


@nb.njit(**inline)
def first_row(s, position):
    """Index of the first row that a query sees, in its list where it has one."""
    window = arg(s, R_WINDOW)
    return max(nb.int64(0), position + 1 - window) if window > 0 else nb.int64(0)


@nb.njit(**inline)
def end_row(s, position):
    """Index after the last row that a query sees, in its list where it has one."""
    rows = (position + 1) // arg(s, R_RATIO)
    return arg(s, R_TOP_K) if is_selected(s, position) else rows


@nb.njit(**inline)
def list_of(s, row, position):
    """Address of the list of a row of the step, 0 where it sees all rows."""
    return arg(s, R_LISTS) + 4 * row * arg(s, R_TOP_K) if is_selected(s, position) else nb.int64(0)


@nb.njit(**inline)
def gather(s, run_at, rows, first, end, out):
    """Rows [first, end), of the list at `rows` where it is not 0, as f32 [d] each at out.

    Decoders of cache types take 16 rows of d values, which is as well 16 times as many of d / 16: whole rows.
    """
    d = arg(s, R_D)
    i = first
    while i < end:
        r, n = i, nb.int64(1)
        if rows != 0:
            r = nb.int64(ld_i32(rows + 4 * i))
        elif arg(s, R_CAPACITY) == 0:
            n = min(end - i, arg(s, R_TILE_ROWS) - r % arg(s, R_TILE_ROWS))
        at = row_address(s, run_at, r)
        call_op(arg(s, R_GET), at, out + 4 * d * (i - first), n * d // LANES, nb.int64(0), nb.int64(0))
        i += n


@Op
def store_latents(a, job, ith, nth, ctl):
    """(source, x, ldx): f32 [d] of each row of the step becomes the row of its position; the ratio is 1"""
    s, x, ldx = arg(a, 0), arg(a, 1), arg(a, 2)
    rows, positions = variable(job, ROWS), variable(job, ROW_POSITION)
    row_run, run_table = variable(job, ROW_RUN), variable(job, RUN_TABLE)
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        for i in range(j, min(rows, j + 4)):
            run_at = run_table + ld_i64(row_run + 8 * i) * 8 * RUN_WORDS
            put_row(s, run_at, ld_i64(positions + 8 * i), x + i * ldx)


@Op
def clear_latents(s, block, first, end, zeros):
    """Rows of a block that positions [0, first) have not decided, up to that of position ``end - 1``, become
    those of zeros, f32 [d]: not part of a tape
    """
    ratio = arg(s, R_RATIO)
    for r in range(first // ratio, (end + ratio - 1) // ratio):
        call_op(arg(s, R_PUT), zeros, in_block(s, block, r), arg(s, R_D), nb.int64(0), nb.int64(0))
