"""CPU kernels: explicit SIMD written in Python and compiled by numba.

`simd` and `tiles` are the vector language, `isa` its one primitive that differs per instruction set,
`quants/` one file per weight type, `tape` the ops and their interpreter. Importing the package settles
where compiled code is kept, which numba fixes when the first kernel is declared.
"""

from runtime.kernels import cache

cache.configure()
