"""Which emberd this is, in the forms that clients ask for."""

from importlib.metadata import PackageNotFoundError, version


def _version() -> str:
    try:
        return version("emberd")
    except PackageNotFoundError:
        return "0.0.0"


VERSION = _version()
_major, _minor, _patch = (*VERSION.split("."), "0", "0")[:3]

BUILD = f"b{int(_major) * 10000 + int(_minor) * 100 + int(''.join(filter(str.isdigit, _patch)) or 0)}-emberd"
"""llama.cpp's clients expect a fingerprint of the form ``b<number>-<text>``."""
