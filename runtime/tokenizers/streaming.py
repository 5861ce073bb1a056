"""Text of a generation as it grows: whole characters only."""

import codecs

from runtime.tokenizers.base import Tokenizer


class StreamDetokenizer:
    """Turns ids into text one by one; an incomplete character is held back until its last byte is there.

    The pieces joined are the bytes of all tokens as UTF-8, with invalid sequences replaced.
    """

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, id: int) -> str:
        """The text that the token completes, perhaps none."""
        return self._decoder.decode(self._tokenizer.token_bytes(id, special=self._special))

    def flush(self) -> str:
        """What was held back, replaced by U+FFFD: the sequence is over."""
        return self._decoder.decode(b"", final=True)
