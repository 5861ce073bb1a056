"""``--override-kv KEY=TYPE:VALUE[,...]``: metadata that the user replaces."""

import re
from collections.abc import Sequence

from runtime.errors import ModelError
from runtime.gguf.cursor import MetadataValue, Scalar

_NEXT = re.compile(r",(?=[^=,]+=(?:int|float|bool|str):)")


def parse_override(text: str) -> tuple[str, Scalar]:
    """Key and value of one override; types are int, float, bool and str."""
    key, equals, rest = text.partition("=")
    kind, colon, value = rest.partition(":")
    if not key or not equals or not colon:
        raise ModelError(f"override {text!r} is not of the form KEY=TYPE:VALUE")
    match kind:
        case "str":
            return key, value
        case "bool" if value in ("true", "false"):
            return key, value == "true"
        case "int" | "float":
            try:
                return key, int(value, 0) if kind == "int" else float(value)
            except ValueError:
                pass
        case "bool":
            pass
        case _:
            raise ModelError(f"override {text!r} has the unknown type {kind!r} (int, float, bool, str)")
    raise ModelError(f"override {text!r}: {value!r} is not a {kind}")


def apply_overrides(metadata: dict[str, MetadataValue], overrides: Sequence[str]) -> None:
    """Replace or add keys; a value of another kind than the file's would only fail later and is refused.

    Each element of `overrides` may hold several, separated by commas. A key that begins with a dot is one of
    the file's architecture: ``.rope.freq_base`` for whatever model it is.
    """
    for text in (one for several in overrides for one in _NEXT.split(several)):
        key, value = parse_override(text)
        if key.startswith("."):
            key = f"{metadata.get('general.architecture', '')}{key}"
        old = metadata.get(key)
        if isinstance(old, (bool, str, int, float)) and type(old) is not type(value):
            raise ModelError(f"override {text!r}: the file's {key} is of type {type(old).__name__}")
        metadata[key] = value
