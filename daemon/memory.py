"""Persistent memory for a loaded model, as configured."""

from daemon.config import Config
from daemon.engine_client import EngineClient
from daemon.saves import Memory, NoMemory
from runtime.model import LoadedModel


async def open_memory(config: Config, loaded: LoadedModel, client: EngineClient) -> Memory:
    """The store's bridge, or `NoMemory` with ``--store off``."""
    return NoMemory(client)
