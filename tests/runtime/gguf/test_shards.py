"""A split model is one model, and a wrong or missing shard is named."""

from pathlib import Path

import pytest

from runtime.errors import ModelError
from runtime.gguf import open_model
from tests.runtime.gguf.writer import I32, STRING, U16, File, Tensor


def write_split(folder: Path, count: int = 3) -> list[Path]:
    paths = []
    for number in range(count):
        file = File()
        if number == 0:
            file.put("general.architecture", STRING, "llama")
        file.put("split.no", U16, number).put("split.count", U16, count).put(
            "split.tensors.count", I32, count
        )
        file.tensors = [Tensor(f"t{number}", (2,), data=bytes([number] * 8))]
        paths.append(file.write(folder / f"big-{number + 1:05}-of-{count:05}.gguf"))
    return paths


def test_any_shard_opens_the_whole_model(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    for path in paths:
        model = open_model(path)
        assert model.architecture == "llama"
        assert model.shards == tuple(paths)
        assert model.path == paths[0]
        assert [model.tensor_bytes(f"t{i}")[0] for i in range(3)] == [0, 1, 2]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    paths[1].unlink()
    with pytest.raises(ModelError, match=r"big-00002-of-00003\.gguf: shard 2 of 3 is missing"):
        open_model(paths[0])
    model = open_model(paths[0], lenient=True)
    assert list(model.tensors) == ["t0", "t2"] and len(model.problems) == 1


def test_a_renamed_shard_is_refused(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    renamed = paths[0].rename(tmp_path / "big.gguf")
    with pytest.raises(ModelError, match="one of 3 shards, but it is not named like"):
        open_model(renamed)


def test_a_shard_beyond_the_last_is_refused(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    extra = tmp_path / "big-00004-of-00003.gguf"
    extra.write_bytes(paths[0].read_bytes())
    with pytest.raises(ModelError, match="one of 3 shards, but it is not named like"):
        open_model(extra)


def test_a_shard_of_another_model_is_refused(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(ModelError, match="not shard 3 of 3 of this model"):
        open_model(paths[0])


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    file = File().put("split.no", U16, 2).put("split.count", U16, 3)
    file.tensors = [Tensor("t1", (2,))]
    file.write(paths[2])
    with pytest.raises(ModelError, match=r"tensor t1 is also in big-00002-of-00003\.gguf"):
        open_model(paths[0])


def test_the_number_of_tensors_must_agree(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    file = File().put("split.no", U16, 2).put("split.count", U16, 3)
    file.write(paths[2])
    with pytest.raises(ModelError, match="the shards hold 2 tensors, expected 3"):
        open_model(paths[0])
