"""Digests of logits of tiny models: a program, run under several instruction sets."""

import hashlib
import sys

import numpy as np

from runtime.kernels.isa import ISA
from tests.runtime.evaluation import all_logits, arch, model

N_TOKENS = 140


def main(names: list[str]) -> None:
    print(ISA.name)
    for name in names:
        with model(arch(name), n_ctx=256) as loaded:
            tokens = np.random.default_rng(0).integers(0, loaded.runner.n_vocab, N_TOKENS).astype(np.int32)
            print(name, hashlib.sha256(all_logits(loaded, tokens, (33, 7)).tobytes()).hexdigest())


if __name__ == "__main__":
    main(sys.argv[1:])
