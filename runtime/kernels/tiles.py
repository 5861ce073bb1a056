"""Tiles: tuples of vectors, one per activation column.

The loops below run while code is generated, so n columns unroll exactly and stay in registers: register
blocking with one source for every width. Column j's operand lies at `address + j * stride`.
"""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from runtime.kernels.emit import F32, I32, Builder, Value, fma_ir, load_ir, splat_ir, store_ir
from runtime.kernels.vectype import VB, f32v, i32v


def tile_ir(b: Builder, items: list[Value]) -> Value:
    tile = ir.Constant(ir.ArrayType(items[0].type, len(items)), ir.Undefined)
    for j, item in enumerate(items):
        tile = b.insert_value(tile, item, j)
    return tile


def items_ir(b: Builder, tile: Value) -> list[Value]:
    return [b.extract_value(tile, j) for j in range(tile.type.count)]


def column_ir(b: Builder, address: Value, stride: Value, j: int) -> Value:
    return b.add(address, b.mul(stride, ir.Constant(stride.type, j)))


def _splat_column(b: Builder, address: Value, stride: Value, j: int, scalar) -> Value:
    return splat_ir(b, load_ir(b, column_ir(b, address, stride, j), scalar), f32v.lanes)


def make_tile_zero(vt, n):
    """A function that returns n zero vectors."""
    tile_type = types.UniTuple(vt, n)

    @intrinsic
    def tile_zero(typingctx):
        def codegen(cx, b, sig, args):
            return ir.Constant(cx.get_value_type(tile_type), None)

        return tile_type(), codegen

    return tile_zero


def make_tile_zeros(n):
    """Zero tiles of i32 sums and of f32 results."""
    return make_tile_zero(i32v, n), make_tile_zero(f32v, n)


@intrinsic
def tile_load_splat_i32(typingctx, like, address, stride):
    """tile[j] = the int32 of column j in all lanes."""

    def codegen(cx, b, sig, args):
        return tile_ir(b, [_splat_column(b, args[1], args[2], j, I32) for j in range(like.count)])

    return like(like, types.int64, types.int64), codegen


@intrinsic
def tile_load(typingctx, like, address, stride):
    """tile[j] = the vector of column j."""

    def codegen(cx, b, sig, args):
        vt = like.dtype.llvm
        return tile_ir(b, [load_ir(b, column_ir(b, args[1], args[2], j), vt) for j in range(like.count)])

    return like(like, types.int64, types.int64), codegen


@intrinsic
def tile_store(typingctx, tile, address, stride):
    def codegen(cx, b, sig, args):
        for j, v in enumerate(items_ir(b, args[0])):
            store_ir(b, v, column_ir(b, args[1], args[2], j))
        return cx.get_dummy_value()

    return types.void(tile, types.int64, types.int64), codegen


@intrinsic
def tile_transpose(typingctx, tile):
    """tile[i] lane j = tile[j] lane i, of 16 vectors: four rounds that exchange one bit of i and j."""

    def codegen(cx, b, sig, args):
        rows, n = items_ir(b, args[0]), tile.dtype.lanes
        half = 1
        while half < n:
            low = [lane if not lane & half else n + lane - half for lane in range(n)]
            high = [lane + half if not lane & half else n + lane for lane in range(n)]
            for i in range(n):
                if not i & half:
                    x, y = rows[i], rows[i + half]
                    rows[i], rows[i + half] = (
                        b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, n), order))
                        for order in (low, high)
                    )
            half *= 2
        return tile_ir(b, rows)

    return tile(tile), codegen


@intrinsic
def tile_stream(typingctx, tile, address, stride):
    """`tile_store` past the caches, to multiples of 64; a `store_fence` lets other threads see it."""

    def codegen(cx, b, sig, args):
        for j, v in enumerate(items_ir(b, args[0])):
            at = b.inttoptr(column_ir(b, args[1], args[2], j), v.type.as_pointer())
            b.store(v, at, align=VB).set_metadata("nontemporal", b.module.add_metadata([I32(1)]))
        return cx.get_dummy_value()

    return types.void(tile, types.int64, types.int64), codegen


@intrinsic
def tile_fma_splat(typingctx, acc, w, address, stride):
    """acc[j] += w * x_j, x_j a float32."""

    def codegen(cx, b, sig, args):
        tile, w_, at, step = args
        return tile_ir(
            b, [fma_ir(b, w_, _splat_column(b, at, step, j, F32), a) for j, a in enumerate(items_ir(b, tile))]
        )

    return acc(acc, w, types.int64, types.int64), codegen


@intrinsic
def tile_mul_splat(typingctx, tile, address, stride):
    """tile[j] * x_j, x_j a float32."""

    def codegen(cx, b, sig, args):
        tile_, at, step = args
        return tile_ir(
            b, [b.fmul(x, _splat_column(b, at, step, j, F32)) for j, x in enumerate(items_ir(b, tile_))]
        )

    return tile(tile, types.int64, types.int64), codegen


@intrinsic
def tile_scale(typingctx, tile, v):
    """tile[j] * v"""

    def codegen(cx, b, sig, args):
        return tile_ir(b, [b.fmul(x, args[1]) for x in items_ir(b, args[0])])

    return tile(tile, v), codegen


@intrinsic
def tile_fma(typingctx, acc, tile, v):
    """acc[j] += tile[j] * v"""

    def codegen(cx, b, sig, args):
        pairs = zip(items_ir(b, args[0]), items_ir(b, args[1]), strict=True)
        return tile_ir(b, [fma_ir(b, x, args[2], a) for a, x in pairs])

    return acc(acc, tile, v), codegen


@intrinsic
def tile_mul(typingctx, tile, other):
    """tile[j] * other[j]"""

    def codegen(cx, b, sig, args):
        pairs = zip(*(items_ir(b, arg) for arg in args), strict=True)
        return tile_ir(b, [b.fmul(x, y) for x, y in pairs])

    return tile(tile, other), codegen


@intrinsic
def tile_dot(typingctx, start, tile, address, stride):
    """start + tile[0] * x_0 + tile[1] * x_1 ..., in this order, x_j a float32."""

    def codegen(cx, b, sig, args):
        total, tile_, at, step = args
        for j, item in enumerate(items_ir(b, tile_)):
            total = fma_ir(b, item, _splat_column(b, at, step, j, F32), total)
        return total

    return start(start, tile, types.int64, types.int64), codegen


@intrinsic
def tile_fma_i32(typingctx, acc, sums, scale, address, stride):
    """acc[j] += float(sums[j]) * (scale * x_j), x_j a float32."""

    def codegen(cx, b, sig, args):
        tile, dots, scale_, at, step = args
        out = []
        for j, (a, d) in enumerate(zip(items_ir(b, tile), items_ir(b, dots), strict=True)):
            both = b.fmul(scale_, _splat_column(b, at, step, j, F32))
            out.append(fma_ir(b, b.sitofp(d, f32v.llvm), both, a))
        return tile_ir(b, out)

    return acc(acc, sums, scale, types.int64, types.int64), codegen


@intrinsic
def tile_fma_i32_noscale(typingctx, acc, sums, scale):
    """acc[j] += float(sums[j]) * scale."""

    def codegen(cx, b, sig, args):
        pairs = zip(items_ir(b, args[0]), items_ir(b, args[1]), strict=True)
        return tile_ir(b, [fma_ir(b, b.sitofp(d, f32v.llvm), args[2], a) for a, d in pairs])

    return acc(acc, sums, scale), codegen


@intrinsic
def tile_fma_f32(typingctx, acc, x, scale, address, stride):
    """acc[j] += x[j] * (scale * x_j), x_j a float32."""

    def codegen(cx, b, sig, args):
        tile, xs, scale_, at, step = args
        out = []
        for j, (a, v) in enumerate(zip(items_ir(b, tile), items_ir(b, xs), strict=True)):
            out.append(fma_ir(b, v, b.fmul(scale_, _splat_column(b, at, step, j, F32)), a))
        return tile_ir(b, out)

    return acc(acc, x, scale, types.int64, types.int64), codegen
