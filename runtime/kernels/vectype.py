"""The numba type of a SIMD vector, and its arithmetic operators."""

import operator
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import lower_builtin, register_model

from runtime.kernels.emit import F32, F64, I8, I16, I32, I64

LANES = 16
VB = 4 * LANES  # bytes of a vector

#: element name -> LLVM type, numba type of one element
ELEMENTS = {
    "i8": (I8, types.int8),
    "u8": (I8, types.uint8),
    "i16": (I16, types.int16),
    "i32": (I32, types.int32),
    "i64": (I64, types.int64),
    "f32": (F32, types.float32),
    "f64": (F64, types.float64),
}


class VecType(types.Type):
    """The numba type of a vector of `lanes` elements."""

    def __init__(self, element: str, lanes: int) -> None:
        self.element, self.lanes = element, lanes
        super().__init__(name=f"{element}x{lanes}")

    @property
    def key(self) -> tuple[str, int]:
        return self.element, self.lanes

    @property
    def llvm(self) -> Any:
        return ir.VectorType(ELEMENTS[self.element][0], self.lanes)

    @property
    def scalar(self) -> Any:
        return ELEMENTS[self.element][1]

    @property
    def is_float(self) -> bool:
        return self.element.startswith("f")


@register_model(VecType)
class VecModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: VecType) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm)


f32v, i32v = VecType("f32", LANES), VecType("i32", LANES)
i8v = VecType("i8", 4 * LANES)


def _operator(op, float_name, int_name):
    @infer_global(op)
    class VecOperator(AbstractTemplate):
        def generic(self, args, kws):
            if len(args) == 2 and isinstance(args[0], VecType) and args[0] == args[1]:
                return signature(args[0], args[0], args[0])
            return None

    def lower(cx, b, sig, args):
        return getattr(b, float_name if sig.return_type.is_float else int_name)(*args)

    lower_builtin(op, VecType, VecType)(lower)


for _op, _float_name, _int_name in (
    (operator.add, "fadd", "add"),
    (operator.sub, "fsub", "sub"),
    (operator.mul, "fmul", "mul"),
    (operator.and_, "and_", "and_"),
    (operator.or_, "or_", "or_"),
    (operator.xor, "xor", "xor"),
):
    _operator(_op, _float_name, _int_name)
