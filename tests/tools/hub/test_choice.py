"""Which file `user/repo[:quant]` means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.errors import FetchError
from tools.hub.choice import choose, is_model, quants
from tools.hub.names import is_safe_path, parse_reference, shards_of, shown

FLAT = (
    "README.md",
    "dflash-model-Q8_0.gguf",
    "mmproj-model-Q4_K_M.gguf",
    "model-BF16.gguf",
    "model-Q4_K_M.gguf",
    "model-Q8_0.gguf",
    "mtp-model-Q4_0.gguf",
)
SPLIT = (
    "Q3_K_M/model-Q3_K_M-00001-of-00003.gguf",
    "Q3_K_M/model-Q3_K_M-00002-of-00003.gguf",
    "Q3_K_M/model-Q3_K_M-00003-of-00003.gguf",
    "Q8_0/model-Q8_0-00001-of-00002.gguf",
    "Q8_0/model-Q8_0-00002-of-00002.gguf",
    "mmproj-model-f16.gguf",
)
UNSLOTH = ("mmproj-BF16.gguf", "model-UD-Q8_K_XL.gguf", "model-MTP-BF16.gguf")
VENDORS = ("BlackSheep-24B.Q8_0.gguf", "TheDrummer_Model-24B-v4.1-Q8_0.gguf")


@pytest.mark.parametrize(
    ("paths", "quant", "expected"),
    [
        (FLAT, "", "model-Q4_K_M.gguf"),
        (FLAT, "Q8_0", "model-Q8_0.gguf"),
        (FLAT, "q8_0", "model-Q8_0.gguf"),
        (FLAT, "bf16", "model-BF16.gguf"),
        (FLAT, "F16", "model-BF16.gguf"),
        (("model-BF16.gguf", "model-F16.gguf"), "f16", "model-F16.gguf"),
        (FLAT, "Q4_0", None),
        (FLAT, "Q4_K", None),
        (FLAT, ".*", None),
        (SPLIT, "", "Q8_0/model-Q8_0-00001-of-00002.gguf"),
        (SPLIT, "Q3_K_M", "Q3_K_M/model-Q3_K_M-00001-of-00003.gguf"),
        (SPLIT[1:], "Q3_K_M", None),
        (("Q2_K/model-00001-of-00002.gguf", "Q2_K/model-00002-of-00002.gguf"), "Q2_K",
         "Q2_K/model-00001-of-00002.gguf"),
        (UNSLOTH, "", "model-UD-Q8_K_XL.gguf"),
        (UNSLOTH, "UD-Q8_K_XL", "model-UD-Q8_K_XL.gguf"),
        (UNSLOTH, "Q8_K_XL", "model-UD-Q8_K_XL.gguf"),
        (VENDORS, "Q8_0", "BlackSheep-24B.Q8_0.gguf"),
        (("a-IQ1_S.GGUF", "b.gguf"), "iq1_s", "a-IQ1_S.GGUF"),
        (("model.imatrix.gguf", "readme.md", "model.safetensors"), "", None),
        ((), "", None),
    ],
)  # fmt: skip
def test_the_quant_asked_for_else_q4_k_m_else_q8_0_else_the_first(
    paths: tuple[str, ...], quant: str, expected: str | None
) -> None:
    assert choose(paths, quant) == expected


def test_projectors_matrices_and_draft_heads_are_no_models() -> None:
    names = (
        "MMPROJ-a.gguf",
        "a/mmproj.gguf",
        "x-imatrix.gguf",
        "mtp-a.gguf",
        "eagle3-a.gguf",
        "dspark-a.gguf",
    )
    assert not any(is_model(name) for name in (*names, "a.bin", "mtp-folder"))
    assert is_model("mmproj/a.gguf")


def test_what_there_is_is_told_by_quant() -> None:
    assert quants(SPLIT) == ["Q3_K_M", "Q8_0"]
    assert quants(("model.q4_0.gguf", "folder/plain.gguf")) == ["Q4_0", "folder/plain.gguf"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ggml-org/gemma-3-1b-it-GGUF", ("ggml-org/gemma-3-1b-it-GGUF", "")),
        ("user/repo:UD-Q4_K_XL", ("user/repo", "UD-Q4_K_XL")),
        ("u/_x.y", ("u/_x.y", "")),
    ],
)
def test_a_reference_is_a_repository_and_a_quant(text: str, expected: tuple[str, str]) -> None:
    assert parse_reference(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "repo", "user/", "/repo", "a/b/c", "../b", "a/..", "a/b..c", "a/b:", "a/b:c:d", "a b/c", "a/b:Q 4",
     "a/b?x", "a/b#x", "a%2f/b", "_url/x", "a/b\n", "a/" + "b" * 97],
)  # fmt: skip
def test_other_references_are_refused(text: str) -> None:
    with pytest.raises(FetchError, match="USER/REPO") as caught:
        parse_reference(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["a.gguf", "Q8_0/a-00001-of-00002.gguf", "with space.gguf", "modèle.gguf"])
def test_names_that_can_be_kept(path: str) -> None:
    assert is_safe_path(path)


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../a.gguf", "a/../../b.gguf", "a//b.gguf", "a/./b.gguf", "a/", ".a.gguf", "a/.git/b",
     "a\\b.gguf", "..\\a.gguf", "a\0.gguf", "a\n.gguf", "\x1b[2Ja.gguf", "\u202eggug.a", "a" * 201 + ".gguf",
     "/".join("a" * 17), "\ud800.gguf"],
)  # fmt: skip
def test_hostile_names_are_not_kept(path: str) -> None:
    assert not is_safe_path(path)


@given(st.text(max_size=40))
def test_a_safe_path_stays_in_its_folder(path: str) -> None:
    if is_safe_path(path):
        assert all(part not in ("", ".", "..") for part in path.split("/"))


def test_shards_come_together_whichever_is_named() -> None:
    assert shards_of(SPLIT[1]) == SPLIT[:3]
    assert shards_of("plain.gguf") == ("plain.gguf",)
    assert shards_of("a-00001-OF-00002.GGUF") == ("a-00001-OF-00002.GGUF", "a-00002-OF-00002.GGUF")


@pytest.mark.parametrize("path", ["a-00003-of-00002.gguf", "a-00000-of-00002.gguf", "a-00000-of-00000.gguf"])
def test_impossible_shard_numbers_are_refused(path: str) -> None:
    with pytest.raises(FetchError, match="no shard"):
        shards_of(path)


def test_foreign_text_is_made_fit_for_a_terminal() -> None:
    assert shown("a\x1b[31m\nb") == "a?[31m?b"
    assert len(shown("x" * 5000)) == 200
