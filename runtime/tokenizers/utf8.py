"""UTF-8 as llama.cpp reads it: lenient, and never failing."""

import codecs

_REPLACEMENT = "\ufffd"


def _overlong_or_surrogate(error: UnicodeError) -> tuple[str, int]:
    """A step over what strict decoding refuses.

    A well-formed pattern of bytes counts whatever code point it spells (overlong forms and surrogates too);
    any other byte is one U+FFFD. So are those of code points beyond U+10FFFF, where llama.cpp gives up.
    """
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, start = error.object, error.start
    first = data[start]
    length = 2 if first & 0xE0 == 0xC0 else 3 if first & 0xF0 == 0xE0 else 4 if first & 0xF8 == 0xF0 else 0
    tail = data[start + 1 : start + length]
    if length == 0 or len(tail) != length - 1 or any(byte & 0xC0 != 0x80 for byte in tail):
        return _REPLACEMENT, start + 1
    code = first & (0x7F >> length)
    for byte in tail:
        code = code << 6 | byte & 0x3F
    if code > 0x10FFFF:
        return _REPLACEMENT, start + 1
    return chr(code), start + length


codecs.register_error("emberd.lenient", _overlong_or_surrogate)


def decode(data: bytes) -> str:
    """Code points of `data`; lone surrogates may be among them."""
    return data.decode("utf-8", "emberd.lenient")


def encode(text: str) -> bytes:
    """UTF-8 of `text`, lone surrogates included."""
    return text.encode("utf-8", "surrogatepass")
