"""From a file to a runner: what may not happen to the file meanwhile."""

import os
import shutil
from pathlib import Path

import pytest

from runtime.errors import ModelError
from runtime.model import ModelOptions, load_model

LLAMA = Path(__file__).resolve().parents[1] / "data" / "archs" / "llama.gguf"


@pytest.mark.parametrize("change", ["touched", "replaced", "removed"])
def test_a_file_that_changes_while_it_is_loaded_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "model.gguf"
    shutil.copyfile(LLAMA, path)

    def meddle(stage: str, share: float) -> None:
        if stage != "load" or not path.exists():
            return
        if change == "touched":
            os.utime(path, ns=(1, 1))
        elif change == "replaced":
            shutil.copyfile(LLAMA, tmp_path / "other")
            (tmp_path / "other").replace(path)
        else:
            path.unlink()

    with pytest.raises(ModelError, match="since it was opened"):
        load_model(path, ModelOptions(n_ctx=256, n_threads=1), meddle)
