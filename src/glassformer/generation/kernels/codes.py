"""Linear maps in eight bits in one pass: round the rows, multiply, and finish what comes of it. Compiled by numba.

Products are sums of whole numbers, of four pairs of codes at an instruction (VNNI, vpdpbusd). oneDNN, which offers the
same to torch, takes 12 us or more for a call and a pass of its own for each thing before and after the product.
"""

from typing import Any, no_type_check

from glassformer.attention.kernels.compiled.jit import (
    KeptByTypes,
    binding,
    cgutils,
    config,
    inner,
    intrinsic,
    ir,
    np,
    types,
)
from glassformer.attention.kernels.compiled.registers import LANES, constant, load, repeat
from glassformer.generation.kernels.compiled import (
    AT_ONCE,
    VERSION,
    gelu,
    relu,
    round_row,
    swish,
    take_classes,
    to_log_probabilities,
)
from glassformer.generation.kernels.passes import ZERO

PLAIN, ADD, RELU, SWISH, GELU = range(5)
_THEN = {"": PLAIN, "add": ADD, "relu": RELU, "swish": SWISH, "gelu": GELU}
QUAD = 4
"""Codes of a row that an instruction multiplies."""
ROWS = 6
"""Rows of a tile: its sums, and what is multiplied, fill the processor's registers."""
VECTORS = 4 if LANES == 16 else 2
COLUMNS = VECTORS * LANES
"""Columns of a panel."""
ROWS_AT_ONCE = 24 * ROWS
"""Rows whose codes stay in the cache, while all panels pass by."""

_INT, _WIDE = ir.IntType(32), ir.IntType(64)
_VECTOR, _FLOATS = ir.VectorType(_INT, LANES), ir.VectorType(ir.FloatType(), LANES)


def is_supported() -> bool:
    """Return whether this processor multiplies codes by an instruction (VNNI), in registers of this size."""
    changed = (config.__dict__.get(name) for name in ("CPU_NAME", "CPU_FEATURES"))
    if any(name is not None for name in changed) or not config.__dict__.get("ENABLE_AVX", True):
        return False  # numba then compiles for another processor than this one
    has = dict(binding.get_host_cpu_features())
    return bool(has.get("avx512vnni") if LANES == 16 else LANES == 8 and has.get("avxvnni"))


class Panels:
    """A weight's codes (width_out, width_in) with the scales and the bias of each row, laid out for `linear`.

    All are NumPy arrays: int8 from -127 to 127, and float32.
    """

    def __init__(self, codes: Any, scales: Any, bias: Any) -> None:
        self._widths = width_out, width_in = codes.shape
        assert len(scales) == len(bias) == width_out
        panels, quads = -(-width_out // COLUMNS), -(-width_in // QUAD)
        filled = np.zeros((panels * COLUMNS, quads * QUAD), np.int8)
        filled[:width_out, :width_in] = codes
        fill = (0, len(filled) - width_out)
        self._starts = filled.sum(1, dtype=np.int32) * np.int32(-ZERO)
        self._panels = np.ascontiguousarray(filled.reshape(panels, COLUMNS, quads, QUAD).transpose(0, 2, 1, 3))
        self._factors, self._biases = np.pad(scales, fill), np.pad(bias, fill, constant_values=-np.inf)

    def codes(self) -> Any:
        """Return the codes again."""
        rows = self._panels.transpose(0, 2, 1, 3).reshape(len(self._starts), -1)
        return np.ascontiguousarray(rows[: self._widths[0], : self._widths[1]])

    def multiply(self, x: Any, then: str, to: Any, out: Any) -> None:
        """Set out = x weightᵀ + bias, then plus `to` (then "add") or its activation ("relu", "swish", "gelu")."""
        assert x.shape[1:] == self._widths[1:]
        assert out.shape[1:] == self._widths[:1]
        linear(x, self._panels, self._starts, self._factors, self._biases, _THEN[then], to, out)

    def best_classes(self, x: Any, forbidden: int, log_probs: Any, classes: Any) -> None:
        """Set log_probs and classes (rows, k) to the k best of log_softmax(x weightᵀ + bias) but forbidden."""
        assert x.shape[1:] == self._widths[1:]
        assert log_probs.shape[1] <= self._widths[0]
        best(x, self._panels, self._starts, self._factors, self._biases, self._widths[0], forbidden, log_probs, classes)


@intrinsic
@no_type_check
def _multiply(
    typingctx, count, codes, scales, row, panels, quads, starts, factors, biases, column, out, out_at, out_row
):
    """Set out (count, COLUMNS) = (starts + codes times a panel's) factors scales + biases, for up to ROWS rows.

    All arrays are flat. Of the rows of codes, 4 `quads` codes each, these are the ones from `row` on. The panel is
    that of the columns from `column` on. They are written from `out_at` on, each `out_row` after the one before.
    """
    n = types.intp
    return types.void(n, codes, scales, n, panels, n, starts, factors, biases, n, out, n, n), _lower


@intrinsic
@no_type_check
def _multiply_add(
    typingctx, count, codes, scales, row, panels, quads, starts, factors, biases, column, out, out_at, out_row, to
):
    """Set out to what `_multiply` does, plus `to`, which is laid out as `out` is."""
    n = types.intp
    return types.void(n, codes, scales, n, panels, n, starts, factors, biases, n, out, n, n, to), _lower


def _lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    count, _, _, row, _, quads, _, _, _, column, _, out_at, out_row, *to = args
    width = builder.mul(quads, constant(QUAD))
    codes, scale, panel, start, factor, bias, out, *addend = (
        builder.gep(context.make_array(signature.args[n])(context, builder, args[n]).data, [place])
        for n, place in (
            (1, builder.mul(row, width)),
            (2, row),
            (4, builder.mul(column, width)),
            (6, column),
            (7, column),
            (8, column),
            (10, out_at),
            *((13, out_at) for _ in to),
        )
    )
    multiply_and_add = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.x86.avx512.vpdpbusd.{LANES * 32}"
    )

    def multiply(rows: int) -> None:
        """Write the product of this many rows, from the builder's block to the block `done`."""
        before = [_load(builder, start, vector * LANES) for vector in range(VECTORS)]
        entry, loop, finish = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("finish")
        builder.branch(loop)

        builder.position_at_end(loop)
        n = builder.phi(_WIDE)
        tile = [(r, vector, builder.phi(_VECTOR)) for r in range(rows) for vector in range(VECTORS)]
        weights = builder.gep(panel, [builder.mul(n, constant(COLUMNS * QUAD))])
        right = [_load(builder, weights, vector * LANES * QUAD) for vector in range(VECTORS)]
        quad = builder.gep(codes, [builder.mul(n, constant(QUAD))])
        rows_at = [builder.gep(quad, [builder.mul(width, constant(r))]) for r in range(rows)]
        left = [repeat(builder, _load(builder, place, 0, _INT)) for place in rows_at]
        grown = [builder.call(multiply_and_add, [total, left[r], right[vector]]) for r, vector, total in tile]
        following = builder.add(n, constant(1))
        n.add_incoming(constant(0), entry)
        n.add_incoming(following, loop)
        for (_, vector, total), value in zip(tile, grown, strict=True):
            total.add_incoming(before[vector], entry)
            total.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, quads), loop, finish)

        builder.position_at_end(finish)
        for (r, vector, _), total in zip(tile, grown, strict=True):
            number = builder.fmul(builder.sitofp(total, _FLOATS), _load(builder, factor, vector * LANES, _FLOATS))
            number = builder.fmul(number, repeat(builder, _load(builder, scale, r, ir.FloatType())))
            number = builder.fadd(number, _load(builder, bias, vector * LANES, _FLOATS))
            at = builder.add(builder.mul(out_row, constant(r)), constant(vector * LANES))
            for start_of_addend in addend:
                number = builder.fadd(number, load(builder, builder.gep(start_of_addend, [at]), _FLOATS))
            place = builder.gep(out, [at])
            builder.store(number, builder.bitcast(place, _FLOATS.as_pointer())).align = 4
        builder.branch(done)

    done = builder.append_basic_block("done")
    choice = builder.switch(count, done)
    for rows in range(1, ROWS + 1):
        block = builder.append_basic_block(f"rows{rows}")
        choice.add_case(constant(rows), block)
        builder.position_at_end(block)
        multiply(rows)
    builder.position_at_end(done)
    return context.get_dummy_value()


def _load(builder: Any, start: Any, n: int, kind: Any = _VECTOR) -> Any:
    """Load a vector or a number, n elements after `start`."""
    return load(builder, builder.gep(start, [constant(n)]), kind)


@inner()
def _finish(kind, out, to):
    """Set out to what `kind` says of it."""
    if kind == ADD:
        for i in range(out.shape[0]):
            out[i] += to[i]
    elif kind == RELU:
        for i in range(out.shape[0]):
            out[i] = relu(out[i])
    elif kind == SWISH:
        for i in range(out.shape[0]):
            out[i] = swish(out[i])
    elif kind == GELU:
        for i in range(out.shape[0]):
            out[i] = gelu(out[i])


def _compile(version: int) -> tuple[KeptByTypes, KeptByTypes]:
    """Return the functions. `version` is in their closures, so that they follow the functions that they call."""

    @KeptByTypes
    @no_type_check
    def linear(x, panels, starts, factors, biases, kind, to, out):
        """Set out (R, N) = x (R, K) times the weight of panels, plus bias, then what `kind` says of it and to (R, N).

        starts are -128 times the sum of a weight's codes, for the code 128 of x is 0; factors a weight's scales.
        """
        assert version
        (rows, width), columns, quads = x.shape, out.shape[1], panels.shape[1]
        codes, scales = np.empty((ROWS_AT_ONCE, quads * QUAD), np.uint8), np.empty(ROWS_AT_ONCE, np.float32)
        codes[:, width:] = ZERO
        edge = np.empty((ROWS, COLUMNS), np.float32)
        c, p, o, e, t = codes.reshape(-1), panels.reshape(-1), out.reshape(-1), edge.reshape(-1), to.reshape(-1)
        for block in range(0, rows, ROWS_AT_ONCE):
            rest = min(ROWS_AT_ONCE, rows - block)
            for r in range(rest):
                scales[r] = round_row(x[block + r], codes[r, :width])
            for first in range(0, columns, COLUMNS):
                last = min(first + COLUMNS, columns)
                for r in range(0, rest, ROWS):
                    n, at = min(ROWS, rest - r), block + r
                    place = at * columns + first
                    if last - first < COLUMNS:
                        _multiply(n, c, scales, r, p, quads, starts, factors, biases, first, e, 0, COLUMNS)
                        out[at : at + n, first:] = edge[:n, : columns - first]
                    elif kind == ADD:
                        _multiply_add(n, c, scales, r, p, quads, starts, factors, biases, first, o, place, columns, t)
                        continue
                    else:
                        _multiply(n, c, scales, r, p, quads, starts, factors, biases, first, o, place, columns)
                    if kind != PLAIN:
                        for i in range(at, at + n):
                            _finish(kind, out[i, first:last], to[i, first:last])

    @KeptByTypes
    @no_type_check
    def best(x, panels, starts, factors, biases, columns, forbidden, log_probs, classes):
        """Set log_probs and classes (R, k) to the best of log_softmax(x (R, K) times the weight of panels, plus bias).

        There are `columns` classes; `forbidden` is not chosen. The products aren't kept, but searched as they come.
        """
        assert version
        (rows, width), quads = x.shape, panels.shape[1]
        codes, scales = np.empty((ROWS_AT_ONCE, quads * QUAD), np.uint8), np.empty(ROWS_AT_ONCE, np.float32)
        codes[:, width:] = ZERO
        logits, sums = np.empty((ROWS, AT_ONCE), np.float32), np.zeros((ROWS_AT_ONCE, 3), np.float32)
        c, p, flat = codes.reshape(-1), panels.reshape(-1), logits.reshape(-1)
        for block in range(0, rows, ROWS_AT_ONCE):
            rest = min(ROWS_AT_ONCE, rows - block)
            for r in range(rest):
                scales[r] = round_row(x[block + r], codes[r, :width])
            sums[:, 0], sums[:, 1:] = -np.inf, 0
            for first in range(0, columns, AT_ONCE):
                last = min(first + AT_ONCE, columns)
                for r in range(0, rest, ROWS):
                    n = min(ROWS, rest - r)
                    for column in range(first, last, COLUMNS):
                        place = column - first
                        _multiply(n, c, scales, r, p, quads, starts, factors, biases, column, flat, place, AT_ONCE)
                    for i in range(n):
                        at = block + r + i
                        row = logits[i, : last - first]
                        take_classes(row, first, forbidden, sums[r + i], log_probs[at], classes[at])
            for r in range(rest):
                to_log_probabilities(log_probs[block + r], sums[r])

    return linear, best


linear, best = _compile(VERSION)
