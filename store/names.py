"""The rule for names of saves: they are keys of the store and also become file names on export."""

import unicodedata

from store.errors import InvalidName

MAX_BYTES = 255
_RESERVED = frozenset('/\\:*?"<>|')
_LOOK_ALIKES = frozenset("\uff0e\u2215\u2216\ufffd\ufeff")


def checked_name(name: str) -> str:
    """Return `name` in NFC, or raise `InvalidName`.

    The rule is llama-server's for slot file names, so that a name which works there works here: 1 to 255
    bytes of UTF-8, no control characters, none of ``/ \\ : * ? " < > |`` nor characters that pass for dots
    and slashes, no leading or trailing space, no trailing dot, no ``..``.
    """
    try:
        encoded = unicodedata.normalize("NFC", name).encode()
    except UnicodeEncodeError:
        raise InvalidName("a name must be valid Unicode") from None
    name = encoded.decode()
    if not 0 < len(encoded) <= MAX_BYTES:
        raise InvalidName(f"a name must have 1 to {MAX_BYTES} bytes, this one has {len(encoded)}")
    for character in name:
        if unicodedata.category(character) == "Cc" or character in _RESERVED or character in _LOOK_ALIKES:
            raise InvalidName(f"a name must not contain {character!r}")
    if name[0] == " " or name[-1] == " ":
        raise InvalidName("a name must not start or end with a space")
    if ".." in name or name[-1] == ".":
        raise InvalidName("a name must not end with a dot or contain two in a row")
    return name
