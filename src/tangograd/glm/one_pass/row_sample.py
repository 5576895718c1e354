"""A sample of rows to keep: half of it uniform, half by the size of what a row says."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.numerics.jit import compiled
from tangograd.glm.numerics.row_hash import row_uniform
from tangograd.glm.one_pass.working_rows import WorkingRows, concatenate

Array = NDArray[np.float64]

#: larger than every uniform number
ALL = 2.0


@dataclass
class Kept:
    """Rows of the sample with what was known of them when they were met.

    Attributes:
        rows: the rows.
        eta: where they were expanded, shape (n, outputs).
        null_eta: where they were expanded for the model with an intercept alone, shape (n,).
        key: how large a row is, at its prediction: the key v of the priority half, shape (n,).
        uniform: the random number u of the uniform half, shape (n,).
        priority: ``v / u'``, shape (n,).
    """

    rows: WorkingRows
    eta: Array
    null_eta: Array
    key: Array
    uniform: Array
    priority: Array

    def __len__(self) -> int:
        return len(self.key)

    def take(self, which: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Kept:
        """Return some of the rows."""
        return Kept(
            self.rows.take(which),
            self.eta[which],
            self.null_eta[which],
            self.key[which],
            self.uniform[which],
            self.priority[which],
        )


@dataclass
class RowSample:
    """The ``half`` rows with the least u and the ``half`` with the largest ``v/u'``.

    u and u' are hashes of a row's number in the whole table, so that the sample does not depend on
    how rows were cut into chunks or which worker read them. A row is in the sample with probability
    ``1 - (1 - half/n)(1 - min(1, v/τ))``, τ being the largest priority that was not kept.

    Example: of two samples merged, each row has the same chance as in one.
        >>> sample = RowSample(half=2, seed=0)
        >>> sample.half
        2
    """

    half: int
    seed: int
    rows_seen: int = 0
    threshold: float = 0.0
    largest_uniform: float = ALL
    _parts: list[Kept] = field(default_factory=list)
    _waiting: int = 0  # rows since the last selection

    def offer(self, rows: WorkingRows, eta: Array, null_eta: Array, key: Array) -> None:
        """Add rows; those that cannot be in the sample are not copied."""
        self.rows_seen += len(rows)
        uniform, priority = np.empty(len(rows)), np.empty(len(rows))
        _draw(rows.number, self.seed, key, uniform, priority)
        chosen = np.flatnonzero((uniform <= self.largest_uniform) | (priority >= self.threshold))
        if len(chosen):
            self._parts.append(Kept(rows, eta, null_eta, key, uniform, priority).take(chosen))
            self._waiting += len(chosen)
        if self._waiting >= 2 * self.half:
            self._select()

    def merge(self, other: RowSample) -> None:
        """Add the sample of other rows."""
        self.rows_seen += other.rows_seen
        self._parts += other._parts
        self.threshold = max(self.threshold, other.threshold)
        self.largest_uniform = min(self.largest_uniform, other.largest_uniform)
        self._select()

    def restore(self, kept: Kept) -> None:
        """Set the rows of a sample that was stored."""
        self._parts = [kept]

    def grow(self, places: NDArray[np.intp], columns: int) -> None:
        """Move the columns of the kept rows to these places of more columns."""
        for part in self._parts:
            part.rows = part.rows.grown(places, columns)

    def kept(self) -> Kept | None:
        """Return the sample in order of row numbers; None before the first row."""
        self._select()
        if not self._parts:
            return None
        whole = self._parts[0]
        order = np.argsort(whole.rows.number, kind="stable")
        return whole.take(order)

    def inclusion(self, kept: Kept) -> Array:
        """Return the probability with which each row was kept."""
        uniform = min(1.0, self.half / max(self.rows_seen, 1))
        if self.threshold <= 0:
            return np.ones(len(kept))
        return 1 - (1 - uniform) * (1 - np.minimum(1.0, kept.key / self.threshold))

    def _select(self) -> None:
        """Keep the rows of the sample alone."""
        if not self._parts:
            return
        whole = _joined(self._parts)
        if len(whole) > self.half:
            order = np.partition(whole.uniform, self.half - 1)
            self.largest_uniform = min(self.largest_uniform, float(order[self.half - 1]))
        if len(whole) > self.half:
            rank = len(whole) - self.half - 1
            self.threshold = max(self.threshold, float(np.partition(whole.priority, rank)[rank]))
            whole = whole.take(
                (whole.uniform <= self.largest_uniform) | (whole.priority > self.threshold)
            )
        self._parts, self._waiting = [whole], 0


def _joined(parts: list[Kept]) -> Kept:
    if len(parts) == 1:
        return parts[0]
    names = ("eta", "null_eta", "key", "uniform", "priority")
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return Kept(concatenate([part.rows for part in parts]), *columns)


def uniform_hash(numbers: NDArray[np.int64], seed: int) -> Array:
    """Return the number in (0, 1) of each row that the uniform half goes by, ``u``."""
    result = np.empty(len(numbers))
    _draw(numbers, seed, np.ones(len(numbers)), result, np.empty(len(numbers)))
    return result


@compiled
def _draw(
    numbers: NDArray[np.int64], seed: int, key: Array, uniform: Array, priority: Array
) -> None:
    """Write u and ``key/u'`` of each row."""
    for i in range(len(numbers)):
        uniform[i] = row_uniform(numbers[i], 2 * seed)
        priority[i] = key[i] / row_uniform(numbers[i], 2 * seed + 1)
