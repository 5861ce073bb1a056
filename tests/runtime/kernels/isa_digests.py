"""Digests of products and decoded rows of weight types: a program, run under several instruction sets."""

import hashlib
import sys

import numpy as np

from runtime.kernels.dequant import dequantise_rows
from runtime.kernels.isa import ISA
from tests.runtime.kernels.harness import K, matmul, vectors


def main(names: list[str]) -> None:
    print(ISA.name)
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((13, K)) * 10.0 ** rng.integers(-3, 3, (13, 1))).astype(np.float32)
    x[5, ::2] = 0
    for name in names:
        raw, _ = vectors(name)
        products = matmul(name, raw, x, n_threads=2)
        alone = matmul(name, raw, x[2:3])
        parts = (products.tobytes(), alone.tobytes(), dequantise_rows(name, raw, K).tobytes())
        print(name, hashlib.sha256(b"".join(parts)).hexdigest())


if __name__ == "__main__":
    main(sys.argv[1:])
