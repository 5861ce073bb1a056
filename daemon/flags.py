"""How command line flags and their environment variables are read; the table itself is `daemon.options`.

A flag is data: parsing, the ``LLAMA_ARG_*`` variables, defaults, warnings and ``--help`` come from one row.
The command line wins over the environment, which wins over defaults; of a repeated flag the last one counts.
"""

import difflib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TRUE = frozenset({"true", "1", "on", "enabled", "yes"})
FALSE = frozenset({"false", "0", "off", "disabled", "no"})


class UsageError(Exception):
    """The command line or an environment variable cannot be used; the message names the flag."""


@dataclass(frozen=True, slots=True)
class Value:
    """How the text after a flag becomes a value. `read` raises ValueError with what was expected."""

    metavar: str
    read: Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Flag:
    """One row of the table.

    `names` are its spellings, the descriptive one last; `off` are those that switch it off.
    `field` is the attribute of `Config` it fills, "" when the flag is accepted without an effect.
    `value` is None for a switch. `optional` lists words that may follow a flag whose value may be left out.
    `extra` counts further values that the flag swallows (``--control-vector-layer-range START END``).
    `note` says why a flag has no effect; it is shown once when the flag asks for something not in `neutral`.
    """

    names: tuple[str, ...]
    field: str = ""
    value: Value | None = None
    default: Any = None
    env: str = ""
    help: str = ""
    off: tuple[str, ...] = ()
    repeat: bool = False
    optional: frozenset[str] = frozenset()
    extra: int = 0
    note: str = ""
    neutral: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.names[-1]

    @property
    def env_off(self) -> str:
        """The variable that switches a negatable flag off: ``LLAMA_ARG_NO_X``."""
        prefix = "LLAMA_ARG_"
        return (
            f"{prefix}NO_{self.env.removeprefix(prefix)}" if self.off and self.env.startswith(prefix) else ""
        )


def integer(low: int, high: int = 2**31 - 1, metavar: str = "N") -> Value:
    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError("expected an integer") from None
        if not low <= number <= high:
            raise ValueError(f"expected a value between {low} and {high}")
        return number

    return Value(metavar, read)


def number(low: float = float("-inf"), high: float = float("inf")) -> Value:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("expected a number") from None
        if not low <= value <= high:
            raise ValueError(f"expected a value between {low:g} and {high:g}")
        return value

    return Value("N", read)


def text(metavar: str) -> Value:
    return Value(metavar, str)


def choice(*words: str, metavar: str = "") -> Value:
    def read(given: str) -> str:
        if given.lower() not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return given.lower()

    return Value(metavar or f"{{{','.join(words)}}}", read)


_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def size() -> Value:
    """Bytes, as a number with an optional unit: ``512M``, ``2GiB``."""

    def read(given: str) -> int:
        lowered = given.strip().lower().removesuffix("b").removesuffix("i")
        digits, unit = (lowered[:-1], lowered[-1]) if lowered[-1:] in set("kmgt") else (lowered, "")
        try:
            amount = float(digits)
        except ValueError:
            raise ValueError("expected a size such as 512M or 8G") from None
        if not 0 <= amount * _UNITS[unit] < 2**60:
            raise ValueError("expected a size below 2^60 bytes")
        return int(amount * _UNITS[unit])

    return Value("SIZE", read)


def _boolean(given: str) -> bool:
    if given.lower() in TRUE:
        return True
    if given.lower() in FALSE:
        return False
    raise ValueError("expected true or false")


@dataclass(frozen=True, slots=True)
class Parsed:
    """Values by field, and one line for each flag that was accepted without the effect it asks for."""

    values: dict[str, Any]
    warnings: tuple[str, ...]


class Reader:
    """Reads an argument vector and an environment against one table."""

    def __init__(self, table: Sequence[Flag]) -> None:
        self._table = table
        self._by_name = {name: (flag, True) for flag in table for name in flag.names}
        self._by_name.update({name: (flag, False) for flag in table for name in flag.off})

    def read(self, argv: Sequence[str], environ: Mapping[str, str]) -> Parsed:
        """Raises UsageError on the first flag or variable that cannot be used."""
        values = {flag.field: flag.default for flag in self._table if flag.field}
        warnings: list[str] = []
        for flag in self._table:
            self._apply_environment(flag, environ, values, warnings)
        from_line: dict[str, Any] = {}
        arguments = list(argv)
        while arguments:
            self._apply_argument(arguments, from_line, warnings)
        return Parsed(values | from_line, tuple(dict.fromkeys(warnings)))

    def _apply_environment(
        self, flag: Flag, environ: Mapping[str, str], values: dict[str, Any], warnings: list[str]
    ) -> None:
        if flag.env and flag.env in environ:
            given = environ[flag.env]
            if flag.value is None:
                self._store(flag, self._convert(flag.env, _boolean, given), given, flag.env, values, warnings)
            else:
                texts = given.split(",") if flag.repeat else [given]
                for one in texts:
                    converted = self._convert(flag.env, flag.value.read, one)
                    self._store(flag, converted, one, flag.env, values, warnings)
        if flag.env_off and flag.env_off in environ:
            off = self._convert(flag.env_off, _boolean, environ[flag.env_off])
            self._store(flag, not off, str(not off).lower(), flag.env_off, values, warnings)

    def _apply_argument(self, arguments: list[str], values: dict[str, Any], warnings: list[str]) -> None:
        argument = arguments.pop(0)
        name, has_value, attached = (
            argument.partition("=") if argument.startswith("--") else (argument, "", "")
        )
        name = name.replace("_", "-") if name.startswith("--") else name
        flag, positive = self._find(name, argument)
        if flag.value is None:
            if has_value:
                positive = positive == self._convert(name, _boolean, attached)
            self._store(flag, positive, str(positive).lower(), name, values, warnings)
            return
        if has_value:
            given = attached
        elif flag.optional and not (arguments and arguments[0].lower() in flag.optional):
            given = "on"
        elif arguments:
            given = arguments.pop(0)
        else:
            raise UsageError(f"{name}: expected {flag.value.metavar}")
        for _ in range(self._swallowed(flag, given, arguments)):
            if not arguments:
                raise UsageError(f"{name}: expected {flag.value.metavar}")
            given = f"{given} {arguments.pop(0)}"
        self._store(flag, self._convert(name, flag.value.read, given), given, name, values, warnings)

    def _find(self, name: str, argument: str) -> tuple[Flag, bool]:
        if name in self._by_name:
            return self._by_name[name]
        if not argument.startswith("-"):
            raise UsageError(f"unexpected argument {argument!r} (the model is given with -m)")
        useful = [known for known, (flag, _) in self._by_name.items() if flag.field]
        near = difflib.get_close_matches(name, useful, 1) or difflib.get_close_matches(name, self._by_name, 1)
        raise UsageError(f"unknown flag {name}" + (f", did you mean {near[0]}?" if near else ""))

    @staticmethod
    def _swallowed(flag: Flag, given: str, arguments: list[str]) -> int:
        # ik_llama.cpp writes `--lora-scaled FILE SCALE` where llama.cpp writes `FILE:SCALE`
        if flag.extra >= 0:
            return flag.extra
        return int(
            bool(arguments) and ":" not in given and arguments[0].lstrip("-+").replace(".", "").isdigit()
        )

    @staticmethod
    def _convert(name: str, read: Callable[[str], Any], given: str) -> Any:
        try:
            return read(given)
        except ValueError as error:
            raise UsageError(f"{name}: {error}, got {given!r}") from None

    @staticmethod
    def _store(
        flag: Flag, value: Any, given: str, name: str, values: dict[str, Any], warnings: list[str]
    ) -> None:
        if flag.field:
            values[flag.field] = (*values.get(flag.field, ()), value) if flag.repeat else value
        if flag.note and given.lower() not in flag.neutral:
            warnings.append(f"{name} has no effect: {flag.note}")


def help_text(table: Sequence[Flag], width: int = 110) -> str:
    """The flags that have an effect, then the names of those that are only accepted."""
    lines = []
    for flag in table:
        if not flag.field:
            continue
        left = ", ".join((*flag.names, *flag.off))
        if flag.value is not None:
            left += f" {flag.value.metavar}"
        shown = "" if flag.default in (None, (), "", False, True) else f" (default: {flag.default})"
        env = f" (env: {flag.env})" if flag.env else ""
        body = textwrap.wrap(f"{flag.help}{shown}{env}", width - 36)
        first = f"{left:<34}  " if len(left) <= 34 else f"{left}\n{'':36}"
        lines.append(first + f"\n{'':36}".join(body))
    accepted = ", ".join(sorted(flag.name for flag in table if not flag.field))
    lines += ["", "accepted for compatibility, without an effect:"]
    lines += textwrap.wrap(
        accepted, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    return "\n".join(lines)
