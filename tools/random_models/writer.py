"""Writes a GGUF of random tensors: bytes are drawn directly, in blocks whose values have a chosen spread."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType

N_VOCAB = 32768
_SUPER = 256
_Q8 = 32
# Standard deviations of uniform codes of 8 and of 4 bits; codes of scales and minima that centre the latter.
_SPREAD_Q8 = 73.9
_SPREAD_Q4 = 4.61
_CODE = 32
_PACKED_CODES = (160,) * 8 + (0,) * 4
_CENTRE = 7.5


class ModelWriter:
    """Collects the tensors and keys of one architecture. `n_in` is the length of a matrix's rows."""

    def __init__(self, arch: str) -> None:
        self._file = GGUFWriter("", arch)
        self._arch = arch
        self._rng = np.random.default_rng(1)
        self._file.add_name(f"random {arch}")
        self._file.add_file_type(LlamaFileType.MOSTLY_Q4_K_M)
        self._add_tokenizer()

    def sizes(self, **values: int | float | bool | str | list[int] | list[float]) -> None:
        """Keys of the architecture; ``__`` in a name stands for its dot."""
        for name, value in values.items():
            key = f"{self._arch}.{name.replace('__', '.')}"
            match value:
                case bool():
                    self._file.add_bool(key, value)
                case int():
                    self._file.add_uint32(key, value)
                case float():
                    self._file.add_float32(key, value)
                case str():
                    self._file.add_string(key, value)
                case list():
                    self._file.add_array(key, value)

    def embeddings(self, n_embd: int) -> None:
        """The embedding, the last norm and a head of its own."""
        self.matrix("token_embd", n_embd, N_VOCAB)
        self.ones("output_norm", n_embd)
        self.matrix("output", n_embd, N_VOCAB)

    def matrix(self, name: str, n_in: int, n_out: int, *stack: int) -> None:
        """[*stack, n_out, n_in] of Q4_K, or of Q8_0 where rows are not whole blocks of 256."""
        draw, kind = (self._q4_k, "Q4_K") if n_in % _SUPER == 0 else (self._q8_0, "Q8_0")
        data = draw(n_in, n_out * int(np.prod(stack, dtype=np.int64)))
        shape = (*stack, n_out, data.shape[-1])
        self._file.add_tensor(f"{name}.weight", data.reshape(shape), raw_dtype=GGMLQuantizationType[kind])

    def floats(self, name: str, n_in: int, *shape: int, half: bool = False, spread: float = 0.0) -> None:
        """[*shape, n_in] of F32 or F16, with the `spread` of a matrix's values unless another is given."""
        values = self._rng.standard_normal((*shape, n_in), np.float32) * np.float32(spread or n_in**-0.5)
        self._file.add_tensor(f"{name}.weight", values.astype(np.float16) if half else values)

    def ones(self, name: str, *shape: int) -> None:
        self._file.add_tensor(f"{name}.weight", np.ones(shape, np.float32))

    def values(self, name: str, low: float, high: float, *shape: int) -> None:
        """F32 between `low` and `high`; here `name` is the tensor's whole one."""
        self._file.add_tensor(name, self._rng.uniform(low, high, shape).astype(np.float32))

    def ids(self, name: str, n: int, rows: int, width: int) -> None:
        """[rows, width] of I32, each row of different ids below `n`."""
        chosen = np.argsort(self._rng.random((rows, n)), axis=1)[:, :width]
        self._file.add_tensor(f"{name}.weight", np.ascontiguousarray(chosen, np.int32))

    def write(self, path: Path) -> None:
        self._file.write_header_to_file(path)
        self._file.write_kv_data_to_file()
        self._file.write_tensors_to_file()
        self._file.close()

    def _q8_0(self, n_in: int, n_rows: int) -> npt.NDArray[np.uint8]:
        blocks = np.empty((n_rows, n_in // _Q8, 2 + _Q8), np.uint8)
        scale = np.float16(n_in**-0.5 / _SPREAD_Q8)
        blocks[..., :2] = np.frombuffer(scale.tobytes(), np.uint8)
        blocks[..., 2:] = self._rng.integers(0, 256, (*blocks.shape[:2], _Q8), np.uint8)
        return blocks.reshape(n_rows, -1)

    def _q4_k(self, n_in: int, n_rows: int) -> npt.NDArray[np.uint8]:
        blocks = np.empty((n_rows, n_in // _SUPER, 16 + _SUPER // 2), np.uint8)
        scale = n_in**-0.5 / (_SPREAD_Q4 * _CODE)
        halves = np.array([scale, _CENTRE * scale], np.float16)
        blocks[..., :4] = np.frombuffer(halves.tobytes(), np.uint8)
        blocks[..., 4:16] = _PACKED_CODES
        blocks[..., 16:] = self._rng.integers(0, 256, (*blocks.shape[:2], _SUPER // 2), np.uint8)
        return blocks.reshape(n_rows, -1)

    def _add_tokenizer(self) -> None:
        """Every byte is a token, two of them make one more; the rest of the vocabulary is unused."""
        bytes_ = [chr(b) for b in (*range(33, 127), *range(161, 173), *range(174, 256))]
        bytes_ += [chr(256 + i) for i in range(256 - len(bytes_))]
        tokens = [*bytes_, "Ġt", "<|end|>"]
        tokens += [f"<unused{i}>" for i in range(N_VOCAB - len(tokens))]
        types = [TokenType.NORMAL] * 257 + [TokenType.CONTROL] + [TokenType.UNUSED] * (N_VOCAB - 258)
        self._file.add_tokenizer_model("gpt2")
        self._file.add_tokenizer_pre("gpt-2")
        self._file.add_token_list(tokens)
        self._file.add_token_types(types)
        self._file.add_token_merges(["Ġ t"])
        self._file.add_eos_token_id(257)
        self._file.add_bos_token_id(257)
        self._file.add_add_bos_token(False)
