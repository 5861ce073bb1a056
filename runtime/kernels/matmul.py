"""Matrix products of packed weights and quantised activations, one op per weight type."""

from collections.abc import Mapping

from runtime.kernels.formats import FORMATS, ByType
from runtime.kernels.tape import Op

#: op by GGML type name; parameters on the tape:
#:   0  panels, 16 rows each (`pack.pack`)
#:   1  number of panels
#:   2  activation tiles of the type's `act_kind` (`quantise.quantise`)
#:   3  k
#:   4  out: f32 at ``out + j * ldo + 4 * row``, 16 times the panels in each of m columns
#:   5  ldo, bytes
#:   6  0, or rows laid out as `out` that the product is added to; `out` is scratch then
#:   7  job variable that holds m
#: Panels are multiplied in any order by any thread: no bit of the result depends on it, nor on m.
MATMUL: Mapping[str, Op] = ByType(lambda name: FORMATS[name].module.matmul)
