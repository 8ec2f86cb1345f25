"""Products of rows of a packed weight with rows of float32, compiled for the processor at hand.

The order of every sum is fixed here: weights are decoded sixteen at a time; vector v of a block goes to the even or the
odd one of two accumulators of sixteen lanes, by fused multiply-adds; in the end the accumulators are added, then halves
of the lanes until one is left; then what is left of a row of plain floats is added one by one. Every row of float32
has accumulators of its own, whatever the number of rows that are done at once, so that its bits are always the same.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from llvmlite import binding, ir
from numba.core import cgutils

from nextn.kernels.cpu.blocks import (
    FLOAT,
    FLOATS,
    FORMS,
    HAS_PERMUTATION,
    I8,
    I16,
    I32,
    I64,
    Block,
    Form,
    Value,
    f16,
    f32,
)
from nextn.kernels.cpu.lanes import LANES, added, folded, fused

# Rows of float32 that are done at once, and then also rows of the weight: their accumulators fit into the registers,
# of which there are twice as many with AVX-512.
MOST_ROWS, MOST_COLUMNS = 4, 3 if HAS_PERMUTATION else 2
# Bytes of weights that are asked for ahead of their use: a row ends before a processor's own foresight has begun. Zen 4
# reads half as fast when it is asked, and needs it not.
AHEAD = 0 if binding.get_host_cpu_name().startswith("znver") else 2048


class Microkernels(NamedTuple):
    """Addresses of machine code. `products[r - 1]` takes (weights, row_bytes, blocks, rest, x, x_stride, y, y_stride).

    It puts the products of one row of a weight with r rows of x into y, whose strides are in floats; `rest` weights
    follow the blocks. `wide[r - 2]` does it for MOST_COLUMNS rows of the weight, `row_bytes` apart. `decode` takes
    (weights, blocks, rest, out).
    """

    products: tuple[int, ...]
    wide: tuple[int, ...]
    decode: int


@cache
def microkernels(type_name: str) -> Microkernels:
    """Those of a ggml type, which is in `FORMS`."""
    form = FORMS[type_name]
    module = ir.Module(name=type_name)
    module.triple = binding.get_process_triple()
    counts = range(1, MOST_ROWS + 1)
    for rows in counts:
        _product(module, form, f"product{rows}", rows, 1)
    # One row of x stays in the nearest cache; of several each is read again for every row of the weight.
    for rows in counts[1:]:
        _product(module, form, f"wide{rows}", rows, MOST_COLUMNS)
    _decoding(module, form)
    engine = _compiled(str(module))
    _ENGINES.append(engine)
    products = tuple(engine.get_function_address(f"product{rows}") for rows in counts)
    wide = tuple(engine.get_function_address(f"wide{rows}") for rows in counts[1:])
    return Microkernels(products, wide, engine.get_function_address("decode"))


# Machine code lives as long as its engine.
_ENGINES: list[binding.ExecutionEngine] = []


def _compiled(code: str) -> binding.ExecutionEngine:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features()
    # All sixteen lanes in one register where there are such: LLVM would halve them to spare the clock.
    features["prefer-256-bit"] = False
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features.flatten(), opt=3, jit=True
    )
    module = binding.parse_assembly(code)
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


class _Loop:
    """A loop that counts from 0 to `count`, and carries values."""

    def __init__(self, builder: ir.IRBuilder, count: Value, carried: list[Value]) -> None:
        self.builder, self.count = builder, count
        before = builder.block
        self.head, self.body, self.behind = (builder.append_basic_block(name) for name in ("head", "body", "behind"))
        builder.branch(self.head)
        builder.position_at_end(self.head)
        self.index = builder.phi(I64)
        self.index.add_incoming(ir.Constant(I64, 0), before)
        self.carried = []
        for value in carried:
            phi = builder.phi(value.type)
            phi.add_incoming(value, before)
            self.carried.append(phi)
        builder.cbranch(builder.icmp_signed("<", self.index, count), self.body, self.behind)
        builder.position_at_end(self.body)

    def close(self, carried: list[Value]) -> None:
        """End the body with new values; code goes on behind the loop."""
        following = self.builder.add(self.index, ir.Constant(I64, 1))
        self.index.add_incoming(following, self.builder.block)
        for phi, value in zip(self.carried, carried, strict=True):
            phi.add_incoming(value, self.builder.block)
        self.builder.branch(self.head)
        self.builder.position_at_end(self.behind)


def _product(module: ir.Module, form: Form, name: str, rows: int, columns: int) -> None:
    bytes_, floats = I8.as_pointer(), FLOAT.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [bytes_, I64, I64, I64, floats, I64, floats, I64])
    function = ir.Function(module, kind, name)
    weights, row_bytes, blocks, rest, x, x_stride, y, y_stride = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    starts = [builder.gep(x, [builder.mul(x_stride, ir.Constant(I64, row))]) for row in range(rows)]
    lines = [builder.gep(weights, [builder.mul(row_bytes, ir.Constant(I64, column))]) for column in range(columns)]

    zeros = ir.Constant(FLOATS, [0.0] * LANES)
    loop = _Loop(builder, blocks, [zeros] * (2 * rows * columns))
    sums = list(loop.carried)
    place = builder.mul(loop.index, ir.Constant(I64, form.bytes))
    read = [Block(builder, builder.gep(line, [place])) for line in lines]
    for block in read if AHEAD else ():
        _prefetch(builder, block)
    first = builder.mul(loop.index, ir.Constant(I64, form.weights))
    for vector, decoded in enumerate(zip(*map(form.decode, read), strict=True)):
        at = builder.add(first, ir.Constant(I64, LANES * vector))
        for row, start in enumerate(starts):
            pointer = builder.bitcast(builder.gep(start, [at]), FLOATS.as_pointer())
            values = builder.load(pointer, align=4)
            for column in range(columns):
                mine = 2 * (column * rows + row) + vector % 2
                sums[mine] = fused(builder, decoded[column], values, sums[mine])
    loop.close(sums)

    pairs = zip(loop.carried[::2], loop.carried[1::2], strict=True)
    totals = [folded(builder, builder.fadd(even, odd), added) for even, odd in pairs]
    for column, line in enumerate(lines):
        results = totals[column * rows : (column + 1) * rows]
        if form.is_plain:
            results = _with_rest(builder, form, (line, blocks, rest), starts, results)
        for row, total in enumerate(results):
            at = builder.add(builder.mul(y_stride, ir.Constant(I64, row)), ir.Constant(I64, column))
            builder.store(total, builder.gep(y, [at]))
    builder.ret_void()


def _with_rest(
    builder: ir.IRBuilder, form: Form, row: tuple[Value, Value, Value], starts: list[Value], totals: list[Value]
) -> list[Value]:
    """Add the products of the plain floats that are no whole block, one by one."""
    loop, value, place = _rest_loop(builder, form, row, totals)
    added = []
    for start, total in zip(starts, loop.carried, strict=True):
        added.append(fused(builder, value, builder.load(builder.gep(start, [place])), total))
    loop.close(added)
    return list(loop.carried)


def _rest_loop(
    builder: ir.IRBuilder, form: Form, row: tuple[Value, Value, Value], carried: list[Value]
) -> tuple[_Loop, Value, Value]:
    """A loop over the plain floats behind the blocks, with the float at hand and its place in the row."""
    weights, blocks, rest = row
    loop = _Loop(builder, rest, carried)
    place = builder.add(builder.mul(blocks, ir.Constant(I64, form.weights)), loop.index)
    size = form.bytes // form.weights
    at = builder.gep(weights, [builder.mul(place, ir.Constant(I64, size))])
    return loop, _plain(builder, form, at), place


def _plain(builder: ir.IRBuilder, form: Form, at: Value) -> Value:
    """One F32, F16 or BF16 as a float."""
    block = Block(builder, at)
    if form.decode is f32:
        return block.load(FLOAT, 0)
    if form.decode is f16:
        return builder.extract_element(block.half(0), ir.Constant(I32, 0))
    upper = builder.zext(block.load(I16, 0), I32)
    return builder.bitcast(builder.shl(upper, ir.Constant(I32, 16)), FLOAT)


def _decoding(module: ir.Module, form: Form) -> None:
    bytes_, floats = I8.as_pointer(), FLOAT.as_pointer()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [bytes_, I64, I64, floats]), "decode")
    weights, blocks, rest, out = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    loop = _Loop(builder, blocks, [])
    block = Block(builder, builder.gep(weights, [builder.mul(loop.index, ir.Constant(I64, form.bytes))]))
    first = builder.mul(loop.index, ir.Constant(I64, form.weights))
    for place, decoded in enumerate(form.decode(block)):
        at = builder.gep(out, [builder.add(first, ir.Constant(I64, LANES * place))])
        builder.store(decoded, builder.bitcast(at, FLOATS.as_pointer()), align=4)
    loop.close([])
    if form.is_plain:
        loop, value, place = _rest_loop(builder, form, (weights, blocks, rest), [])
        builder.store(value, builder.gep(out, [place]))
        loop.close([])
    builder.ret_void()


def _prefetch(builder: ir.IRBuilder, block: Block) -> None:
    """Ask for weights that are to be read later; what is not there is not asked for."""
    module, name = builder.module, "llvm.prefetch.p0"
    bytes_ = I8.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [bytes_, I32, I32, I32])
    function = cgutils.get_or_insert_function(module, kind, name)
    ahead = builder.gep(block.pointer, [ir.Constant(I64, AHEAD)])
    # For reading, to be kept in all caches, as data.
    builder.call(function, [ahead, *(ir.Constant(I32, number) for number in (0, 3, 1))])
