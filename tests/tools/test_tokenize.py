"""`emberd tokenize` prints the ids of a file's bytes."""

import argparse
import io
import json
import sys
from pathlib import Path

import pytest

from runtime.errors import RuntimeFault
from tests.runtime.tokenizers.models import vocabulary
from tests.runtime.tokenizers.vocabularies import cases, vocabulary_path
from tools import tokenize


def run(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    tokenize.add_arguments(parser)
    return tokenize.run(parser.parse_args(list(map(str, arguments))))


def ids(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[int]:
    assert run(*arguments, "--json") == 0
    found: list[int] = json.loads(capsys.readouterr().out)["tokens"]
    return found


def test_flags_choose_between_the_four_expected_lists(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, file = vocabulary_path("llama-spm"), tmp_path / "text"
    for case in cases("llama-spm")[::7]:
        file.write_bytes(case.data)
        base = ("-m", path, "--file", file)
        assert ids(capsys, *base, "--no-special") == case.plain
        assert ids(capsys, *base, "--no-special", "--parse-special") == case.parsed
        assert ids(capsys, *base) == case.plain_added
        assert ids(capsys, *base, "--parse-special") == case.parsed_added


def test_standard_input_and_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = vocabulary("gpt2", ["a", "\u00c3", "\u00a9"], pre="gpt-2").write(tmp_path / "v.gguf")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("a\u00e9".encode())))
    assert run("-m", model, "-f", "-") == 0
    assert capsys.readouterr().out == "      0 -> 'a'\n      1 -> '\\\\xc3'\n      2 -> '\\\\xa9'\n"


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    model = vocabulary("gpt2", ["a"], pre="gpt-2").write(tmp_path / "v.gguf")
    with pytest.raises(RuntimeFault, match="nowhere: No such file"):
        run("-m", model, "--file", tmp_path / "nowhere")
