"""Getters give what was asked for, or say precisely why not; overrides replace what the file says."""

from pathlib import Path

import pytest

from runtime.errors import ModelError
from runtime.gguf import ModelFile, open_model
from runtime.gguf.overrides import parse_override
from tests.runtime.gguf.writer import F32, STRING, U32, File, tiny_model


@pytest.fixture
def model(tmp_path: Path) -> ModelFile:
    file = tiny_model().put("nan", F32, float("nan"))
    return open_model(file.write(tmp_path / "m.gguf"))


def test_architecture_keys(model: ModelFile, tmp_path: Path) -> None:
    assert model.get_int(model.arch_key("block_count")) == 2
    nameless = open_model(File().put("a", U32, 1).write(tmp_path / "n.gguf"))
    with pytest.raises(ModelError, match=r"the model file has no general\.architecture"):
        _ = nameless.architecture
    odd = open_model(File().put("general.architecture", STRING, "a\nb").write(tmp_path / "o.gguf"))
    with pytest.raises(ModelError, match=r"general\.architecture is not a name: 'a\\nb'"):
        _ = odd.architecture


def test_defaults_stand_in_for_missing_keys_only(model: ModelFile) -> None:
    assert model.get_int("missing", 5) == 5
    assert model.get_int("missing", None) is None
    assert model.get_float("missing", 1.5) == 1.5
    assert model.get_ints("missing", 2, (1, 2)) == (1, 2)
    with pytest.raises(ModelError, match="the model file has no missing"):
        model.get_int("missing")
    with pytest.raises(ModelError, match=r"general\.name should be an integer, but is str 'tiny'"):
        model.get_int("general.name", 5)


def test_integers_are_bounded(model: ModelFile) -> None:
    with pytest.raises(ModelError, match=r"test\.scalar1 is -3, outside of 0 to"):
        model.get_int("test.scalar1")
    assert model.get_int("test.scalar1", low=-10) == -3
    with pytest.raises(ModelError, match="outside of 0 to 100"):
        model.get_int("test.scalar0", high=100)


def test_kinds_are_not_mixed(model: ModelFile) -> None:
    assert model.get_float("test.scalar4") == 7.0
    assert model.get_bool("test.bool") is True
    assert model.get_str("general.name") == "tiny"
    for wrong in (
        lambda: model.get_int("test.bool"),
        lambda: model.get_int("test.f32"),
        lambda: model.get_bool("test.scalar4"),
        lambda: model.get_float("test.bool"),
        lambda: model.get_str("test.names"),
        lambda: model.get_float("nan"),
        lambda: model.get_bools("test.floats", 2),
    ):
        with pytest.raises(ModelError):
            wrong()


def test_one_value_per_layer_comes_from_an_array_or_a_scalar(model: ModelFile) -> None:
    assert model.get_ints("llama.attention.head_count_kv", 2) == (2, 4)
    assert model.get_ints("test.scalar4", 3) == (7, 7, 7)
    assert model.get_floats("test.floats", 2) == (1.0, 2.5)
    assert model.get_bools("test.bools", 2) == (True, False)
    with pytest.raises(ModelError, match="head_count_kv has 2 elements, expected 3"):
        model.get_ints("llama.attention.head_count_kv", 3)
    with pytest.raises(ModelError, match=r"test\.names should be an integer, but is an array of 5 strings"):
        model.get_ints("test.names", 5)


def test_overrides_replace_and_add(tmp_path: Path) -> None:
    path = tiny_model().write(tmp_path / "m.gguf")
    given = ["llama.block_count=int:9,test.f32=float:2", "general.name=str:a=b:c,d", "test.bool=bool:false"]
    model = open_model(path, overrides=[*given, "new.key=int:-0x10", "llama.attention.head_count_kv=int:8"])
    assert model.get_int("llama.block_count") == 9
    assert model.get_float("test.f32") == 2.0
    assert model.get_str("general.name") == "a=b:c,d"
    assert model.get_bool("test.bool") is False
    assert model.get_int("new.key", low=-100) == -16
    assert model.get_ints("llama.attention.head_count_kv", 2) == (8, 8)


def test_an_override_can_name_the_architecture_with_a_dot(tmp_path: Path) -> None:
    model = open_model(tiny_model().write(tmp_path / "m.gguf"), overrides=[".rope.freq_base=float:5"])
    assert model.get_float("llama.rope.freq_base") == 5.0


@pytest.mark.parametrize(
    "text",
    ["", "a", "a=int", "=int:1", "a=int:x", "a=float:y", "a=bool:1", "a=list:1", "a=int:", "a=int:1.5"],
)
def test_malformed_overrides_are_refused(text: str) -> None:
    with pytest.raises(ModelError, match="override"):
        parse_override(text)


def test_an_override_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = File().put("k", STRING, "v").write(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="override 'k=int:1': the file's k is of type str"):
        open_model(path, overrides=["k=int:1"])
