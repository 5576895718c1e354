"""The model with an intercept alone, along the stream, where rows have offsets."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.families import Family
from tangograd.glm.one_pass.expansion import BlockSums, expand, expand_at, sum_expansions
from tangograd.glm.one_pass.quadratic import QuadraticModel
from tangograd.glm.one_pass.start import constant_predictor
from tangograd.glm.one_pass.totals import RunningTotals
from tangograd.glm.one_pass.working_rows import WorkingRows

Array = NDArray[np.float64]


@dataclass
class NullModel:
    """A path in one dimension: its loss has no formula once there are offsets.

    Attributes:
        quadratic: the sum of the rows' expansions as a function of the intercept.
        active: an offset was seen.
    """

    quadratic: QuadraticModel = field(default_factory=lambda: QuadraticModel(1))
    active: bool = False

    def add(self, family: Family, rows: WorkingRows, before: RunningTotals) -> None:
        """Add a block, given the totals of the rows before."""
        if family.outputs > 1 or not (self.active or rows.offset.any()):
            return
        ones = rows.with_columns(np.ones((len(rows), 1)))
        if not self.active:
            self.active = True
            self._add_rows_without_offset(family, before)
        if self.quadratic.blocks:
            eta = np.array([self.predictor])
        else:
            eta = constant_predictor(family, rows.y, rows.weights, rows.offset)
        expansion = expand(family, eta + rows.offset[:, None], rows.y)
        self.quadratic.add(sum_expansions(ones, expansion))

    def _add_rows_without_offset(self, family: Family, before: RunningTotals) -> None:
        if before.rows == 0:
            return
        mean = np.array([before.mean])
        eta = family.linear_predictor(mean)
        f = before.weight * float(expand_at(family, eta[:, None], mean).fisher[0, 0, 0])
        at = float(eta[0])
        loss = before.null_loss(family)
        self.quadratic.add(BlockSums(np.array([[f]]), np.array([f * at]), loss + 0.5 * f * at**2))

    @property
    def predictor(self) -> float:
        """The intercept so far."""
        return float(self.quadratic.z[0] / self.quadratic.J[0, 0])

    def loss(self, family: Family, totals: RunningTotals) -> float:
        """Return Σ w loss at its best intercept."""
        if not self.active:
            return totals.null_loss(family)
        return self.quadratic.c0 - 0.5 * self.predictor * float(self.quadratic.z[0])

    def merge(self, other: NullModel, family: Family, own: RunningTotals, its: RunningTotals) -> None:
        """Add the model of other rows, given the totals of both."""
        if not (self.active or other.active):
            return
        if not self.active:
            self._add_rows_without_offset(family, own)
        if not other.active:
            other = NullModel()
            other._add_rows_without_offset(family, its)
        self.active = True
        self.quadratic.merge(other.quadratic)
