"""DeepSeek V2 and V3, and what is built like them: latent attention, dense layers first, then experts.

The lite form has no low-rank queries. Experts of a file that does not say are gated by softmax.
"""

from runtime.errors import UnsupportedModel
from runtime.models import blocks, mla
from runtime.models.hyper import Decoder, n_nextn
from runtime.models.moe import Experts, moe
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`. Errors: UnsupportedModel for queries that grow with their position."""
    if p.file.get_float(p.file.arch_key("attention.temperature_scale"), default=0.0):
        raise UnsupportedModel(f"{p.file.path.name}: temperature of latent queries is not supported")
    d = Decoder.read(p.file, n_extra=n_nextn(p.file))
    m = mla.Latent.read(p.file, d.heads.n)
    experts = Experts.read(p.file, d, normalise=False) if Experts.any_in(p.file) else None
    rotation, scale = mla.rotation(p, m, tenths=True)
    group = p.latent_group("latent")
    x = p.embedding("token_embd", d.n_embd)
    for layer in d.layers:
        mla.attention(p, d, m, layer, x, group, rotation, scale)
        moe(p, d, experts, layer, x)
    blocks.readout(p, d, x)
