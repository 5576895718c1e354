"""Design matrices: the features x of rows, behind a few operations.

Sums over rows are those of ``z = [x - m, 1]``: columns centred at m, and a 1 for the intercept.
Columns that a matrix does not have, because they first appear in later rows, are 0 in it.

No caller asks which kind of matrix it has. A new kind derives from :class:`DesignMatrix` and from a
named tuple of arrays, and brings a class that adds up its Gram matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.matrices.row_steps import PathArrays
from tangograd.glm.numerics.jit import REORDERED, Compiled, compiled_method

Array = NDArray[np.float64]
#: rows are sums of products up to this many before they are added to others, lest rounding adds up
FOLD_ROWS = 1 << 20


class GramAccumulator(Protocol):
    """A sum ``Σ a z zᵀ`` over rows of one kind of matrix, in the parts that suit this kind."""

    def add(self, X: Any, weights: Array) -> None:
        """Add rows with weights a of any sign, shape (n,)."""

    def matrix(self) -> Array:
        """Return the sum, shape (width + 1, width + 1), the intercept last."""

    def grow(self, width: int) -> None:
        """Add columns before the intercept, of 0 so far and not centred.

        What is added later is rounded as if they had been there from the beginning: results do not
        depend on when new columns are announced.
        """


class DesignMatrix(Compiled):
    """Rows of features. Instances are immutable, and so are their arrays while they are used."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(part.nbytes for part in self._parts() if isinstance(part, np.ndarray))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as far as the columns tell: 0 if rows differ."""
        raise NotImplementedError

    def _parts(self) -> tuple[Any, ...]:
        """Return the fields of the named tuple."""
        return tuple(cast(Any, self))

    def take(self, rows: slice | NDArray[np.int64]) -> Self:
        """Return some rows; a slice shares memory."""
        raise NotImplementedError

    def widened(self, width: int) -> Self:
        """Return the same with columns of 0 up to this width."""
        raise NotImplementedError

    @classmethod
    def concatenated(cls, parts: Sequence[Self]) -> Self:
        """Return rows of several matrices of this kind, one below the other."""
        raise NotImplementedError

    def copy(self) -> Self:
        """Return the same with arrays of its own."""
        parts = self._parts()
        return type(self)(*(p.copy() if isinstance(p, np.ndarray) else p for p in parts))

    def toarray(self) -> Array:
        """Return a dense array."""
        raise NotImplementedError

    def columns(self, which: Sequence[int]) -> Array:
        """Return some columns, shape (n, len(which))."""
        raise NotImplementedError

    def extremes(self, which: NDArray[np.int64] | None = None) -> tuple[Array, Array]:
        """Return the least and the largest value of each column, or of some; there must be rows."""
        raise NotImplementedError

    def first_not_finite(self) -> tuple[int, int, float] | None:
        """Return row, column and value of the first element that is not finite."""
        raise NotImplementedError

    def dot(self, coef: Array) -> Array:
        """Return ``X coef``.

        Args:
            coef: shape (p,) or (p, outputs), with p the width or more.
        """
        raise NotImplementedError

    def transpose_dot(self, a: Array) -> Array:
        """Return ``Σ a_n x_n`` for a of shape (n,) or (n, outputs); shape (width, …)."""
        raise NotImplementedError

    def weighted_powers(self, weights: Array, center: Array, power: int) -> Array:
        """Return ``Σ w |x - m|^power``, shape (len(m),).

        Args:
            weights: w, not negative, shape (n,).
            center: m; its columns beyond the width are those of 0.
            power: 1 or an even number.
        """
        raise NotImplementedError

    def squared_norms(self, metric: Array, center: Array) -> Array:
        """Return ``Σ_j metric_j (x - m)_j²`` of each row, shape (n,)."""
        raise NotImplementedError

    def new_gram(self, center: Array, intercept: bool) -> GramAccumulator:
        """Return an empty sum of rows of this kind; without an intercept, z ends in 0."""
        raise NotImplementedError

    # --- TANGO's recursion, row by row; compiled

    def workspace(self, path: PathArrays) -> Any:
        """Return arrays for the methods that follow, which allocate none."""
        raise NotImplementedError

    @compiled_method
    def begin(self, path: PathArrays, work: Any) -> None:
        """Take θ, v, C and S over from the path."""
        raise NotImplementedError

    @compiled_method(fastmath=REORDERED)
    def predict_row(self, n: int, work: Any, eta: Array, t: Array, q: Array) -> None:
        """Write ``η = z·θ``, ``t = z·v`` and ``q = zᵀ C z`` of a row, for each output."""
        raise NotImplementedError

    @compiled_method(fastmath=REORDERED)
    def update_row(self, n: int, work: Any, keep: float, dt: float, a: Array, f: Array) -> None:
        """Do ``v ← keep v + a C z``, ``θ ← θ - dt v`` and ``S ← S + f z²``, for each output.

        Only the row of the last ``predict_row`` may be given.
        """
        raise NotImplementedError

    @compiled_method
    def flush(self, path: PathArrays, work: Any) -> None:
        """Write θ, v and S back to the path."""
        raise NotImplementedError


def grown(total: Array, old: int, width: int) -> Array:
    """Return a symmetric sum with rows and columns of 0 between the first and the intercept's."""
    kept = np.r_[np.arange(old), width]
    result = np.zeros((width + 1, width + 1))
    result[np.ix_(kept, kept)] = total
    return result


class GramSum:
    """A sum ``Σ a z zᵀ`` over rows of any kinds of matrices.

    Args:
        center: m, shape (width,).
        intercept: whether z ends in 1; in 0 otherwise.

    Example:
        >>> from tangograd.glm.matrices import as_matrix
        >>> gram = GramSum(np.array([1.0]), intercept=True)
        >>> gram.add(as_matrix(np.array([[3.0], [5.0]])), np.array([1.0, 10.0]))
        >>> gram.matrix()
        array([[164.,  42.],
               [ 42.,  11.]])
    """

    def __init__(self, center: Array, intercept: bool) -> None:
        self.center, self.intercept = center, intercept
        self._total = np.zeros((len(center) + 1,) * 2)
        self._parts: dict[type[DesignMatrix], GramAccumulator] = {}
        self._rows = 0  # in the parts

    def add(self, X: DesignMatrix, weights: Array) -> None:
        """Add rows with weights a of any sign, shape (n,)."""
        if self._rows >= FOLD_ROWS:
            self._fold()
        self._rows += len(weights)
        weights = np.ascontiguousarray(weights, dtype=np.float64)
        kind = type(X)
        if kind not in self._parts:
            self._parts[kind] = X.new_gram(self.center, self.intercept)
        self._parts[kind].add(X, weights)

    def _fold(self) -> None:
        """Add the parts to the total."""
        self._total, self._parts, self._rows = self.matrix(), {}, 0

    def merge(self, other: GramSum) -> None:
        """Add another sum with the same centre."""
        self._total += other.matrix()

    def grow(self, width: int) -> None:
        """Add columns before the intercept, of 0 so far and not centred."""
        old = len(self.center)
        self._total = grown(self._total, old, width)
        self.center = np.r_[self.center, np.zeros(width - old)]
        for part in self._parts.values():
            part.grow(width)

    def matrix(self) -> Array:
        """Return the sum, shape (width + 1, width + 1), the intercept last."""
        total = self._total.copy()
        for part in self._parts.values():
            total += part.matrix()
        return total
