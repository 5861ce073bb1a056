"""UTF-8 as llama.cpp reads it: lenient, and never failing."""

import codecs

_REPLACEMENT = "\ufffd"


def sequence_at(data: bytes, start: int) -> tuple[int, int]:
    """(length, code point) of the well-formed pattern at `start`, or length 0 where there is none.

    Overlong forms, surrogates and code points beyond U+10FFFF are well-formed in this sense.
    """
    first = data[start]
    if first < 0x80:
        return 1, first
    length = 2 if first & 0xE0 == 0xC0 else 3 if first & 0xF0 == 0xE0 else 4 if first & 0xF8 == 0xF0 else 0
    tail = data[start + 1 : start + length]
    if length == 0 or len(tail) != length - 1 or any(byte & 0xC0 != 0x80 for byte in tail):
        return 0, 0
    code = first & (0x7F >> length)
    for byte in tail:
        code = code << 6 | byte & 0x3F
    return length, code


def _lenient(error: UnicodeError) -> tuple[str, int]:
    """A step over what strict decoding refuses: a whole pattern, or one byte as U+FFFD.

    Code points beyond U+10FFFF, where llama.cpp gives up, count as single bytes.
    """
    if not isinstance(error, UnicodeDecodeError):
        raise error
    length, code = sequence_at(error.object, error.start)
    if length == 0 or code > 0x10FFFF:
        return _REPLACEMENT, error.start + 1
    return chr(code), error.start + length


codecs.register_error("emberd.lenient", _lenient)


def decode(data: bytes) -> str:
    """Code points of `data`; lone surrogates may be among them."""
    return data.decode("utf-8", "emberd.lenient")


def encode(text: str) -> bytes:
    """UTF-8 of `text`, lone surrogates included."""
    return text.encode("utf-8", "surrogatepass")
