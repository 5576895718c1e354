"""What may be wrong with the data, watched for as they stream by."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.matrices import Block, DesignMatrix

#: correlation of neighbouring targets beyond which a stream counts as sorted
SORTED = 0.9
#: among more columns than this duplicates are not looked for
MANY = 5000


class Watch:
    """Finds constant columns, duplicated columns and streams sorted by the target.

    Example:
        >>> import numpy as np
        >>> from tangograd.glm.matrices import Block, as_matrix
        >>> x = np.array([[1.0, 2.0, 2.0], [1.0, 3.0, 3.0]])
        >>> watch = Watch(3)
        >>> watch.see(Block(as_matrix(x), np.zeros(2), np.ones(2), np.zeros(2)))
        >>> watch.constant(), watch.duplicates()
        ([0], [(1, 2)])
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.low = np.full(columns, np.inf)
        self.high = np.full(columns, -np.inf)
        self._varied = np.zeros(columns, bool)
        self._twins: dict[int, int] | None = None  # column -> the earlier one that it equals
        self.rows = 0
        self._last: float | None = None
        self._origin = 0.0
        self._sums = np.zeros(4)  # of y, y², y times its neighbour, and of neighbours

    def grow(self, columns: int) -> None:
        """More columns."""
        extra = columns - self.columns
        # a column that was not there was 0
        self.low = np.r_[self.low, np.full(extra, 0.0 if self.rows else np.inf)]
        self.high = np.r_[self.high, np.full(extra, 0.0 if self.rows else -np.inf)]
        self._varied = np.r_[self._varied, np.zeros(extra, bool)]
        self.columns = columns

    def see(self, rows: Block) -> None:
        """Look at rows."""
        d = rows.X.shape[1]
        if d == self.columns and self._twins == {} and self._varied.all():
            self._neighbours(rows.y)
            self.rows += len(rows)
            return
        open_ = np.flatnonzero(~self._varied[:d])
        self._neighbours(rows.y)
        self.rows += len(rows)
        self.low[d:], self.high[d:] = np.minimum(self.low[d:], 0.0), np.maximum(self.high[d:], 0.0)
        if not len(open_) and self._twins == {}:
            return
        if len(open_):
            low, high = rows.X.extremes(open_)
            self.low[open_] = np.minimum(self.low[open_], low)
            self.high[open_] = np.maximum(self.high[open_], high)
            self._varied[open_] = self.low[open_] < self.high[open_]
        self._compare(rows)

    def _compare(self, rows: Block) -> None:
        if self._twins is None:
            self._twins, X = {}, rows.X
            if X.shape[1] > MANY:
                return
            for j, known in _equal_columns(X):
                if self._varied[j]:
                    self._twins[j] = known
            return
        for j, known in list(self._twins.items()):
            if not _equal(rows.X, j, known):
                del self._twins[j]

    def _neighbours(self, y: NDArray[np.float64]) -> None:
        if self._last is None:
            self._origin = float(y[0])  # or squares of targets far from 0 would cancel
        before, pairs = (0.0, len(y) - 1) if self._last is None else (self._last, len(y))
        z = y - self._origin
        products = z[0] * before + z[1:] @ z[:-1]
        self._sums += np.array([z.sum(), z @ z, products, pairs])
        self._last = float(z[-1])

    def constant(self) -> list[int]:
        """Columns that never varied."""
        return [int(j) for j in np.flatnonzero(self.low == self.high)]

    def duplicates(self) -> list[tuple[int, int]]:
        """Pairs of a column and a later one that always equalled it."""
        return [(known, j) for j, known in (self._twins or {}).items()]

    def neighbour_correlation(self) -> float:
        """Of each target with the one before it."""
        total, squares, products, pairs = self._sums
        if self.rows < 2:
            return 0.0
        mean = total / self.rows
        variance = squares / self.rows - mean**2
        return float((products / pairs - mean**2) / variance) if variance > 0 else 0.0


def _equal_columns(X: DesignMatrix) -> list[tuple[int, int]]:
    """Pairs of a column and the first that it equals.

    Equal columns have equal sums with any weights, up to rounding; only such pairs are compared.
    """
    sums = X.transpose_dot(np.cos(np.arange(X.shape[0], dtype=np.float64)))
    order = np.argsort(sums, kind="stable")
    close = 1e-11 * np.abs(sums).max(initial=0.0)
    pairs, group = [], list(order[:1])
    for before, j in itertools.pairwise(order):
        if sums[j] - sums[before] > max(1e-9 * abs(sums[j]), close):
            group = []
        known = next((other for other in group if _equal(X, other, j)), None)
        if known is None:
            group.append(j)
        else:
            pairs.append((int(max(j, known)), int(min(j, known))))
    return sorted(pairs)


def _equal(X: DesignMatrix, i: int, j: int) -> bool:
    """Two columns are the same in every row."""
    one, other = X.columns([i, j]).T
    return bool(np.array_equal(one, other))
