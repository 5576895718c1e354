"""The model with an intercept alone, along the stream, where rows have offsets."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.families import Family
from tangograd.glm.one_pass.corrected_loss import CorrectedLoss
from tangograd.glm.one_pass.expansion import BlockSums, expand, expand_at, sum_expansions
from tangograd.glm.one_pass.minimize import minimize
from tangograd.glm.one_pass.quadratic import QuadraticModel
from tangograd.glm.one_pass.row_sample import Kept
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
        whole: the first rows had one already, so that all rows were expanded here.
    """

    quadratic: QuadraticModel = field(default_factory=lambda: QuadraticModel(1))
    active: bool = False
    whole: bool = True

    def add(self, family: Family, rows: WorkingRows, before: RunningTotals) -> Array:
        """Add a block, given the totals of the rows before, and return where it was expanded."""
        if family.outputs > 1 or not (self.active or rows.offset.any()):
            return np.zeros(len(rows))
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
        return expansion.eta[:, 0]

    def _add_rows_without_offset(self, family: Family, before: RunningTotals) -> None:
        if before.rows == 0:
            return
        self.whole = False
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

    def loss(self, family: Family, totals: RunningTotals, kept: Kept, factor: Array) -> float:
        """Return Σ w loss at its best intercept.

        Args:
            family: the family.
            totals: of all rows.
            kept: the kept rows, which correct the sum.
            factor: inverse of the probability of each to be kept.
        """
        if not self.active:
            return totals.null_loss(family)
        J, z = self.quadratic.J, self.quadratic.z
        if not self.whole:
            return self.quadratic.c0 - 0.5 * float(z[0] ** 2 / J[0, 0])
        rows = kept.rows.with_columns(np.ones((len(kept), 1)))
        path = expand_at(family, kept.null_eta[:, None], rows.y)
        corrected = CorrectedLoss(family, rows, factor, path, J, z, self.quadratic.c0)
        found = minimize(
            corrected.value, corrected.slope, z / J[0], tolerance=1e-6, size=corrected.size
        )
        return corrected.value(found.theta)

    def merge(
        self, other: NullModel, family: Family, own: RunningTotals, its: RunningTotals
    ) -> None:
        """Add the model of other rows, given the totals of both."""
        if not (self.active or other.active):
            return
        if not self.active:
            self._add_rows_without_offset(family, own)
        if not other.active:
            other = NullModel()
            other._add_rows_without_offset(family, its)
        self.active, self.whole = True, self.whole and other.whole
        self.quadratic.merge(other.quadratic)
