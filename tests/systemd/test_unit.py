"""The service unit, checked by systemd's own tool."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from daemon.options import OPTIONS

SYSTEMD = Path(__file__).resolve().parents[2] / "systemd"
UNIT = SYSTEMD / "emberd.service"


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        message = "systemd-analyze not found (Debian: apt install systemd)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_the_unit_has_no_mistakes(tmp_path: Path) -> None:
    # The tool also looks for the program: one that is there stands in for it.
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text()))
    checked = analyze("verify", "--man=no", str(unit))
    complaints = [line for line in checked.stderr.splitlines() if UNIT.name in line]
    assert complaints == []


def test_the_unit_exposes_little() -> None:
    checked = analyze("security", "--offline=yes", "--threshold=30", str(UNIT))
    assert checked.returncode == 0, checked.stdout.splitlines()[-1]


def test_kernels_may_be_compiled_in_the_service() -> None:
    settings = [line for line in UNIT.read_text().splitlines() if not line.startswith("#")]
    assert not any(line.startswith("MemoryDenyWriteExecute") for line in settings)


def test_every_variable_of_the_environment_file_is_one_of_emberds() -> None:
    known = {flag.env for flag in OPTIONS if flag.env}
    named = set(re.findall(r"(?m)^#?([A-Z_]+)=", (SYSTEMD / "emberd.env").read_text()))
    assert named <= known
