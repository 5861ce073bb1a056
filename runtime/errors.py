"""What can go wrong in the runtime, as types; each message is one line a user can act on."""


class RuntimeFault(Exception):
    """Base of every error that the runtime raises on purpose."""


class ModelError(RuntimeFault):
    """The model file cannot be used: not GGUF, damaged, incomplete, or of an unsupported kind."""


class UnsupportedModel(ModelError):
    """The file is sound, but its architecture, tensor type or tokenizer is not implemented."""


class ContextExceeded(RuntimeFault):
    """The prompt does not fit a slot.

    `n_prompt` and `n_ctx` are token counts: the prompt's and the slot's.
    """

    def __init__(self, n_prompt: int, n_ctx: int) -> None:
        super().__init__(
            f"request ({n_prompt} tokens) exceeds the available context size ({n_ctx} tokens), "
            "try increasing it"
        )
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class BatchExceeded(RuntimeFault):
    """A prompt to embed does not fit one step; `n_prompt` and `n_ubatch` are token counts."""

    def __init__(self, n_prompt: int, n_ubatch: int) -> None:
        super().__init__(
            f"input ({n_prompt} tokens) is too large to process. "
            f"increase the physical batch size (current batch size: {n_ubatch})"
        )
        self.n_prompt = n_prompt
        self.n_ubatch = n_ubatch


class PoolExhausted(RuntimeFault):
    """Every block of the pool is referenced by a live sequence or a lease."""


class QueueFull(RuntimeFault):
    """As many requests as the queue may hold are waiting for a slot."""

    def __init__(self, n_waiting: int) -> None:
        super().__init__(f"the request queue is full ({n_waiting} requests are waiting)")
        self.n_waiting = n_waiting


class InvalidRequest(RuntimeFault):
    """A field of a request or command is out of range: no such slot, a token id beyond the vocabulary."""


class StepCancelled(RuntimeFault):
    """The step was given up before its end, as `Runner.cancel` asked; nothing of it counts."""


class CheckFailed(RuntimeFault):
    """Checked mode met an address that leads where it must not: a fault of the program, which it names."""


class StepFailed(RuntimeFault):
    """The model could not compute a step or computed logits that are not numbers."""


class NothingToSample(StepFailed):
    """A request's own biases and penalties leave no token that could come next."""
