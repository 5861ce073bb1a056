"""The daemon's state, shared by all routes."""

import time
from dataclasses import dataclass

from daemon.chat import TurnDelimiters
from daemon.config import Config, read_api_keys
from daemon.engine_client import EngineClient
from daemon.errors import LOADING
from daemon.model import ServedModel
from daemon.saves import Saves
from daemon.settings import Defaults
from daemon.templates import AnyTemplate
from daemon.workers import Workers


@dataclass(frozen=True, slots=True)
class Ready:
    """What exists once the model is loaded. `root` separates the prefixes of this model from all others."""

    model: ServedModel
    client: EngineClient
    template: AnyTemplate
    delimiters: TurnDelimiters
    defaults: Defaults
    saves: Saves
    root: bytes = b""


class Service:
    """Loading first, then ready, in the end stopping. Used by the event loop only.

    The constructor raises OSError when the file of API keys cannot be read.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.workers = Workers()
        self.api_keys = tuple(key.encode() for key in read_api_keys(config))
        self.started = time.time()
        self.stopping = False
        self._ready: Ready | None = None

    @property
    def is_ready(self) -> bool:
        return self._ready is not None

    @property
    def ready(self) -> Ready:
        """Raises ApiError 503 while the model is loading."""
        if self._ready is None:
            raise LOADING
        return self._ready

    def set_ready(self, ready: Ready) -> None:
        self._ready = ready
