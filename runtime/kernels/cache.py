"""Where compiled kernels are kept between runs.

numba's disk cache watches only the file of each entry point, while a kernel is built from many: an edit
to `simd.py` would silently run old code. So the directory's name is a digest of everything that is
compiled in. CPU name and features are part of numba's own key.
"""

import atexit
import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import llvmlite
import numba
from platformdirs import user_cache_path

_RUNTIME = Path(__file__).resolve().parents[1]
_ALSO_COMPILED_IN = ("team.py", "memory/layout.py")
_KEPT = 3


def source_digest() -> str:
    """Digest of all kernel sources, of the constants they import, and of the compiler's versions."""
    digest = hashlib.blake2b(digest_size=12)
    digest.update(f"{numba.__version__} {llvmlite.__version__}".encode())
    sources = [
        *sorted((_RUNTIME / "kernels").rglob("*.py")),
        *(_RUNTIME / name for name in _ALSO_COMPILED_IN),
    ]
    for path in sources:
        if path.exists():
            digest.update(path.relative_to(_RUNTIME).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def configure() -> Path:
    """Set numba's options, and point it at this version's cache directory, which is returned.

    `EMBERD_KERNEL_CACHE` names another root than the user's cache directory. Where the root cannot be
    written, kernels are compiled into a temporary directory that is removed at exit.
    """
    root = Path(os.environ.get("EMBERD_KERNEL_CACHE") or user_cache_path("emberd") / "kernels")
    try:
        folder = root / source_digest()
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        folder.touch()
        _remove_old(root, keep=folder)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="emberd-kernels-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    numba.config.CACHE_DIR = str(folder)
    # kernels are explicit SIMD: what LLVM would add costs a third of the compile time and gains nothing
    numba.config.LOOP_VECTORIZE = 0
    numba.config.OPT = type(numba.config.OPT)(2)
    return folder


def _remove_old(root: Path, keep: Path) -> None:
    """Leave the newest versions: an older daemon may still run, a downgrade should start warm."""
    dated = []
    for path in root.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process may be tidying as well
            if path.is_dir() and path != keep:
                dated.append((path.stat().st_mtime, path))
    dated.sort(reverse=True)
    for _, path in dated[_KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
