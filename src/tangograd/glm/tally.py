"""Sums over the rows seen that are not needed to learn, but to report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.families import Family
from tangograd.glm.rows import Rows
from tangograd.stream.glm import MULTINOMIAL

Array = NDArray[np.float64]

#: the loss along the stream is noted whenever the rows have grown by so much
TRACE_GROWTH = 1.1


class Tally:
    """Rows, weights, likelihood and deviance.

    Args:
        family: the family.
        classes: how many, for a multinomial family.
    """

    def __init__(self, family: Family, classes: int) -> None:
        self.family = family
        self.rows, self.weight = 0, 0.0
        self.loss, self.pearson = 0.0, 0.0
        self.saturated, self.base = 0.0, 0.0
        self.total, self.shifted, self.shift = 0.0, 0.0, 0.0  # Σ w y, Σ w exp(offset), Σ w offset
        self.offset_null = 0.0
        self.has_offset = False
        self.classes = np.zeros(classes)
        self.trace_rows: list[int] = []
        self.trace_loss: list[float] = []
        self._noted = (0, 0.0, 0.0)  # rows, weight and loss at the last note

    def add(self, blocks: Sequence[Rows], loss: float, pearson: float) -> None:
        """Blocks of rows whose Σ w loss and Σ w s²/f are these."""
        for block in blocks:
            self.rows += len(block)
            self.weight += float(block.w.sum())
            if self.family.code == MULTINOMIAL:
                self.classes += np.bincount(
                    block.y.astype(np.int64), block.w, minlength=len(self.classes)
                )
                continue
            self.total += float(block.w @ block.y)
            self.saturated += float(block.w @ self.family.saturated(block.y))
            self.base += float(block.w @ self.family.base(block.y))
            self.has_offset = self.has_offset or bool(block.offset.any())
            if self.has_offset:
                self.shift += float(block.w @ block.offset)
                self.shifted += float(block.w @ np.exp(np.minimum(block.offset, 50.0)))
            else:
                self.shifted += float(block.w.sum())
        self.loss += loss
        self.pearson += pearson
        if self.has_offset:
            eta = self.null_predictor()
            for block in blocks:
                self.offset_null += float(block.w @ self.family.loss(eta + block.offset, block.y))
        self._note()

    def _note(self) -> None:
        rows, weight, loss = self._noted
        if self.rows < rows * TRACE_GROWTH:
            return
        now = self.loss - self.saturated
        self.trace_rows.append(self.rows)
        self.trace_loss.append((now - loss) / max(self.weight - weight, 1e-300))
        self._noted = (self.rows, self.weight, now)

    def null_predictor(self) -> float:
        """η of the model with an intercept alone, without the offset."""
        mean = self.total / self.weight
        if self.family.link == "log":
            return self.family.predictor(self.total / self.shifted)
        return self.family.predictor(mean) - self.shift / self.weight

    def null_loss(self) -> float:
        """Σ w loss of the model with an intercept alone."""
        if self.family.code == MULTINOMIAL:
            seen = self.classes[self.classes > 0]
            return float(-(seen * np.log(seen / self.weight)).sum())
        if self.has_offset:
            return self.offset_null
        return self.family.null_loss(self.total / self.weight, self.weight)
