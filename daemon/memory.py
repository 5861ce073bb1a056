"""Persistent memory for a loaded model, as configured."""

from daemon.config import Config
from daemon.engine_client import EngineClient
from daemon.logs import logger
from daemon.memory_bridge import open_bridge
from daemon.saves import Memory, NoMemory
from runtime.model import LoadedModel
from store import StoreBusy, StoreError
from tools.errors import reason


async def open_memory(config: Config, loaded: LoadedModel, client: EngineClient, name: str) -> Memory:
    """The store's bridge, or `NoMemory` with ``--store off`` and where no store can be had.

    Raises StoreBusy when another daemon owns the store: going on without it would lose what users believe
    is kept.
    """
    if config.store == "off":
        return NoMemory(client)
    try:
        return await open_bridge(config, loaded, client, name)
    except StoreBusy:
        raise
    except (StoreError, OSError) as error:
        logger().warning("serving without a store", reason=reason(error))
        return NoMemory(client, reason(error))
