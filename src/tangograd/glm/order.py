"""The order in which ``fit`` goes through rows in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from tangograd.glm import engine
from tangograd.glm.matrices import Block

Array = NDArray[np.float64]

#: rows are shuffled in runs of about so many bytes, which memory reads at once,
RUN_BYTES = 32768
#: unless neighbouring targets correlate by more than this: then one by one
TOGETHER = 0.02


class Shuffled:
    """The rows in one random order of runs of neighbours, or as they are; block after block."""

    def __init__(
        self, rows: Block, shuffle: bool, random_state: int | np.random.RandomState | None
    ) -> None:
        self.rows = rows
        self.shuffle = shuffle and rows.X.nbytes > engine.BUFFER_BYTES
        self.rng = check_random_state(random_state)
        self.order: NDArray[np.int64] | None = None  # of the last iteration

    def __iter__(self) -> Iterator[Block]:
        if not self.shuffle:
            yield self.rows
            return
        n = len(self.rows)
        apart = _neighbour_correlation(self.rows.y) > TOGETHER
        run = 1 if apart else max(1, RUN_BYTES * n // max(self.rows.X.nbytes, 1))
        starts = self.rng.permutation(-(-n // run)) * run
        order = (starts[:, None] + np.arange(run)).ravel()
        if n % run:
            order = order[order < n]
        self.order = order
        yield from self.again()

    def again(self) -> Iterator[Block]:
        """Yield the rows in the order of the last iteration."""
        if self.order is None:
            yield self.rows
            return
        X, y, w, offset, _ = self.rows
        same = [bool((column == column[0]).all()) for column in (w, offset)]
        for begin in range(0, len(self.rows), engine.BLOCK_ROWS):
            here = self.order[begin : begin + engine.BLOCK_ROWS]
            w_here, offset_here = (
                column[: len(here)] if is_same else column[here]
                for column, is_same in zip((w, offset), same, strict=True)
            )
            yield Block(X.take(here), y[here], w_here, offset_here)

    def places(self) -> NDArray[np.int64]:
        """Return the numbers of the rows that have a weight, in the order of the last iteration."""
        order = np.arange(len(self.rows)) if self.order is None else self.order
        return np.asarray(order[self.rows.weights[order] != 0], np.int64)


def _neighbour_correlation(y: Array) -> float:
    z = y - y.mean()
    return float(z[1:] @ z[:-1] / max(float(z @ z), 1e-300))
