"""Vectors of the processor, in LLVM's own code, for compiled functions that numba has no words for.

numba leaves it to LLVM whether loops become vector instructions. For loops over a few columns it
mostly does not pay: LLVM looks at every entry whether arrays overlap, and takes the last columns
one by one. What is written with these helpers is what runs, and adds up in the same order wherever
arrays lie in memory.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

WIDEST = 8
#: numbers in a vector, of which a processor with such vectors has 32 (and others 16 of half of it)
WIDTH = WIDEST if llvmlite.binding.get_host_cpu_features().get("avx512f") else 4

#: bytes of a line of the cache
LINE = 64

INTEGER = ir.IntType(64)
NUMBER = ir.DoubleType()
VECTOR = ir.VectorType(NUMBER, WIDTH)
ZERO = ir.Constant(VECTOR, [0.0] * WIDTH)
_SHORT = ir.IntType(32)
_BYTES = ir.IntType(8).as_pointer()
_MASK = ir.VectorType(ir.IntType(1), WIDTH)
_INTEGERS = ir.VectorType(INTEGER, WIDTH)


@register_jitable
def padded(size: int) -> int:
    """The columns that a matrix needs for so many numbers: whole vectors of any processor.

    Not of this one alone: sums may be saved and gone on with elsewhere.

    >>> padded(1), padded(8), padded(9)
    (8, 8, 16)
    """
    return -(-size // WIDEST) * WIDEST


@register_jitable
def zeros(rows, columns):  # type: ignore[no-untyped-def]
    """A matrix of zeros in whose padded rows no vector lies across two lines of the cache.

    >>> zeros(2, 8).ctypes.data % LINE
    0
    """
    room = np.zeros(rows * columns + LINE // 8)
    first = (-room.ctypes.data) % LINE // 8
    return room[first : first + rows * columns].reshape(rows, columns)


class Array:
    """A C-contiguous array of one or two dimensions and 64 bits a number, that an intrinsic got.

    Args:
        context: of the compilation.
        builder: of the function.
        kind: the array's type.
        value: the array.
        single: it has floating numbers, maybe of 32 bits, for ``read_first``.
    """

    def __init__(
        self, context: Any, builder: Any, kind: Any, value: Any, *, single: bool = False
    ) -> None:
        fits = kind.dtype in (types.float64, types.float32) if single else kind.dtype.bitwidth == 64
        if kind.layout != "C" or not fits:
            raise TypeError(f"an array of another layout or type: {kind}")
        array = context.make_array(kind)(context, builder, value)
        self.builder, self.data = builder, array.data
        self.columns = builder.extract_value(array.shape, kind.ndim - 1)

    def place(self, row: Any, column: Any) -> Any:
        """A pointer to an element."""
        b = self.builder
        return b.gep(self.data, [b.add(b.mul(row, self.columns), column)])

    def element(self, index: Any) -> Any:
        """An element of one dimension."""
        return self.builder.load(self.builder.gep(self.data, [index]))

    def read(self, row: Any, column: Any) -> Any:
        """A vector, from an element on."""
        place = self.builder.bitcast(self.place(row, column), VECTOR.as_pointer())
        return self.builder.load(place, align=8)

    def read_first(self, row: Any, column: Any, count: Any) -> Any:
        """So many numbers from an element on, or all of a vector if there are more; then zeros."""
        b, place = self.builder, self.place(row, column)
        kind = ir.VectorType(place.type.pointee, WIDTH)
        load = ir.FunctionType(kind, [kind.as_pointer(), _SHORT, _MASK, kind])
        bits = 32 if kind.element == ir.FloatType() else 64
        read = _function(b, load, f"llvm.masked.load.v{WIDTH}f{bits}.p0")
        nothing = ir.Constant(kind, [0.0] * WIDTH)
        place = b.bitcast(place, kind.as_pointer())
        vector = b.call(read, [place, _SHORT(bits // 8), self._first(count), nothing])
        return vector if kind == VECTOR else b.fpext(vector, VECTOR)

    def write(self, vector: Any, row: Any, column: Any) -> None:
        """Put a vector there."""
        place = self.builder.bitcast(self.place(row, column), VECTOR.as_pointer())
        self.builder.store(vector, place, align=8)

    def write_first(self, vector: Any, row: Any, column: Any, count: Any) -> None:
        """Put so many of its first elements there, or all if it has no more."""
        kind = ir.FunctionType(ir.VoidType(), [VECTOR, VECTOR.as_pointer(), _SHORT, _MASK])
        store = _function(self.builder, kind, f"llvm.masked.store.v{WIDTH}f64.p0")
        b = self.builder
        place = b.bitcast(self.place(row, column), VECTOR.as_pointer())
        b.call(store, [vector, place, _SHORT(8), self._first(count)])

    def _first(self, count: Any) -> Any:
        """Which elements of a vector are the first so many."""
        b, numbers = self.builder, ir.Constant(_INTEGERS, list(range(WIDTH)))
        return b.icmp_signed("<", numbers, repeated(b, count))


def constant(number: int) -> Any:
    """An integer."""
    return ir.Constant(INTEGER, number)


def repeated(builder: Any, number: Any) -> Any:
    """A vector of one number."""
    kind = ir.VectorType(number.type, WIDTH)
    nothing = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(nothing, number, _SHORT(0))
    return builder.shuffle_vector(one, nothing, _places([0] * WIDTH))


def plus_product(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """``x y + z``, rounded once."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    return builder.call(_function(builder, kind, f"llvm.fma.v{WIDTH}f64"), [x, y, z])


def total(builder: Any, vectors: list[Any]) -> Any:
    """The sum of the numbers of WIDEST / WIDTH vectors, in an order that WIDTH does not change."""
    halves = list(vectors)
    while len(halves) > 1:
        some = len(halves) // 2
        halves = [builder.fadd(halves[k], halves[k + some]) for k in range(some)]
    vector, width = halves[0], WIDTH
    while width > 1:
        width //= 2
        nothing = ir.Constant(vector.type, ir.Undefined)
        low, high = (
            builder.shuffle_vector(vector, nothing, _places(list(range(first, first + width))))
            for first in (0, width)
        )
        vector = builder.fadd(low, high)
    return builder.extract_element(vector, _SHORT(0))


def read_at(builder: Any, address: Any) -> Any:
    """The vector at an address."""
    return builder.load(builder.inttoptr(address, VECTOR.as_pointer()), align=8)


def prefetch(builder: Any, address: Any) -> None:
    """Have what is there fetched into the cache; any address will do."""
    kind = ir.FunctionType(ir.VoidType(), [_BYTES, _SHORT, _SHORT, _SHORT])
    fetch = _function(builder, kind, "llvm.prefetch.p0")
    builder.call(fetch, [builder.inttoptr(address, _BYTES), _SHORT(0), _SHORT(3), _SHORT(1)])


def _fetched(typing: Any, matrix: Any, row: Any) -> Any:
    """Have a row of a matrix fetched into the cache."""
    del typing, row

    def make(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        array = context.make_array(kind)(context, b, arguments[0])
        rows_apart = b.extract_value(array.strides, 0)
        place = b.add(b.ptrtoint(array.data, INTEGER), b.mul(arguments[1], rows_apart))
        size = b.mul(b.extract_value(array.shape, 1), constant(kind.dtype.bitwidth // 8))
        line = b.and_(place, constant(-LINE))  # a row rarely begins where a line does
        with cgutils.for_range_slice(b, line, b.add(place, size), constant(LINE)) as (here, _):
            prefetch(b, here)
        return context.get_dummy_value()

    return types.void(matrix, types.intp), make


fetch_row: Any = intrinsic(_fetched)


def transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """The columns of WIDTH vectors: squares of 1, 2, 4, … elements change places in turn."""
    side = 1
    while side < WIDTH:
        there = list(rows)
        for i in (i for i in range(WIDTH) if not i & side):
            both = rows[i], rows[i + side]
            upper = [k - side + WIDTH if k & side else k for k in range(WIDTH)]
            lower = [k + WIDTH if k & side else k + side for k in range(WIDTH)]
            there[i] = builder.shuffle_vector(*both, _places(upper))
            there[i + side] = builder.shuffle_vector(*both, _places(lower))
        rows, side = there, 2 * side
    return rows


def _places(numbers: list[int]) -> Any:
    return ir.Constant(ir.VectorType(_SHORT, len(numbers)), numbers)


def _function(builder: Any, kind: Any, name: str) -> Any:
    return cgutils.get_or_insert_function(builder.module, kind, name)
