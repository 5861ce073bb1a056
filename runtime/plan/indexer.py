"""The lightning indexer as part of a plan: queries see the rows of keys that it selects."""

import numpy as np

from runtime.errors import ModelError, UnsupportedModel
from runtime.kernels import indexer as ix
from runtime.kernels import latent_rows as lr
from runtime.kernels.simd import LANES
from runtime.kernels.tape import SCRATCH
from runtime.memory.layout import BLOCK
from runtime.plan.builder import Plan
from runtime.plan.latent import Keys
from runtime.plan.values import Rows
from runtime.plan.weights import padded


def select(p: Plan, keys: Keys, index: Keys, q: Rows, weights: Rows, heads: int, top_k: int) -> None:
    """Each query sees only the `top_k` rows of `keys` whose rows of `index` score highest, if there are more.

    `q` has rows ``[heads][d]`` of index queries, `weights` one weight per head; a score is
    ``sum of weight * max(0, q . index row)``, so a positive factor of weights means nothing. Both sources
    have as many positions per row. To be called before `latent.attend`. Errors: ModelError for a count that
    makes no sense, UnsupportedModel for sizes beyond the kernels.
    """
    where, ratio = p.file.path.name, int(keys.words[lr.R_RATIO])
    assert q.width == heads * index.d and weights.width == heads and ratio == index.words[lr.R_RATIO]
    n_rows = -(-p.options.n_ctx // BLOCK) * BLOCK // ratio
    if not 1 <= top_k <= 1 << 24:
        raise ModelError(f"{where}: an indexer that selects {top_k} rows makes no sense")
    if top_k >= n_rows:
        return
    if ix.scratch_bytes(heads, index.d, top_k, n_rows) > SCRATCH or index.d % LANES:
        raise UnsupportedModel(
            f"{where}: an indexer of {heads} heads of {index.d} that selects {top_k} of {n_rows} rows"
            " is not supported"
        )
    p.families.add("latent-attention")
    keys.words[lr.R_TOP_K] = top_k
    keys.words[lr.R_LISTS] = p.area(f"lists of {top_k}", p.options.n_ubatch * 4 * top_k)
    ld_scores = 4 * padded(n_rows)
    words = p.arena.array((ix.I_WORDS,), np.int64, "indexer")
    words[:] = [
        q.address, q.ld, weights.address, weights.ld, heads, index.d, index.address, keys.address,
        p.area("index scores", p.options.max_runs * ld_scores), ld_scores,
    ]  # fmt: skip
    p.op(ix.index_scores, words.ctypes.data)
    p.op(ix.index_select, words.ctypes.data)


def share(keys: Keys, selected: Keys) -> None:
    """Queries see of `keys` the rows that were selected last, which was for `selected`."""
    keys.words[[lr.R_TOP_K, lr.R_LISTS]] = selected.words[[lr.R_TOP_K, lr.R_LISTS]]
