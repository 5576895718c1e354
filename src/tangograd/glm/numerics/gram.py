"""Weighted Gram matrices ``Σ a z zᵀ`` over rows, in register tiles written in LLVM's own code.

BLAS puts both factors of a product in an order of its own before it multiplies them, which for many
rows of few columns takes about as long as the product. Here a tile of the sum stays in registers
while the rows go by, and only tiles on and above the diagonal are computed. numba's own vector code
for such tiles costs a third of a whole pass over the data.

Each element is added up in the order of the rows, by fused multiply-add: the result depends neither
on the width of the processor's vectors nor on where arrays lie in memory.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from tangograd.glm.numerics.jit import compiled

Array = NDArray[np.float64]

#: rows of arrays are padded to a multiple of this: the widest vectors of any processor, for sums
#: may be saved and continued on another
PADDING = 8
#: numbers in a vector
WIDTH = PADDING if llvmlite.binding.get_host_cpu_features().get("avx512f") else 4
#: rows of a tile, and vectors in each of its rows
TALL, WIDE = WIDTH, 3
#: rows whose products are computed at once: they stay in the nearest caches
STRIP = 128
#: bytes of a line of the cache
LINE = 64

_INTEGER = ir.IntType(64)
_VECTOR = ir.VectorType(ir.DoubleType(), WIDTH)
_ZERO = ir.Constant(_VECTOR, [0.0] * WIDTH)


def padded(size: int) -> int:
    """Return the columns that an array needs for so many numbers.

    >>> padded(1), padded(8), padded(9)
    (8, 8, 16)
    """
    return -(-size // PADDING) * PADDING


def zeros(rows: int, columns: int) -> Array:
    """Return a matrix of zeros that begins at a line of the cache.

    >>> zeros(2, 8).ctypes.data % LINE
    0
    """
    room = np.zeros(rows * columns + LINE // 8)
    first = (-room.ctypes.data) % LINE // 8
    return room[first : first + rows * columns].reshape(rows, columns)


class _Matrix:
    """A C-contiguous float64 matrix inside an intrinsic function.

    Args:
        context: of the compilation.
        builder: of the function.
        kind: the numba type.
        value: the argument.
    """

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        if kind.layout != "C" or kind.dtype != types.float64:
            raise TypeError(f"a C-contiguous array of float64 is needed; got {kind}")
        array = context.make_array(kind)(context, builder, value)
        self.builder, self.data = builder, array.data
        self.columns = builder.extract_value(array.shape, 1)

    def pointer(self, row: Any, column: Any) -> Any:
        """Return the address of an element."""
        b = self.builder
        return b.gep(self.data, [b.add(b.mul(row, self.columns), column)])

    def read(self, row: Any, column: Any) -> Any:
        """Return the vector that begins at an element."""
        place = self.builder.bitcast(self.pointer(row, column), _VECTOR.as_pointer())
        return self.builder.load(place, align=8)

    def write(self, vector: Any, row: Any, column: Any) -> None:
        """Store a vector from an element on."""
        place = self.builder.bitcast(self.pointer(row, column), _VECTOR.as_pointer())
        self.builder.store(vector, place, align=8)


def _repeat(builder: Any, number: Any) -> Any:
    """Return a vector of one number."""
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    one = builder.insert_element(nothing, number, ir.IntType(32)(0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(one, nothing, places)


def _fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Return ``x y + z``, rounded once."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{WIDTH}f64")
    return builder.call(function, [x, y, z])


def _tile(vectors: int) -> Any:
    """Return an intrinsic function that adds to a tile whose rows have so many vectors."""

    def add(typing: Any, left: Any, right: Any, rows: Any, i: Any, j: Any, total: Any) -> Any:
        del typing, rows, i, j
        size = types.intp
        return types.void(left, right, size, size, size, total), make

    def make(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        left, right, total = (_Matrix(context, b, kinds[k], arguments[k]) for k in (0, 1, 5))
        _, _, rows, i, j, _ = arguments
        columns = [b.add(j, _INTEGER(WIDTH * k)) for k in range(vectors)]
        sums = [[cgutils.alloca_once_value(b, _ZERO) for _ in columns] for _ in range(TALL)]
        with cgutils.for_range(b, rows) as loop:
            z = [right.read(loop.index, column) for column in columns]
            for k, row in enumerate(sums):
                a = _repeat(b, b.load(left.pointer(loop.index, b.add(i, _INTEGER(k)))))
                for each, part in zip(row, z, strict=True):
                    b.store(_fused(b, a, part, b.load(each)), each)
        for k, row in enumerate(sums):
            here = b.add(i, _INTEGER(k))
            for each, column in zip(row, columns, strict=True):
                total.write(b.fadd(total.read(here, column), b.load(each)), here, column)
        return context.get_dummy_value()

    return intrinsic(add)


_add_tile, _add_narrow_tile = _tile(WIDE), _tile(1)


@compiled
def add_products(left: Array, right: Array, rows: int, total: Array) -> None:
    """Add ``Σ left_n right_nᵀ`` to a matrix, on and above its diagonal.

    Args:
        left: shape (n, size); size is a multiple of ``PADDING``.
        right: of the same shape.
        rows: the first rows that are summed.
        total: shape (size, size); what it gets below the diagonal has no meaning.
    """
    size = left.shape[1]
    for i in range(0, size, TALL):
        j = i
        while j + WIDE * WIDTH <= size:
            _add_tile(left, right, rows, i, j, total)
            j += WIDE * WIDTH
        while j < size:
            _add_narrow_tile(left, right, rows, i, j, total)
            j += WIDTH


@compiled
def _add_weighted(weights: Array, z: Array, a_z: Array, total: Array) -> None:
    """Add the products of rows, strip by strip; a_z is room for a strip."""
    for start in range(0, len(z), STRIP):
        strip = z[start : start + STRIP]
        for n in range(len(strip)):
            a = weights[start + n]
            for j in range(z.shape[1]):
                a_z[n, j] = a * strip[n, j]
        add_products(a_z, strip, len(strip), total)


def add_gram(weights: Array, z: Array, total: Array) -> None:
    """Add ``Σ_n weights[n] z_n z_nᵀ`` to a matrix, on and above its diagonal.

    Args:
        weights: shape (n,); of any sign.
        z: shape (n, size), C-contiguous; size is a multiple of ``PADDING``.
        total: shape (size, size); what it gets below the diagonal has no meaning.
    """
    _add_weighted(weights, z, zeros(min(len(z), STRIP), z.shape[1]), total)


def symmetric(upper: Array, size: int) -> Array:
    """Return the symmetric matrix of the first columns, from its part on and above the diagonal.

    >>> symmetric(np.array([[1.0, 2.0, 0.0], [9.0, 3.0, 0.0], [9.0, 9.0, 0.0]]), 2)
    array([[1., 2.],
           [2., 3.]])
    """
    own = upper[:size, :size]
    return np.triu(own) + np.triu(own, 1).T
