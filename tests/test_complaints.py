"""docs/complaints.md answers each complaint with a test that exists, or in words."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| (\d+) \|(.+)\|(.+)\|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
N_COMPLAINTS = 36


def test_every_complaint_is_answered_by_a_test_that_exists_or_in_words() -> None:
    rows = ROW.findall((ROOT / "docs" / "complaints.md").read_text(encoding="utf-8"))
    assert [int(number) for number, _, _ in rows] == list(range(1, N_COMPLAINTS + 1))
    for number, _, answer in rows:
        named = TEST.findall(answer)
        assert named or len(answer.split()) > 5, f"complaint {number} has no answer"
        for path, name in named:
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
            assert name in defined, f"complaint {number}: {path} has no {name}"
