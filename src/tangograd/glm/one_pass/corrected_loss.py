"""The difference estimator: sums along the path, corrected by the kept rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.families import Family
from tangograd.glm.one_pass.expansion import Expansion, expand_at
from tangograd.glm.one_pass.linear_algebra import Factor
from tangograd.glm.one_pass.minimize import Slope
from tangograd.glm.one_pass.working_rows import WorkingRows, gram, outer_products, weighted_sum

Array = NDArray[np.float64]


@dataclass
class CorrectedLoss:
    """An estimate of ``Σ w loss`` over all rows as a function of the flat θ.

    With q_i the expansion of row i on the path and a_i the inverse of the probability that it was
    kept, it is the quadratic ``Σ w q = c0 - zᵀθ + θᵀJθ/2``, known exactly, plus
    ``Σ_kept a w (loss - q)``: unbiased, with an error that vanishes where the expansions are right.
    Without a path (J of a prior, no expansions) it is the kept rows' own weighted loss.

    Attributes:
        family: the family.
        rows: the kept rows.
        factor: a, shape (n,).
        path: the expansions of the kept rows; None for the kept rows' own loss.
        J: curvature of the quadratic (or of the prior), the penalty included.
        z: its linear part.
        c0: its constant part.
    """

    family: Family
    rows: WorkingRows
    factor: Array
    path: Expansion | None
    J: Array
    z: Array
    c0: float

    @property
    def size(self) -> float:
        """The sum of the weights, estimated."""
        return float(self.factor @ self.rows.weights)

    def predictor(self, theta: Array) -> Array:
        """Return η of the kept rows, offset included."""
        shape = self.family.outputs, self.rows.Z.shape[1]
        return self.rows.predictor(theta.reshape(shape)) + self.rows.offset[:, None]

    def value(self, theta: Array) -> float:
        """Return the estimate of the loss."""
        rest = (self.factor * self.rows.weights) @ self.remainder(theta)
        return float(theta @ (self.J @ theta) / 2 - self.z @ theta + self.c0 + rest)

    def remainder(self, theta: Array) -> Array:
        """Return what the expansion of each kept row lacks."""
        eta = self.predictor(theta)
        loss = expand_at(self.family, eta, self.rows.y).loss
        return loss if self.path is None else loss - self.path.at(eta)

    def score_remainder(self, theta: Array) -> Array:
        """Return its weighted derivative, shape (n, outputs)."""
        eta = self.predictor(theta)
        score = expand_at(self.family, eta, self.rows.y).score
        rest = score if self.path is None else score - self.path.score_at(eta)
        return np.asarray(self.rows.weights[:, None] * rest)

    def slope(self, theta: Array) -> Slope:
        """Return the derivatives; the substitute for an indefinite Hessian is the path's."""
        rows, eta = self.rows, self.predictor(theta)
        here = expand_at(self.family, eta, rows.y)
        a = (self.factor * rows.weights)[:, None]
        gradient = self.J @ theta - self.z
        if self.path is None:
            gradient += weighted_sum(rows, a * here.score)
            hessian = self.J + gram(rows, a[:, :, None] * here.curvature)
            fisher = self.J + gram(rows, a[:, :, None] * here.fisher)
            return Slope(gradient, hessian, fisher)
        gradient += weighted_sum(rows, a * (here.score - self.path.score_at(eta)))
        change = here.curvature - self.path.curvature
        return Slope(gradient, self.J + gram(rows, a[:, :, None] * change), self.J)

    def sampling_error(self, theta: Array, hessian: Factor) -> float:
        """Return ``tr(H⁻¹ V)``, V being the variance of the gradient over samples."""
        rest = self.score_remainder(theta) * np.sqrt(self.factor * (self.factor - 1))[:, None]
        return float(np.vdot(hessian.inverse(), outer_products(self.rows, rest)))

    def value_error(self, theta: Array) -> float:
        """Return the standard error of `value`."""
        rest = self.rows.weights * self.remainder(theta)
        return float(np.sqrt((self.factor * (self.factor - 1)) @ rest**2))
