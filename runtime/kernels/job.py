"""The variables of one step that ops read from the job block, and the tables they point to.

Index `i` names the int64 word at ``JOB_VARS + 8 * i`` of the job (see `runtime.kernels.tape`).
"""

import sys
from ctypes import c_float

ROWS = 0  # rows (tokens) of the step
OUT_ROWS = 1  # rows that want logits
RUNS = 2  # number of runs
RUN_TABLE = 3  # address of int64 [runs][RUN_WORDS]
ROW_POSITION = 4  # address of int64 [rows]: absolute position
ROW_RUN = 5  # address of int64 [rows]: index of the row's run
TOKENS = 6  # address of int32 [rows]
OUT_INDEX = 7  # address of int64 [out rows]: row of the step
N_VARS = 8

# words of a run in RUN_TABLE
RUN_ROW = 0  # first row of the run in the step
RUN_LENGTH = 1  # rows
RUN_START = 2  # position of the first row
RUN_BEFORE = 3  # address of the sequence's state before the step, 0 where the model has none
RUN_AFTER = 4  # address of the state that the step writes, all of it
RUN_RINGS = 5  # address of its rings
RUN_BLOCKS = 6  # then, per cache group, the address of its int64 table of block addresses
MAX_GROUPS = 6
RUN_WORDS = RUN_BLOCKS + MAX_GROUPS


def f32_bits(value: float) -> int:
    """A float32 as the integer that carries it in a tape word; ops read it with `ld_f32`.

    Numbers beyond a float32's range, which a damaged model file may have, become infinite.
    """
    return int.from_bytes(bytes(c_float(value)), sys.byteorder)
