"""Fixtures of the store's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Store
from tests.store import kv


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store with a budget of 64 MiB."""
    with kv.open_store(tmp_path) as opened:
        yield opened


@pytest.fixture
def root(store: Store) -> bytes:
    return store.register(kv.FINGERPRINT)
