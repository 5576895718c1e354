"""Rows of a table in memory: features, targets, weights and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.matrices.base import Array, DesignMatrix
from tangograd.glm.matrices.dense import Dense
from tangograd.glm.numerics.jit import Compiled


class _BlockFields(NamedTuple):
    X: DesignMatrix
    y: Array
    weights: Array
    offset: Array
    first_row: int = 0


class Block(Compiled, _BlockFields):
    """Some rows.

    Attributes:
        X: the features.
        y: targets, or numbers of classes, shape (n,).
        weights: of the rows, shape (n,).
        offset: added to η, shape (n,).
        first_row: number of the first row in the whole table, by which rows are hashed.
    """

    def __len__(self) -> int:
        return len(self.y)

    def _replace(self, **fields: Any) -> Block:  # that of named tuples relies on their length
        return Block(**(self._asdict() | fields))

    def take(self, rows: slice | NDArray[np.int64]) -> Block:
        """Return some rows; a slice shares memory, and keeps the numbers of the rows."""
        first = self.first_row
        if isinstance(rows, slice):
            first += rows.indices(len(self))[0]
        parts = (self.X.take(rows), self.y[rows], self.weights[rows], self.offset[rows])
        return Block(*parts, first)

    def with_weight(self) -> Block:
        """Return the rows whose weight is not 0."""
        return self if self.weights.all() else self.take(np.flatnonzero(self.weights))

    def copy(self) -> Block:
        """Return the same with arrays of its own."""
        parts = (self.X.copy(), self.y.copy(), self.weights.copy(), self.offset.copy())
        return Block(*parts, self.first_row)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.X.nbytes + self.y.nbytes + self.weights.nbytes + self.offset.nbytes


def concatenate(blocks: Sequence[Block]) -> Block:
    """Return the rows of all blocks; narrower ones have zeros in the columns that they lack."""
    if len(blocks) == 1:
        return blocks[0]
    width = max(block.X.shape[1] for block in blocks)
    matrices = [block.X.widened(width) for block in blocks]
    kind = type(matrices[0])
    if any(type(X) is not kind for X in matrices):
        kind, matrices = Dense, [Dense(X.toarray()) for X in matrices]
    y, weights, offset = (np.concatenate([block[part] for block in blocks]) for part in (1, 2, 3))
    return Block(kind.concatenated(matrices), y, weights, offset, blocks[0].first_row)


def split(block: Block, size: int, first: int = 0) -> Iterator[Block]:
    """Yield consecutive parts of this size; the first of another size if that is not 0."""
    start, end = 0, first or size
    while start < len(block):
        yield block.take(slice(start, end))
        start, end = end, end + size


def rechunk(blocks: Iterable[Block], size: int) -> Iterator[Block]:
    """Yield the same rows in blocks of one size; the last may be smaller."""
    held: list[Block] = []
    waiting = 0
    for block in blocks:
        for part in split(block, size, size - waiting):
            held.append(part)
            waiting += len(part)
            if waiting == size:
                yield concatenate(held)
                held, waiting = [], 0
    if held:
        yield concatenate(held)
