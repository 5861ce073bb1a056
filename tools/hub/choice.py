"""Which file of a repository is meant: llama.cpp's rules, as pure functions of the names."""

import re
from collections.abc import Iterable, Sequence

from tools.hub.names import is_later_shard, without_shard

DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
_NOT_MODELS_ANY_CASE = ("mmproj", "imatrix")
_NOT_MODELS = ("mtp-", "eagle3-", "dflash-", "dspark-")
_TAG = re.compile(r"[-.]([A-Za-z0-9_]+)$")


def is_model(path: str) -> bool:
    """Whether a file can be served by itself: a GGUF, no projector, importance matrix or draft head."""
    name = path.rpartition("/")[2]
    lowered = name.lower()
    return (
        lowered.endswith(".gguf")
        and not any(word in lowered for word in _NOT_MODELS_ANY_CASE)
        and not any(word in name for word in _NOT_MODELS)
    )


def choose(paths: Iterable[str], quant: str = "") -> str | None:
    """The model of the quant, else (none given) Q4_K_M, else Q8_0, else the first one; None without any.

    Names are compared without case. Of a split model it is the first shard. A name where the quant stands
    alone goes before one where it ends a longer word: ``F16`` means ``BF16`` only where there is no other.
    """
    candidates = [path for path in paths if is_model(path) and not is_later_shard(path)]
    for tag in (quant,) if quant else DEFAULT_QUANTS:
        for before in ("(?:^|[-./_])", ""):
            pattern = re.compile(f"{before}{re.escape(tag)}[-./]", re.IGNORECASE)
            for path in candidates:
                if pattern.search(path):
                    return path
    return candidates[0] if candidates and not quant else None


def quants(paths: Sequence[str]) -> list[str]:
    """What can be asked for: the quant in each model's name, or the path of one that has none."""
    found = []
    for path in paths:
        if is_model(path) and not is_later_shard(path):
            match = _TAG.search(without_shard(path))
            found.append(match[1].upper() if match else path)
    return list(dict.fromkeys(found))
