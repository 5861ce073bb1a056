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
import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt
import xxhash
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from runtime.kernels.emit import I32, Builder, Value, const, load_ir
from runtime.kernels.simd import (
    I,
    atomic_add,
    atomic_load,
    atomic_store,
    cpu_pause,
    entry,
    inline,
    ld_i64,
    prefetch,
    store_fence,
)
from runtime.kernels.vectype import VecType

Bytes = npt.NDArray[np.uint8]

_SHARED_FROM = 1 << 19
_TABLE_ROWS = 4096
_PAUSES = 1 << 15  # about a millisecond
_ARRIVED, _PUBLISHED, _COMPLETE = 1, 2, 3  # words of a transfer; the first is the next piece
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
def _publish(table, words, i, source, destination, seed):
    """Put down what to copy, and then that it is there: someone may wait for it.

    Asking numpy for two addresses takes several times as long.
    """
    table[i, 0] = destination.ctypes.data
    table[i, 1] = source.ctypes.data
    table[i, 2] = source.size
    table[i, 3] = seed
    atomic_store(words.ctypes.data + I(8 * _PUBLISHED), I(i + 1))


@nb.njit(**entry)
def _complete(words):
    """No more will come. Who sees that sees all that was published before, on every processor."""
    atomic_store(words.ctypes.data + I(8 * _COMPLETE), I(1))


@nb.njit(**entry)
def _copy_published(table, sums, words, pauses):
    """Copy pieces until all are taken and no more will come, or none comes for a while.

    Another thread may do the same with the same arrays once no more will come.

    table: i64 [n, 4], destination, source, size, seed; sums: u64 [n, 2], low half first; words: i64 [4].
    """
    work = np.empty(len(_WORDS) + len(_START) + 2, np.uint64)
    base = words.ctypes.data
    while True:
        waited = 0
        while atomic_load(base + I(8 * _COMPLETE)) == 0 and atomic_load(base) >= atomic_load(
            base + I(8 * _PUBLISHED)
        ):
            if waited == pauses:
                return
            waited += 1
            cpu_pause()
        i = atomic_add(base, I(1))
        if i >= atomic_load(base + I(8 * _PUBLISHED)):
            return
        _copy(table[i, 0], table[i, 1], table[i, 2], nb.uint64(table[i, 3]), work)
        sums[i, 0], sums[i, 1] = work[-2], work[-1]
        atomic_add(base + I(8 * _ARRIVED), I(1))


@nb.njit(**entry)
def _have_arrived(words, pauses):
    """Whether all that was published has arrived; waits for it for a while."""
    base = words.ctypes.data
    for _ in range(pauses):
        if atomic_load(base + I(8 * _ARRIVED)) >= atomic_load(base + I(8 * _PUBLISHED)):
            return True
        cpu_pause()
    return False


class SummedCopy:
    """Copies bytes and sums them up.

    Large numbers of them on a second thread too: one does not use all of the memory's bandwidth.
    """

    def __init__(self) -> None:
        """Compiles or loads the kernel; may take seconds the first time on a machine."""
        self._helper = _Helper()
        for source in (np.zeros(256, np.uint8), np.frombuffer(bytes(256), np.uint8)):
            self([(source, np.empty(256, np.uint8), 0)])

    def __call__(self, pieces: Iterable[tuple[Bytes, Bytes, int]]) -> list[bytes]:
        """Copy each first to its second (uint8 [n], contiguous, of one size).

        Takes them as they come, and copies the first while the next are still looked for. Returns the
        ``xxh3_128_digest`` of each, seeded by its third. Does not hold the interpreter lock meanwhile.
        Errors: ValueError when sizes differ, and those of `pieces`; what came before has arrived then.
        """
        coming = iter(pieces)
        digests: list[bytes] = []
        while len(digests) % _TABLE_ROWS == 0:
            some = _Transfer(self._helper).run(itertools.islice(coming, _TABLE_ROWS))
            if not some:
                break
            digests += some
        return digests

    def close(self) -> None:
        """End the second thread. Who copies later does so alone."""
        self._helper.close()


class _Helper:
    """The second thread, which runs what it is given, one after the other."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="copier", daemon=True)
        self._thread.start()

    def start(self, call: Callable[[], None]) -> threading.Event:
        """Have `call` run, perhaps too late to matter. What is returned is set when it has."""
        done = threading.Event()

        def call_and_tell() -> None:
            call()
            done.set()

        self._calls.put(call_and_tell)
        return done

    def apart(self) -> contextlib.AbstractContextManager[bool]:
        return apart(self._thread)

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class _Transfer:
    """Some pieces on their way.

    The helper starts on what there is as soon as it is worth it, and copies while this thread still looks
    for the rest, which may have it wait for a disk. Then both copy. A helper that comes late is not waited
    for.
    """

    def __init__(self, helper: _Helper) -> None:
        self._helper = helper
        self._table = np.empty((_TABLE_ROWS, 4), np.int64)
        self._sums = np.empty((_TABLE_ROWS, 2), np.uint64)
        self._words = np.zeros(4, np.int64)
        self._n_alone = 0
        self._helping: threading.Event | None = None
        self._can_share = True

    def run(self, pieces: Iterable[tuple[Bytes, Bytes, int]]) -> list[bytes]:
        digests: list[bytes] = []
        large: list[int] = []
        kept: list[tuple[Bytes, Bytes]] = []  # whose addresses are in the table
        with contextlib.ExitStack() as undo:
            try:
                for source, destination, seed in pieces:
                    if source.size != destination.size:
                        raise ValueError(f"{source.size} bytes do not fit a place for {destination.size}")
                    if source.size <= _SHORT:
                        digests.append(_copy_short(source, destination, seed))
                        continue
                    kept.append((source, destination))
                    _publish(self._table, self._words, len(large), source, destination, _signed(seed))
                    large.append(len(digests))
                    digests.append(b"")
                    self._share(source.size, undo)
            finally:
                self._finish()
        for i, (low, high) in zip(large, self._sums[: len(large)].tolist(), strict=True):
            digests[i] = (high << 64 | low).to_bytes(16, "big")
        return digests

    def _share(self, n_bytes: int, undo: contextlib.ExitStack) -> None:
        """Have the helper copy too where enough has come together."""
        self._n_alone += n_bytes
        if self._n_alone < _SHARED_FROM or not self._can_share:
            return
        if self._helping is None:
            self._can_share = undo.enter_context(self._helper.apart())
        elif not self._helping.is_set():
            return
        if self._can_share:
            self._n_alone = 0
            self._helping = self._helper.start(self._copy)

    def _copy(self) -> None:
        _copy_published(self._table, self._sums, self._words, _PAUSES)

    def _finish(self) -> None:
        _complete(self._words)
        self._copy()
        if not _have_arrived(self._words, _PAUSES) and self._helping is not None:
            self._helping.wait()


def _copy_short(source: Bytes, destination: Bytes, seed: int) -> bytes:
    destination[:] = source
    return xxhash.xxh3_128_digest(destination.data, seed=seed)


def _signed(seed: int) -> int:
    """The i64 with the bits of this u64: the compiler knows one kind of integer then."""
    return seed - (seed >> 63 << 64)


@contextlib.contextmanager
def apart(other: threading.Thread) -> Iterator[bool]:
    """Keep this thread on its processor for a while, and `other` on the others, where the system lets us.

    A thread that is woken for half of some work often finds itself on the processor of the one that woke it,
    and waits there until that has done all of it. False where there is no other processor to be on.
    """
    allowed, mine = _processors()
    if len(allowed) < 2 or mine not in allowed or not other.is_alive() or other.native_id is None:
        yield other.is_alive() and len(allowed) != 1
        return
    with contextlib.suppress(OSError):
        os.sched_setaffinity(other.native_id, allowed - {mine})
        os.sched_setaffinity(0, {mine})
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, allowed)


def _processors() -> tuple[set[int], int]:
    """Those that this thread may run on, and the one it runs on now; nothing where that cannot be known."""
    with contextlib.suppress(AttributeError, OSError):
        return os.sched_getaffinity(0), int(_libc.sched_getcpu())
    return set(), 0
