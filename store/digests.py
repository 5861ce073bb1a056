"""Digests of weight files that were read before."""

import lmdb

from store.environment import Environment, Txn
from store.errors import StoreError
from store.records import unseal
from store.writer import Writer


class StoredDigests:
    """Digests of weight files by their stat tuple, kept in the store (a `fingerprint.DigestCache`)."""

    def __init__(self, environment: Environment, writer: Writer | None) -> None:
        self._env = environment
        self._writer = writer

    def get(self, key: bytes) -> bytes | None:
        def body(txn: Txn) -> bytes | None:
            value = txn.get(key, db=self._env.wid)
            return None if value is None else bytes(unseal(key, value)[1])

        try:
            return self._env.read(body)
        except (StoreError, lmdb.Error):
            return None

    def put(self, key: bytes, digest: bytes) -> None:
        if self._writer:
            self._writer.post(lambda update: update.put_digest(key, digest))
