"""Tiny models with other tensors or keys than the reference's."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from tests.runtime.evaluation import arch


def rewritten(
    name: str, out: Path, change: Callable[[str, np.ndarray], np.ndarray | None], *,
    keys: Mapping[str, int | list[bool]] | None = None, more: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Write the model with changed tensors (None: without them), others or more keys, more tensors.

    Returns all tensors in float64, in numpy's order of dims.
    """
    keys, more = keys or {}, more or {}
    reader = GGUFReader(arch(name))
    writer = GGUFWriter(out, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture", *keys)):
            writer.add_key_value(field.name, field.contents(), *[*field.types, None][:2])
    for key, value in keys.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            kind = GGUFValueType.BOOL if isinstance(value, bool) else GGUFValueType.UINT32
            writer.add_key_value(key, value, kind)
    tensors = {}
    for tensor in reader.tensors:
        data = change(tensor.name, np.array(tensor.data))
        if data is not None:
            tensors[tensor.name] = np.ascontiguousarray(data)
    for tensor_name, data in (tensors | dict(more)).items():
        writer.add_tensor(tensor_name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {tensor_name: data.astype(float) for tensor_name, data in tensors.items()}
