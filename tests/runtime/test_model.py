"""From a file to a runner: what may not happen to the file meanwhile."""

import gc
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


@pytest.mark.parametrize(
    ("repack", "override"),
    [(True, ""), (False, "llama.attention.head_count=int:7"), (True, "llama.context_length=int:0")],
)
def test_of_a_refused_file_nothing_stays_mapped(tmp_path: Path, repack: bool, override: str) -> None:
    """Without waiting for the garbage collector: the next try may need the address space."""
    path = tmp_path / "refused.gguf"
    shutil.copyfile(LLAMA, path)

    def interrupt(stage: str, share: float) -> None:
        if not override and share > 0.5:
            raise ModelError("interrupted")

    options = ModelOptions(n_threads=1, repack=repack, overrides=(override,) if override else ())
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(ModelError):
            load_model(path, options, interrupt)
        assert str(path) not in Path("/proc/self/maps").read_text()
    finally:
        gc.enable()
