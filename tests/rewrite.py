"""A GGUF file again, with other metadata or other tensors."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import gguf
import numpy as np

Value = int | float | str
_TYPES = {int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32, str: gguf.GGUFValueType.STRING}


def rewrite(
    source: Path,
    target: Path,
    metadata: Mapping[str, Value | None],
    tensors: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Path:
    """Write `source` to `target`: keys with None left out, others set, `tensors` [n_out, n_in] put in."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture" and name not in metadata:
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    for name, value in metadata.items():
        if value is not None:
            writer.add_key_value(name, value, _TYPES[type(value)])
    for tensor in reader.tensors:
        if tensor.name not in tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
