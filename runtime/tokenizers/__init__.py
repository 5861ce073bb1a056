"""Tokenizers: text to the ids that the model was trained on, exactly as llama.cpp computes them, and back."""

from runtime.tokenizers.base import Flags, Tokenizer
from runtime.tokenizers.loading import load_tokenizer
from runtime.tokenizers.streaming import StreamDetokenizer
from runtime.tokenizers.vocabulary import TokenType

__all__ = ["Flags", "StreamDetokenizer", "TokenType", "Tokenizer", "load_tokenizer"]
