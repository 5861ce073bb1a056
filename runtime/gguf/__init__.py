"""GGUF model files: opening, checking and reading them.

A file is untrusted input: every count, length, offset, shape and type is checked before it is used, and what
is wrong is a ModelError of one line that names the file and the key or tensor.
"""

from runtime.gguf.cursor import MetadataValue
from runtime.gguf.metadata import Metadata
from runtime.gguf.model_file import ModelFile, open_model
from runtime.gguf.parse import TensorInfo
from runtime.gguf.strings import StringArray
from runtime.gguf.types import GGMLType

__all__ = ["GGMLType", "Metadata", "MetadataValue", "ModelFile", "StringArray", "TensorInfo", "open_model"]
