"""Copying bytes and summing them up in one pass: xxh3-128 as they go by.

Restoring a prefix is bound by memory. A copy that is read again for its checksum moves each byte four times
(read, fetched for ownership, written back, read); here it is loaded once, goes into the sum and out past the
cache, which moves it twice. What is summed up is the very register that is stored.

The sum is that of `xxhash.xxh3_128_digest` (XXH3, specification 0.2.0) for inputs of more than 240 bytes:

    eight accumulators of 64 bits; a stripe is 64 bytes, one u64 d[i] for each:
        k = d[i] ^ secret[i];  acc[i ^ 1] += d[i];  acc[i] += low32(k) * high32(k)
    the secret moves on by 8 bytes per stripe; after 16 stripes
        acc[i] = (acc[i] ^ acc[i] >> 47 ^ secret[16 + i]) * prime
"""

import contextlib
import ctypes
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt
import xxhash
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from runtime.kernels.emit import I32, Builder, Value, const, load_ir
from runtime.kernels.simd import I, atomic_add, atomic_load, entry, inline, ld_i64, prefetch, store_fence
from runtime.kernels.vectype import VecType

Bytes = npt.NDArray[np.uint8]

_SHARED_FROM = 4 << 20
_libc = ctypes.CDLL(None)

_STRIPE = 64
_STRIPES = 16  # between two scrambles
_SCRAMBLE_AT = 128
_LAST_AT = 121
_LOW_AT, _HIGH_AT = 11, 117
_SHORT = 240  # up to here the sum is another function
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_P64 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_AVALANCHE = 0x165667919E3779F9
_START = np.array([_P32[2], _P64[0], _P64[1], _P64[2], _P64[3], _P32[1], _P64[4], _P32[0]], np.uint64)
_WORDS = np.frombuffer(_SECRET, "<u8")

words = VecType("i64", 8)


@intrinsic
def _load(typingctx: Any, address: Any) -> Any:
    def codegen(cx: Any, b: Builder, sig: Any, args: Any) -> Value:
        return load_ir(b, args[0], words.llvm)

    return words(types.int64), codegen


@intrinsic
def _stream(typingctx: Any, v: Any, address: Any) -> Any:
    """Store past the cache; the address is a multiple of 64."""

    def codegen(cx: Any, b: Builder, sig: Any, args: Any) -> Value:
        stored = b.store(args[0], b.inttoptr(args[1], words.llvm.as_pointer()), align=_STRIPE)
        stored.set_metadata("nontemporal", b.module.add_metadata([ir.Constant(I32, 1)]))
        return cx.get_dummy_value()

    return types.void(words, types.int64), codegen


@intrinsic
def _store(typingctx: Any, v: Any, address: Any) -> Any:
    def codegen(cx: Any, b: Builder, sig: Any, args: Any) -> Value:
        b.store(args[0], b.inttoptr(args[1], words.llvm.as_pointer()), align=1)
        return cx.get_dummy_value()

    return types.void(words, types.int64), codegen


@intrinsic
def _accumulated(typingctx: Any, acc: Any, data: Any, secret: Any) -> Any:
    def codegen(cx: Any, b: Builder, sig: Any, args: Any) -> Value:
        acc, data, secret = args
        key = b.xor(data, secret)
        low, high = b.and_(key, const(words.llvm, 0xFFFFFFFF)), b.lshr(key, const(words.llvm, 32))
        swapped = ir.Constant(ir.VectorType(I32, 8), [1, 0, 3, 2, 5, 4, 7, 6])
        neighbours = b.shuffle_vector(data, data, swapped)
        return b.add(acc, b.add(b.mul(low, high), neighbours))

    return words(words, words, words), codegen


@intrinsic
def _scrambled(typingctx: Any, acc: Any, secret: Any) -> Any:
    def codegen(cx: Any, b: Builder, sig: Any, args: Any) -> Value:
        acc, secret = args
        mixed = b.xor(b.xor(acc, b.lshr(acc, const(words.llvm, 47))), secret)
        return b.mul(mixed, const(words.llvm, _P32[0]))

    return words(words, words), codegen


@nb.njit(**inline)
def _step(acc, source, destination, secret, streamed):
    prefetch(source + 1024)
    v = _load(source)
    if streamed:
        _stream(v, destination)
    else:
        _store(v, destination)
    return _accumulated(acc, v, _load(secret))


@nb.njit(**inline)
def _fold(a, b):
    """The two halves of the product of two u64, combined."""
    mask, half = nb.uint64(0xFFFFFFFF), nb.uint64(32)
    across = (a >> half) * (b & mask)
    middle = (((a & mask) * (b & mask)) >> half) + (across & mask) + (a & mask) * (b >> half)
    return (a * b) ^ ((a >> half) * (b >> half) + (across >> half) + (middle >> half))


@nb.njit(**inline)
def _merge(acc, secret, start):
    """The accumulators folded in pairs, then spread over all bits."""
    total = start
    for i in range(0, _STRIPE, 16):
        a = nb.uint64(ld_i64(acc + i)) ^ nb.uint64(ld_i64(secret + i))
        b = nb.uint64(ld_i64(acc + i + 8)) ^ nb.uint64(ld_i64(secret + i + 8))
        total += _fold(a, b)
    total ^= total >> nb.uint64(37)
    total *= nb.uint64(_AVALANCHE)
    return total ^ (total >> nb.uint64(32))


@nb.njit(**entry)
def _copy(destination, source, n, seed, work):
    """Copy n > 240 bytes; their sum is the last two words of `work`, u64 [34], the low half first.

    Before it lie the secret, which is the fixed one plus and minus the seed, and the accumulators.
    """
    secret = work.ctypes.data
    acc = secret + 8 * len(_WORDS)
    for i in range(0, len(_WORDS), 2):
        work[i], work[i + 1] = _WORDS[i] + seed, _WORDS[i + 1] - seed
    for i in range(len(_START)):
        work[len(_WORDS) + i] = _START[i]
    streamed = destination % _STRIPE == 0
    a = _load(acc)
    at, last = I(0), n - _STRIPE
    while at + _STRIPE * _STRIPES < n:
        for stripe in range(_STRIPES):
            a = _step(a, source + at, destination + at, secret + 8 * stripe, streamed)
            at += _STRIPE
        a = _scrambled(a, _load(secret + _SCRAMBLE_AT))
    for stripe in range((n - 1 - at) // _STRIPE):
        a = _step(a, source + at, destination + at, secret + 8 * stripe, streamed)
        at += _STRIPE
    # The last 64 bytes once more, or what is left of them.
    a = _step(a, source + last, destination + last, secret + _LAST_AT, False)
    store_fence()
    _store(a, acc)
    work[-2] = _merge(acc, secret + _LOW_AT, nb.uint64(n) * nb.uint64(_P64[0]))
    work[-1] = _merge(acc, secret + _HIGH_AT, ~(nb.uint64(n) * nb.uint64(_P64[1])))


@nb.njit(**entry)
def _copy_pieces(pieces, sums, words):
    """Copy pieces until none is left, and tell whether all have arrived.

    Another thread may do the same with the same arrays.

    pieces: i64 [n, 4], destination, source, size, seed; sums: u64 [n, 2], low half first; words: i64 [2],
    the next piece, and how many have arrived.
    """
    work = np.empty(len(_WORDS) + len(_START) + 2, np.uint64)
    while True:
        i = atomic_add(words.ctypes.data, I(1))
        if i >= len(pieces):
            return atomic_load(words.ctypes.data + I(8)) == len(pieces)
        _copy(pieces[i, 0], pieces[i, 1], pieces[i, 2], nb.uint64(pieces[i, 3]), work)
        sums[i, 0], sums[i, 1] = work[-2], work[-1]
        atomic_add(words.ctypes.data + I(8), I(1))


@nb.njit(**entry)
def _note(pieces, i, destination, source):
    """Put down where a piece goes. Asking numpy for two addresses takes several times as long."""
    pieces[i, 0] = destination.ctypes.data
    pieces[i, 1] = source.ctypes.data
    pieces[i, 2] = source.size


class SummedCopy:
    """Copies bytes and sums them up.

    Large numbers of them on a second thread too: one does not use all of the memory's bandwidth.
    """

    def __init__(self) -> None:
        """Compiles or loads the kernel; may take seconds the first time on a machine."""
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="copier", daemon=True)
        self._thread.start()
        for source in (np.zeros(256, np.uint8), np.frombuffer(bytes(256), np.uint8)):
            self([(source, np.empty(256, np.uint8), 0)])

    def __call__(self, pieces: Sequence[tuple[Bytes, Bytes, int]]) -> list[bytes]:
        """Copy each first to its second (uint8 [n], contiguous, of one size).

        Returns the ``xxh3_128_digest`` of each, seeded by its third. Does not hold the interpreter lock
        meanwhile. Errors: ValueError when sizes differ.
        """
        digests: list[bytes] = []
        large: list[int] = []
        seeds: list[int] = []
        table = np.empty((len(pieces), 4), np.int64)
        for i, (source, destination, seed) in enumerate(pieces):
            if source.size != destination.size:
                raise ValueError(f"{source.size} bytes do not fit a place for {destination.size}")
            if source.size <= _SHORT:
                digests.append(_copy_short(source, destination, seed))
            else:
                _note(table, len(large), destination, source)
                digests.append(b"")
                large.append(i)
                seeds.append(seed)
        table = table[: len(large)]
        table[:, 3] = np.array(seeds, np.uint64).view(np.int64)
        for i, digest in zip(large, self._copy(table), strict=True):
            digests[i] = digest
        return digests

    def close(self) -> None:
        """End the second thread. Who copies later does so alone."""
        self._calls.put(None)
        self._thread.join()

    def _copy(self, pieces: npt.NDArray[np.int64]) -> list[bytes]:
        sums, words = np.empty((len(pieces), 2), np.uint64), np.zeros(2, np.int64)
        copy = partial(_copy_pieces, pieces, sums, words)
        if len(pieces) > 1 and pieces[:, 2].sum() >= _SHARED_FROM:
            self._copy_on_two(copy)
        else:
            copy()
        return [(int(high) << 64 | int(low)).to_bytes(16, "big") for low, high in sums.tolist()]

    def _copy_on_two(self, copy: Callable[[], bool]) -> None:
        """A second thread that comes too late is not waited for."""
        done = threading.Event()

        def help_and_tell() -> None:
            copy()
            done.set()

        with apart(self._thread):
            self._calls.put(help_and_tell)
            if not copy():
                done.wait()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _copy_short(source: Bytes, destination: Bytes, seed: int) -> bytes:
    destination[:] = source
    return xxhash.xxh3_128_digest(destination.data, seed=seed)


@contextlib.contextmanager
def apart(other: threading.Thread) -> Iterator[None]:
    """Keep this thread on its processor for a while, and `other` on the others, where the system lets us.

    A thread that is woken for half of some work often finds itself on the processor of the one that woke it,
    and waits there until that has done all of it.
    """
    allowed, mine = _processors()
    if len(allowed) < 2 or mine not in allowed or not other.is_alive() or other.native_id is None:
        yield
        return
    with contextlib.suppress(OSError):
        os.sched_setaffinity(other.native_id, allowed - {mine})
        os.sched_setaffinity(0, {mine})
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, allowed)


def _processors() -> tuple[set[int], int]:
    """Those that this thread may run on, and the one it runs on now; nothing where that cannot be known."""
    with contextlib.suppress(AttributeError, OSError):
        return os.sched_getaffinity(0), int(_libc.sched_getcpu())
    return set(), 0
