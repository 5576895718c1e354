"""The end of a pass: an estimate from the sums and the kept rows, and its measured excess."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.families import Family
from tangograd.glm.one_pass.corrected_loss import CorrectedLoss
from tangograd.glm.one_pass.expansion import Expansion, expand_at
from tangograd.glm.one_pass.linear_algebra import (
    Factor,
    IndefiniteError,
    factorize,
    independent_columns,
    solve,
)
from tangograd.glm.one_pass.minimize import minimize
from tangograd.glm.one_pass.quadratic import QuadraticModel
from tangograd.glm.one_pass.row_sample import Kept, RowSample
from tangograd.glm.one_pass.start import null_predictor
from tangograd.glm.one_pass.working_rows import apply, outer_products

Array = NDArray[np.float64]

#: a claim above this has the fallbacks tried
DOUBTFUL = 0.1
#: the estimate from kept rows alone misses rare levels: its claim counts so many times
ALONE = 4.0
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Finish:
    """The result in working coordinates, for the columns that are not aliased.

    Attributes:
        theta: shape (outputs, columns); 0 where a column is aliased.
        columns: those that are not aliased.
        hessian: of the loss (with the penalty) at theta, over outputs × ``columns``.
        covariance: its inverse, without dispersion and excess; NaN if it is not definite.
        meat: ``Σ w² (s ⊗ z)(s ⊗ z)ᵀ``, estimated from the kept rows unless summed on the way.
        excess: the measured excess: squared Fisher distance to the maximum-likelihood estimate,
            over the number of coefficients; infinite if nothing is known.
        corrected: False if the sums along the path were of no use.
        loss: ``Σ w loss`` at theta, without the penalty.
        loss_error: its standard error.
        pearson: ``Σ w s²/f`` at theta.
        leverage: of the kept rows.
        influence: of the kept rows: how far each moves the estimate, as a squared distance in
            standard errors, ``w² sᵀ Z C Zᵀ s / φ``.
        kept: the kept rows.
        probability: with which each was kept.
    """

    theta: Array
    columns: NDArray[np.intp]
    hessian: Array
    covariance: Array
    meat: Array
    excess: float
    corrected: bool
    loss: float
    loss_error: float
    pearson: float
    leverage: Array
    influence: Array
    kept: Kept
    probability: Array


@dataclass(frozen=True)
class PathTotals:
    """Sums over all rows at the points where they were expanded."""

    loss: float
    pearson: float
    weight: float


@dataclass(frozen=True)
class _Attempt:
    """A candidate for the result and the excess that it claims."""

    claim: float
    theta: Array
    hessian: Array
    model: CorrectedLoss

    @classmethod
    def failed(cls, model: CorrectedLoss, theta: Array) -> _Attempt:
        return cls(np.inf, theta, model.J, model)


def finish(
    family: Family,
    quadratic: QuadraticModel,
    sample: RowSample,
    totals: PathTotals,
    *,
    theta: Array,
    prior: Array,
    penalty: Array,
    intercept: bool,
) -> Finish:
    """Minimize the corrected loss and measure what its sampling error is worth.

    Where the claim exceeds 10%, three other estimates are tried: one step with the path's own
    curvature, shrunk by its noise; the same minimization from the kept rows' own estimate; and
    that estimate. The least claim wins.

    Args:
        family: the family.
        quadratic: the sums of expansions.
        sample: the kept rows.
        totals: further sums along the path.
        theta: where the path ended, shape (outputs, columns).
        prior: precision of the prior of the kept rows' own estimate, diagonal, flat.
        penalty: second derivative of the penalty.
        intercept: the last column is a constant.
    """
    kept = sample.kept()
    if kept is None:
        raise ValueError("there are no rows to finish")
    probability = sample.inclusion(kept)
    outputs, q = theta.shape
    constant = q - 1 if intercept else None
    columns = independent_columns(_column_gram(quadratic.J, outputs), constant)
    flat = (np.arange(outputs)[:, None] * q + columns).ravel()
    square = np.ix_(flat, flat)
    rows = kept.rows.only(columns)
    path = expand_at(family, kept.eta, rows.y)
    pull = penalty[square]
    corrected = CorrectedLoss(
        family,
        rows,
        1 / probability,
        path,
        quadratic.J[square] + pull,
        quadratic.z[flat],
        quadratic.c0,
    )
    own_prior = np.diag(prior[flat]) + pull
    alone = CorrectedLoss(family, rows, 1 / probability, None, own_prior, np.zeros(len(flat)), 0.0)
    estimator = _Estimator(family, corrected, alone, totals, pull)
    best = estimator.best(theta.ravel()[flat])
    return estimator.described(best, columns, q, kept, probability)


class _Estimator:
    """The candidates for the result."""

    def __init__(
        self,
        family: Family,
        corrected: CorrectedLoss,
        alone: CorrectedLoss,
        totals: PathTotals,
        penalty: Array,
    ) -> None:
        self.family, self.corrected, self.alone = family, corrected, alone
        self.totals, self.penalty = totals, penalty

    def best(self, path_theta: Array) -> _Attempt:
        """Return the candidate with the least claim."""
        try:
            begin = solve(self.corrected.J, self.corrected.z)
        except IndefiniteError:
            begin = path_theta
        best = self._minimized(self.corrected, begin)
        if best.claim <= DOUBTFUL:
            return best
        own = self._minimized(self.alone, self._own_start())
        candidates = [
            best,
            self._one_step(begin),
            self._minimized(self.corrected, own.theta),
            _Attempt(ALONE * own.claim, own.theta, own.hessian, own.model),
        ]
        return min(candidates, key=lambda attempt: attempt.claim)

    def _own_start(self) -> Array:
        rows = self.corrected.rows
        weights = rows.weights * self.corrected.factor
        begin = np.zeros((self.family.outputs, rows.Z.shape[1]))
        if (rows.Z[:, -1] == 1).all():
            begin[:, -1] = null_predictor(self.family, rows.y, weights) - np.average(
                rows.offset, weights=weights
            )
        return begin.ravel()

    def _minimized(self, model: CorrectedLoss, theta: Array) -> _Attempt:
        found = minimize(
            model.value, model.slope, theta, tolerance=TOLERANCE * len(theta), size=model.size
        )
        if not found.converged:
            return _Attempt(np.inf, found.theta, found.hessian, model)
        try:
            factor = factorize(found.hessian)
        except IndefiniteError:
            return _Attempt(np.inf, found.theta, found.hessian, model)
        noise = model.sampling_error(found.theta, factor)
        if model.path is None:  # what the prior does to it
            pull = model.J @ found.theta
            noise += float(pull @ factor.solve(pull))
        return self._attempt(noise, found.theta, found.hessian, model)

    def _one_step(self, theta: Array) -> _Attempt:
        """One step with the path's curvature; what it moves is claimed as error."""
        model = self.corrected
        try:
            factor = factorize(model.J)
        except IndefiniteError:
            return _Attempt.failed(model, theta)
        step = factor.solve(model.slope(theta).gradient)
        noise = model.sampling_error(theta, factor)
        move = float(step @ model.J @ step)
        theta = theta - max(0.0, 1 - noise / max(move, 1e-300)) * step
        return self._attempt(noise + move, theta, model.J, model)

    def _attempt(
        self, noise: float, theta: Array, hessian: Array, model: CorrectedLoss
    ) -> _Attempt:
        claim = noise / (len(theta) * self.dispersion(theta))
        if not np.isfinite(claim) or not np.isfinite(theta).all():
            return _Attempt.failed(model, theta)
        return _Attempt(claim, theta, hessian, model)

    def dispersion(self, theta: Array) -> float:
        """Return φ of the model, without a correction for degrees of freedom."""
        if not self.family.estimates_dispersion:
            return 1.0
        return max(self.pearson(theta) / self.totals.weight, 1e-300)

    def pearson(self, theta: Array) -> float:
        """Return ``Σ w s²/f`` at θ.

        The sum along the path is moved to θ by twice the change of the loss, which is known better
        than the sum's own change (and is exactly it for gaussian models); kept rows add the rest.
        """
        model = self.corrected
        if self.family.outputs > 1 or model.path is None:
            return float("nan")
        a = model.factor * model.rows.weights
        here = expand_at(self.family, model.predictor(theta), model.rows.y)
        there = model.path
        penalty = 0.5 * float(theta @ self.penalty @ theta)
        change = model.value(theta) - penalty - self.totals.loss
        rest = _pearson(here) - _pearson(there) - 2 * (here.loss - there.loss)
        total = self.totals.pearson + 2 * change + float(a @ rest)
        if total > 0:
            return total
        return float(a @ _pearson(here))

    def described(
        self,
        best: _Attempt,
        columns: NDArray[np.intp],
        q: int,
        kept: Kept,
        probability: Array,
    ) -> Finish:
        """Return the result with everything that is measured at it."""
        model, b = best.model, best.theta
        outputs = self.family.outputs
        rows = model.rows
        here = expand_at(self.family, model.predictor(b), rows.y)
        try:
            factor: Factor | None = factorize(best.hessian)
        except IndefiniteError:
            factor = None
        if factor is None:
            covariance = np.full_like(best.hessian, np.nan)
            leverage = influence = np.full(len(rows), np.nan)
        else:
            covariance = factor.inverse()
            spread = _predictor_covariance(rows.Z, covariance, outputs)
            leverage = rows.weights * np.einsum("nkj,nkj->n", here.fisher, spread)
            pull = rows.weights[:, None] * here.score
            influence = (pull * apply(spread, pull)).sum(axis=1) / self.dispersion(b)
        theta = np.zeros((outputs, q))
        theta[:, columns] = b.reshape(outputs, -1)
        meat = outer_products(rows, here.score * (rows.weights * np.sqrt(model.factor))[:, None])
        extra = self.penalty if model.path is not None else model.J  # no part of the loss
        loss = model.value(b) - 0.5 * float(b @ extra @ b)
        return Finish(
            theta=theta,
            columns=columns,
            hessian=best.hessian,
            covariance=covariance,
            meat=meat,
            excess=best.claim,
            corrected=model.path is not None and np.isfinite(best.claim),
            loss=loss,
            loss_error=model.value_error(b),
            pearson=self.pearson(b),
            leverage=leverage,
            influence=influence,
            kept=kept,
            probability=probability,
        )


def _pearson(at: Expansion) -> Array:
    """Return ``s²/f`` of each row."""
    f = at.fisher[:, 0, 0]
    return np.where(f > 0, at.score[:, 0] ** 2 / np.where(f > 0, f, 1.0), 0.0)


def _column_gram(J: Array, outputs: int) -> Array:
    """Return the sum of the outputs' own blocks."""
    q = len(J) // outputs
    blocks = J.reshape(outputs, q, outputs, q)
    return np.asarray(sum(blocks[k, :, k] for k in range(outputs)))


def _predictor_covariance(Z: Array, covariance: Array, outputs: int) -> Array:
    """Return ``Z_n C Z_nᵀ`` of each row, shape (n, outputs, outputs)."""
    q = Z.shape[1]
    C = covariance.reshape(outputs, q, outputs, q)
    result = np.empty((len(Z), outputs, outputs))
    for k in range(outputs):
        for j in range(k + 1):
            form = ((Z @ C[k, :, j]) * Z).sum(axis=1)
            result[:, k, j] = result[:, j, k] = form
    return result
