"""The daemon's state, shared by all routes."""

import time
from dataclasses import dataclass
from typing import Any

from daemon.chat import TurnDelimiters
from daemon.config import Config, read_api_keys
from daemon.engine_client import EngineClient
from daemon.errors import LOADING
from daemon.model import ServedModel
from daemon.saves import Saves
from daemon.settings import Defaults
from daemon.system_prompt import SystemPrompt, encode_system, parse_system_prompt, read_system_prompt
from daemon.templates import AnyTemplate
from daemon.text import as_tokens
from daemon.workers import Workers
from runtime.engine.messages import Tokens
from runtime.readout import Readout


@dataclass(frozen=True, slots=True)
class Ready:
    """What exists once the model is loaded. `root` separates the prefixes of this model from all others.

    With a `readout` the model computes embeddings, and nothing else.
    """

    model: ServedModel
    client: EngineClient
    template: AnyTemplate
    delimiters: TurnDelimiters
    defaults: Defaults
    saves: Saves
    root: bytes = b""
    readout: Readout | None = None


class Service:
    """Loading first, then ready, in the end stopping. Used by the event loop only.

    The constructor raises OSError when the file of API keys cannot be read, and UsageError for the system
    prompt's.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.workers = Workers()
        self.api_keys = tuple(key.encode() for key in read_api_keys(config))
        self.started = time.time()
        self.stopping = False
        self.system_prompt = read_system_prompt(config.system_prompt_file)
        self.system_tokens = as_tokens(())
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
        self.system_tokens = encode_system(self.system_prompt, ready.model.tokenizer)
        self._ready = ready

    async def take_system_prompt(self, given: Any) -> None:
        """Use a request's ``system_prompt`` from now on, for everybody. Raises ApiError 400."""
        system = parse_system_prompt(given)
        if system is not None and system != self.system_prompt:
            self.set_system(system, await self.workers.run(encode_system, system, self.ready.model.tokenizer))

    def set_system(self, system: SystemPrompt, tokens: Tokens) -> None:
        self.system_prompt, self.system_tokens = system, tokens
