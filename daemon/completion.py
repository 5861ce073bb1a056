"""One completion while its events arrive."""

from dataclasses import dataclass, field

from daemon.settings import Settings
from runtime.engine.messages import (
    Event,
    Finished,
    GenerateRequest,
    Output,
    Progress,
    Started,
    StopReason,
    Timings,
    TokenOutput,
)


@dataclass(slots=True)
class Completion:
    """What is known of the completion number `index` of a request so far."""

    index: int
    request: GenerateRequest
    settings: Settings
    text: list[str] = field(default_factory=list)
    tokens: list[TokenOutput] = field(default_factory=list)
    started: Started | None = None
    progress: Progress | None = None
    finished: Finished | None = None

    def feed(self, event: Event) -> None:
        if isinstance(event, Output):
            self.tokens.extend(event.tokens)
            if not self.settings.stream or self.settings.verbose:
                self.text.append(event.text)
        elif isinstance(event, Started):
            self.started = event
        elif isinstance(event, Progress):
            self.progress = event
        elif isinstance(event, Finished):
            self.finished = event

    @property
    def content(self) -> str:
        return "".join(self.text)

    @property
    def n_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def n_decoded(self) -> int:
        return self.finished.timings.predicted_n if self.finished else len(self.tokens)

    @property
    def n_cached(self) -> int:
        if self.finished is not None:
            return self.finished.timings.cache_n
        return self.started.n_cached if self.started else 0

    @property
    def timings(self) -> Timings:
        return self.finished.timings if self.finished else Timings()

    @property
    def finish_reason(self) -> str:
        """OpenAI's: ``stop`` for an end of text or a stop string, else ``length``."""
        reason = self.finished.reason if self.finished else StopReason.NONE
        return "stop" if reason in (StopReason.EOS, StopReason.WORD) else "length"
