"""Names of saves: what llama-server allows for slot files, and nothing that could be a path."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import InvalidName, checked_name

PATHS = ["", ".", "..", "...", "a..b", "../x", "a/b", "a\\b", "/etc/passwd", "C:\\x"]
RESERVED = ["a:b", "a*", "a?", 'a"b', "a<b", "a>b", "a|b", " a", "a ", "a."]
INVISIBLE = ["a\n", "a\0b", "\x1b[31m", "a\x7f", "a\x85", "\ud800", "a\ufffd", "\ufeffa"]
LOOK_ALIKES = ["a\uff0ea", "a\u2215b", "a\u2216b"]
TOO_LONG = ["x" * 256, "\u00e4" * 128]
HOSTILE = PATHS + RESERVED + INVISIBLE + LOOK_ALIKES + TOO_LONG
ORDINARY = ["a", "my save.bin", "x" * 255, "\u00e4\u00f6\u00fc", "\u65e5\u672c", "-rf", "a.b.c", "~"]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_hostile_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        checked_name(name)


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_names_are_kept(name: str) -> None:
    assert checked_name(name) == name


def test_two_spellings_of_one_name_are_one_name() -> None:
    assert checked_name("a\u0308") == checked_name("\u00e4")


@given(st.text(max_size=300))
def test_what_passes_is_one_harmless_path_component(name: str) -> None:
    try:
        found = checked_name(name)
    except InvalidName:
        return
    assert found == unicodedata.normalize("NFC", name)
    assert found not in (".", "..") and "/" not in found and "\0" not in found
    assert 0 < len(found.encode()) <= 255
