"""Models with hostile numbers and tensors, loaded and run in checked mode: run as a program.

``python -m tests.runtime.models.fuzz --files N --seed S MODEL...`` makes N files, of each model in turn, and
exits 1 if one is answered by something else than logits or one line of a ModelError, within 20 seconds and
2 GiB. A file that kills or hangs the process is the last one it names. ``--only K`` makes one file alone.
"""

import argparse
import faulthandler
import gc
import os
import random
import resource
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from runtime.errors import ModelError
from runtime.gguf import GGMLType
from runtime.model import ModelOptions, load_model
from tests.runtime.evaluation import all_logits
from tests.runtime.gguf.writer import (
    ARRAY,
    BOOL,
    F32,
    I32,
    I64,
    STRING,
    U32,
    U64,
    File,
    Tensor,
    array,
    scalar,
)

_SECONDS = 20
_BYTES = 2 << 30
_PROMPT = np.arange(2, 22, dtype=np.int32)
_CHUNKS = (13, 7)
_OPTIONS = ModelOptions(n_ctx=64, n_ubatch=32, n_threads=1, max_runs=1, max_outputs=32)
_INTEGERS = (0, 1, 2, 3, 17, 33, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_FLOATS = (0.0, -1.0, 1e-38, 3e38, float("inf"), float("-inf"), float("nan"))
_TYPES = (GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.I32, GGMLType.I8)


def read(path: Path) -> File:
    """The file as its parts."""
    reader = gguf.GGUFReader(path)
    file = File()
    for name, field in reader.fields.items():
        if name.startswith("GGUF."):
            continue
        kind, value = int(field.types[0]), field.contents()
        if kind == ARRAY:
            file.put_array(name, int(field.types[-1]), value)
        else:
            file.put(name, kind, value)
    for tensor in reader.tensors:
        shape = tuple(int(n) for n in tensor.shape)
        file.tensors.append(
            Tensor(tensor.name, shape, GGMLType(tensor.tensor_type), data=tensor.data.tobytes())
        )
    return file


def mutate(source: File, random: random.Random) -> tuple[File, str]:
    """A copy with one thing changed, and what that is."""
    file = replace(source, metadata=list(source.metadata), tensors=list(source.tensors))
    return file, random.choice((_change_key, _change_key, _change_tensor, _resize, _change_both))(
        file, random
    )


def _change_both(file: File, random: random.Random) -> str:
    return f"{_change_key(file, random)}, {_change_tensor(file, random)}"


def _resize(file: File, random: random.Random) -> str:
    """Change a number, and with it every dim that equals it."""
    sizes = [
        (i, int.from_bytes(value, "little"))
        for i, (name, kind, value) in enumerate(file.metadata)
        if kind == U32 and not str(name).startswith(("general.", "tok"))
    ]
    at, size = random.choice([(i, n) for i, n in sizes if n > 1])
    name, kind, _ = file.metadata[at]
    new = random.choice((1, 3, 8, 17, 48, max(1, size // 2), size + 1, 2 * size))
    file.metadata[at] = name, kind, scalar(kind, new)
    for i, tensor in enumerate(file.tensors):
        if size in tensor.shape and random.random() < 0.95:
            file.tensors[i] = resized(tensor, tuple(new if n == size else n for n in tensor.shape))
    return f"{name} and what was as large = {new}"


def _change_key(file: File, random: random.Random) -> str:
    keys = [
        i for i, (name, _, _) in enumerate(file.metadata) if not str(name).startswith(("general.", "tok"))
    ]
    at = random.choice(keys)
    name, kind, value = file.metadata[at]
    if random.random() < 0.05:
        del file.metadata[at]
        return f"without {name}"
    numbers = {F32: _FLOATS, BOOL: (0, 1), STRING: ("", "nonsense", "x" * 1000)}.get(kind, _INTEGERS)
    match random.randrange(10):
        case 0:
            kind, value, text = random.choice(_wrong_types())
        case 1 | 2 | 3:
            width, numbers = (
                (F32, _FLOATS) if kind == F32 else (random.choice((U32, I32)), (0, 1, 3, 17, 1 << 30))
            )
            if kind == ARRAY and random.random() < 0.5:
                count = int.from_bytes(value[4:12], "little")
                width, size = int.from_bytes(value[:4], "little"), (len(value) - 12) // max(1, count)
                count = random.choice((0, 1, max(0, count - 1), count + 1, 1000))
                value = value[:4] + count.to_bytes(8, "little") + (value[12:] * 1000)[: count * size]
                kind, text = ARRAY, f"{count} elements"
            else:
                elements = [
                    random.choice(numbers) for _ in range(random.choice((0, 1, 2, 3, 4, 5, 6, 8, 33)))
                ]
                kind, value, text = ARRAY, array(width, elements), f"{elements}"
        case _ if kind == ARRAY and value[:4] in (b"\x05\0\0\0", b"\x04\0\0\0"):
            elements = list(np.frombuffer(value[12:], np.int32))
            elements[random.randrange(len(elements))] = number = random.choice(
                (-1, 0, 1, 3, 17, (1 << 31) - 1)
            )
            value, text = array(I32, elements), f"{number} in the array"
        case _ if kind == ARRAY:
            value = value[:12] + bytes(random.choice((0, 1, 255)) for _ in value[12:])
            text = "other elements"
        case _:
            number = random.choice(numbers)
            value, text = scalar(kind, number), f"{number!r:.40}"
    file.metadata[at] = (name, kind, value)
    return f"{name} = {text}"


def _wrong_types() -> list[tuple[int, bytes, str]]:
    kinds = ((I32, -1), (I64, -1), (U64, 1 << 63), (U64, 1 << 40), (F32, 1.5), (BOOL, 1), (STRING, "four"))
    return [(kind, scalar(kind, value), f"{value!r}") for kind, value in kinds]


def _change_tensor(file: File, random: random.Random) -> str:
    at = random.randrange(len(file.tensors))
    old = file.tensors[at]
    match random.randrange(6):
        case 0:
            del file.tensors[at]
            return f"without {old.name!r}"
        case 1:
            other = random.randrange(len(file.tensors))
            new = resized(old, file.tensors[other].shape)
            file.tensors[other] = resized(file.tensors[other], old.shape)
        case 2:
            new = resized(old, tuple(reversed(old.shape)))
        case 3:
            new = resized(
                old, random.choice((old.shape[1:], old.shape[:-1], (*old.shape, 1), (*old.shape, 2)))
            )
        case 4:
            shape = list(old.shape)
            i = random.randrange(len(shape))
            shape[i] = random.choice((0, 1, 3, 17, shape[i] // 2, shape[i] * 2, shape[i] + 1, 256))
            new = resized(old, tuple(shape))
        case _:
            kind = random.choice(_TYPES)
            new = resized(replace(old, type=kind), old.shape)
    file.tensors[at] = new
    return f"{old.name!r} {old.type.name}{old.shape} as {new.type.name}{new.shape}"


def resized(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor with other dims and as many bytes as these take, most of them its own."""
    n_bytes = tensor.type.tensor_bytes(shape or (1,))
    data = tensor.data or b""
    return replace(tensor, shape=shape, data=data[:n_bytes] + bytes(max(0, n_bytes - len(data))))


def judge(path: Path, number: int) -> str:
    """What is wrong with the answer to a file, empty if nothing. Every other one stays unpacked."""
    faulthandler.dump_traceback_later(_SECONDS, exit=True)
    try:
        loaded = load_model(path, replace(_OPTIONS, repack=number % 2 == 0))
        try:
            all_logits(loaded, _PROMPT % loaded.runner.n_vocab, _CHUNKS)
        finally:
            loaded.close()
    except ModelError as error:
        return f"a message of several lines: {error}" if "\n" in str(error) else ""
    except Exception:
        return traceback.format_exc()
    finally:
        faulthandler.cancel_dump_traceback_later()
        # what a refused load had mapped hangs in cycles, and the address space is limited
        gc.collect()
    return ""


def mutations(sources: list[File], n: int, seed: int) -> Iterator[tuple[int, File, str]]:
    for number in range(n):
        source = random.Random(f"{seed}/{number}")
        yield number, *mutate(sources[number % len(sources)], source)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("models", type=Path, nargs="+")
    args = parser.parse_args()
    sources = [read(path) for path in args.models]
    n_faults = 0
    os.environ["EMBERD_CHECKED"] = "1"
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        target = Path(folder) / "mutated.gguf"
        for source, path in zip(sources, args.models, strict=True):
            if fault := judge(source.write(target), 0):
                print(f"{path.stem}: {fault}")
                return 1
        gc.collect()
        gc.freeze()
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + _BYTES, resource.RLIM_INFINITY))
        for number, file, change in mutations(sources, args.files, args.seed):
            if args.only not in (None, number):
                continue
            name = args.models[number % len(sources)].stem
            print(f"file {number} of seed {args.seed}, {name}: {change}", flush=True)
            if fault := judge(file.write(target), number // len(sources)):
                print(fault, flush=True)
                n_faults += 1
    return int(n_faults > 0)


def _address_space() -> int:
    """Bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    faulthandler.enable()
    sys.exit(main())
