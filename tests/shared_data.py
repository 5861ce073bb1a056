"""Where the oracle data shared with the other projects lives, when it is there."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("EMBERD_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def shared(relative: str) -> Path:
    """Path of a file or folder of the shared oracle data.

    Where it does not exist the calling test is skipped, or fails when ``CI=true``.
    """
    path = SHARED / relative
    if path.exists():
        return path
    message = f"oracle data {relative} not found under {SHARED}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
