"""Which computation a stored byte belongs to.

A fingerprint is an ordered list of named fields, everything that changes the bytes of sequence memory and
nothing else: slots, context size, threads, batch sizes, sampling and the program's version stay out. Its id
seeds the prefix chain, so state of another model or setting is never found instead of being refused late;
the readable record stays beside it to say *what* differs.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Protocol, cast

import msgpack
from blake3 import blake3

from store.chain import root_id
from store.errors import Damaged

SCHEMA = 1
_PERSON = b"kvfp-v1"

Value = bool | int | float | str | bytes | tuple["Value", ...]


@dataclass(frozen=True)
class Fingerprint:
    """Ordered ``(name, value)`` fields; equal fields in equal order give equal ids on every machine."""

    fields: tuple[tuple[str, Value], ...]

    @cached_property
    def id(self) -> bytes:
        """32 bytes: blake2b-256 over the canonical msgpack of the fields."""
        return blake2b(self.pack(), digest_size=32, person=_PERSON).digest()

    @property
    def root(self) -> bytes:
        """The start of the prefix chain under this fingerprint."""
        return root_id(self.id)

    def pack(self) -> bytes:
        """Canonical bytes: msgpack with shortest integers, 8-byte floats, text and binary kept apart."""
        for _, value in self.fields:
            _check(value)
        return cast(bytes, msgpack.packb(self.fields, use_bin_type=True, strict_types=False))

    @staticmethod
    def unpack(data: bytes) -> "Fingerprint":
        """The inverse of `pack`; raises `Damaged`."""
        try:
            pairs = msgpack.unpackb(data, use_list=False)
            found = Fingerprint(tuple((str(name), value) for name, value in pairs))
            found.pack()
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise Damaged(f"unreadable fingerprint record: {error}") from None
        return found


def _check(value: object) -> None:
    if isinstance(value, tuple):
        for item in value:
            _check(item)
    elif not isinstance(value, bool | int | float | str | bytes):
        raise TypeError(f"a fingerprint cannot hold a {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA or control vector in effect: content digest, scale, digest of the list of tensors it changes."""

    digest: bytes
    scale: float
    targets: bytes = b""


def model_fingerprint(
    *,
    weights: bytes,
    architecture: str,
    layers: Value,
    kv_layout: Value,
    positions: Value,
    numerics: Value,
    adapters: Sequence[Adapter] = (),
    projector: bytes = b"",
    salt: bytes = b"",
) -> Fingerprint:
    """The fingerprint of a request, with the fields in the one order everybody uses.

    `weights` and `projector` are content digests; `layers` names each layer kind with its head counts, sizes
    and window; `kv_layout` the layout ids and cache types; `positions` the *effective* rope parameters,
    attention scale and soft-caps; `numerics` the kernel families with their hand-bumped numbers. `salt`
    separates users who must not see each other's prefixes; only its digest is kept.
    """
    in_effect = sorted((a.digest, a.targets, float(a.scale)) for a in adapters if a.scale)
    return Fingerprint(
        (
            ("schema", SCHEMA),
            ("weights", weights),
            ("architecture", architecture),
            ("layers", layers),
            ("kv_layout", kv_layout),
            ("positions", positions),
            ("adapters", tuple(in_effect)),
            ("numerics", numerics),
            ("projector", projector),
            ("salt", blake2b(salt, digest_size=32, person=_PERSON).digest() if salt else b""),
        )
    )


def diff(a: Fingerprint, b: Fingerprint) -> tuple[str, ...]:
    """Names of the fields that differ or that only one has, in the order of `a`, then of `b`."""
    left, right = dict(a.fields), dict(b.fields)
    names = list(left) + [name for name in right if name not in left]
    return tuple(
        name
        for name in names
        if name not in left or name not in right or msgpack.packb(left[name]) != msgpack.packb(right[name])
    )


class DigestCache(Protocol):
    """Where `weights_digest` remembers what it computed; `Store.digests` is one."""

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, digest: bytes) -> None: ...


def _stat_key(path: Path) -> bytes:
    status = path.stat()
    fields = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return cast(bytes, msgpack.packb(fields))


def weights_digest(paths: Sequence[Path], cache: DigestCache | None, *, max_threads: int = 1) -> bytes:
    """Content digest (32 bytes) of a model: blake3 over the blake3 digests of its files in order.

    Reads the files through a mapping with `max_threads` threads and without the interpreter lock: about 1
    GiB/s per thread, so it is called in a thread of its own. A file whose (device, inode, size, mtime, ctime)
    is in `cache` is not read again. Raises OSError when a file cannot be read or changes under the reading.
    """
    whole = blake3()
    for path in paths:
        key = _stat_key(path)
        digest = cache.get(key) if cache is not None else None
        if digest is None:
            digest = blake3(max_threads=max_threads).update_mmap(os.fspath(path)).digest()
            if _stat_key(path) != key:
                raise OSError(f"{path} changed while its digest was computed")
            if cache is not None:
                cache.put(key, digest)
        whole.update(digest)
    return whole.digest()
