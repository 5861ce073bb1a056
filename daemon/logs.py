"""Log lines: for people on a terminal, or as JSON objects; never a prompt's text."""

import logging
import sys
from pathlib import Path
from typing import IO, Any

import structlog

from daemon.config import Config
from daemon.errors import ApiError, from_exception
from runtime.errors import QueueFull

_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO}


class _Tee:
    """Writes to stderr and to the log file."""

    def __init__(self, *files: IO[str]) -> None:
        self._files = files

    def write(self, text: str) -> int:
        for file in self._files:
            file.write(text)
        return len(text)

    def flush(self) -> None:
        for file in self._files:
            file.flush()


def configure_logs(config: Config) -> None:
    """Set up logging for the process. Raises OSError when the log file cannot be opened."""
    level = logging.DEBUG if config.verbose else _level(config.verbosity)
    files: list[IO[str]] = [sys.stderr]
    if config.log_disable:
        level, files = logging.CRITICAL, []
    if config.log_file:
        files.append(Path(config.log_file).open("a", encoding="utf-8", buffering=1))  # noqa: SIM115
    colours = config.log_colors == "on" or (
        config.log_colors == "auto" and sys.stderr.isatty() and not config.log_file
    )
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if config.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=colours, pad_event_to=0, sort_keys=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso" if config.log_format == "json" else "%H:%M:%S"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=_Tee(*files)),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Forward()], level=max(level, logging.INFO), force=True)
    logging.getLogger("hypercorn").setLevel(logging.WARNING)


class _Forward(logging.Handler):
    """Brings the standard library's records, which libraries and the runtime write, into the same log."""

    def emit(self, record: logging.LogRecord) -> None:
        facts = {"exc_info": record.exc_info} if record.exc_info else {}
        logger().log(record.levelno, record.getMessage(), source=record.name, **facts)


def _level(verbosity: int) -> int:
    if verbosity <= 0:
        return logging.CRITICAL
    return _LEVELS.get(verbosity, logging.DEBUG)


def logger() -> Any:
    return structlog.get_logger()


def log_failure(error: BaseException) -> None:
    """Log an error that a request ended with, with its traceback when it is not one the client caused."""
    if from_exception(error).code < 500 or isinstance(error, ApiError | QueueFull):
        return
    logger().error("request failed", exc_info=error)
