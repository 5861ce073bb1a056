"""Mutates the headers of real model files and checks what the reader does with each: run as a program.

``python -m tests.runtime.gguf.fuzz --files N --seed S MODEL...`` exits 1 at the first file that is not
answered with a model or one ModelError, within a second, in at most twice the file's bytes (and 1 MiB for the
interpreter's own objects). The offending bytes are left in the folder given by ``--keep``.
"""

import argparse
import os
import random
import struct
import sys
import tempfile
import time
import traceback
import tracemalloc
from pathlib import Path

import numpy as np

from runtime.errors import ModelError
from runtime.gguf import open_model
from runtime.tokenizers import load_tokenizer

_SECONDS = 1.0
_OWN_BYTES = 1 << 20
_EXTREMES = (0, 1, 2, 3, 31, 33, 127, 128, 255, 256, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62)


def mutate(data: bytes, header: int, random: random.Random) -> bytes:
    """Change one to four things within the first `header` bytes."""
    out = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(min(header, len(out) - 8))
        match random.randrange(6):
            case 0:
                out[at] ^= 1 << random.randrange(8)
            case 1:
                out[at] = random.randrange(256)
            case 2:
                out[at : at + 8] = struct.pack("<Q", random.choice(_EXTREMES) + random.randint(0, 1))
            case 3:
                out[at : at + 4] = struct.pack("<I", random.choice(_EXTREMES) & 0xFFFF_FFFF)
            case 4:
                del out[at : at + random.randint(1, 16)]
            case _:
                start = random.randrange(header)
                out[at:at] = out[start : start + random.randint(1, 64)]
    if random.random() < 0.1:
        del out[random.randrange(8, len(out)) :]
    return bytes(out)


def try_one(path: Path) -> None:
    """Open the file leniently and strictly, look at everything, and load its tokenizer."""
    for lenient in (True, False):
        try:
            with open_model(path, check=not lenient, lenient=lenient) as model:
                for name in model.tensors:
                    model.tensor_bytes(name)
                _ = (model.n_params, model.n_bytes, model.file_type)
                if lenient:
                    load_tokenizer(model).encode("Hello <s> \u00e9\n")
        except ModelError as error:
            if "\n" in str(error):
                raise AssertionError(f"a message of several lines: {error!r}") from error


def header_bytes(path: Path) -> int:
    """Where the tensor data begins."""
    data = path.read_bytes()
    with open_model(path) as model:
        last = next(reversed(model.tensors)).encode()
    return data.rindex(last, 0, len(data)) + len(last) + 4 + 4 * 8 + 12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    args = parser.parse_args()
    source = random.Random(args.seed)
    models = [(path.read_bytes(), header_bytes(path)) for path in args.models]
    for path in args.models:
        try_one(path)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        target = Path(folder) / "mutated.gguf"
        for number in range(args.files):
            data = mutate(*source.choice(models), source)
            target.write_bytes(data)
            if fault := judge(target):
                print(f"file {number} of seed {args.seed}: {fault}")
                if args.keep:
                    (args.keep / "offender.gguf").write_bytes(data)
                return 1
    print(f"{args.files} files answered")
    return 0


def judge(path: Path) -> str:
    """What is wrong with the reader's answer, empty if nothing."""
    tracemalloc.start()
    began = time.thread_time()
    try:
        with np.errstate(all="ignore"):
            try_one(path)
    except Exception:
        return traceback.format_exc()
    finally:
        seconds = time.thread_time() - began
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if seconds > _SECONDS:
        return f"{seconds:.2f} s"
    limit = 2 * path.stat().st_size + _OWN_BYTES
    return f"{peak} bytes of memory, {limit} allowed" if peak > limit else ""


if __name__ == "__main__":
    sys.exit(main())
