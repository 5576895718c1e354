"""Maximum likelihood of generalised linear models, the slow and exact way, for the GLM benchmarks.

The estimate is found by Newton's method with step halving, over blocks of rows, on centred and
scaled columns, until the gradient is 1e-10 of its terms. All families have a loss that is convex in
the linear predictor, so that this cannot end anywhere else.

The coefficients come flat: for each outcome the intercept, then the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from glm_families import Array, Family
from scipy import sparse

Matrix = Any  # a dense array or a SciPy CSR matrix
BLOCK = 2**21  # numbers
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Estimate:
    """What maximum likelihood says.

    Attributes:
        theta: the coefficients, shape (outcomes * (columns + 1),).
        dispersion: φ, Pearson's estimate where the family leaves it free, else 1.
        pearson: Pearson's estimate for any family: far from 1 where the model is wrong.
        iterations: of Newton's method over all rows.
        gradient: the largest entry of the mean gradient, relative to the mean |∂ loss/∂η|.
    """

    theta: Array
    dispersion: float
    pearson: float
    iterations: int
    gradient: float


def blocks(X: Matrix) -> Iterator[tuple[slice, Array]]:
    """Slices of rows, and the rows as dense float64."""
    size = max(1, BLOCK // X.shape[1])
    for start in range(0, X.shape[0], size):
        rows = slice(start, min(start + size, X.shape[0]))
        part = X[rows]
        yield rows, (part.toarray() if sparse.issparse(part) else part).astype(np.float64, "C")


@dataclass(frozen=True)
class _Standardised:
    """[1, (X - mean) / scale], a block at a time."""

    X: Matrix
    mean: Array
    scale: Array

    @classmethod
    def of(cls, X: Matrix) -> _Standardised:
        n = X.shape[0]
        mean = sum(part.sum(0) for _, part in blocks(X)) / n
        scale = np.sqrt(sum(((part - mean) ** 2).sum(0) for _, part in blocks(X)) / n)
        if not scale.all():
            raise ValueError(f"columns {np.flatnonzero(scale == 0)} are constant")
        return cls(X, mean, scale)

    def head(self, rows: int) -> _Standardised:
        return _Standardised(self.X[:rows], self.mean, self.scale)

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        for rows, part in blocks(self.X):
            part -= self.mean
            part /= self.scale
            yield rows, np.column_stack([np.ones(len(part)), part])

    def original(self, theta: Array) -> Array:
        """The coefficients of [1, X] from those of the standardised columns, (outcomes, d + 1)."""
        slopes = theta[:, 1:] / self.scale
        return np.column_stack([theta[:, 0] - slopes @ self.mean, slopes])


def maximum_likelihood(X: Matrix, y: Array, family: Family) -> Estimate:
    """The maximum-likelihood estimate, with an intercept, to 1e-10 in the relative gradient.

    Raises:
        RuntimeError: there is no maximum (separated classes, dependent columns), or it was not
            reached within 100 steps.
    """
    design = _Standardised.of(X)
    n, d = X.shape
    theta = np.zeros((family.outcomes, d + 1))
    some = max(20_000, 50 * (d + 1) * family.outcomes)
    if n > 4 * some:  # most of the way on a part of the rows; a ridge, as it may lack some levels
        theta, _, _ = _newton(design.head(some), y, family, theta, ridge=1e-3, tolerance=1e-3)
    theta, iterations, gradient = _newton(design, y, family, theta)
    pearson = 0.0
    for rows, part in design.blocks():
        eta = part @ theta.T
        pearson += float(family.pearson(eta, y[rows]).sum())
    pearson /= family.outcomes * n - theta.size
    theta = design.original(theta).ravel()
    return Estimate(theta, pearson if family.free else 1.0, pearson, iterations, gradient)


def _newton(
    design: _Standardised,
    y: Array,
    family: Family,
    theta: Array,
    *,
    ridge: float = 0.0,
    tolerance: float = TOLERANCE,
) -> tuple[Array, int, float]:
    loss, gradient, hessian, size = _sums(design, y, family, theta, ridge)
    if theta.any():
        fresh = _sums(design, y, family, np.zeros_like(theta), ridge)
        if not loss < fresh[0]:  # outliers among the other rows: the start is no good
            theta, (loss, gradient, hessian, size) = np.zeros_like(theta), fresh
    for iteration in range(100):
        relative = float(np.abs(gradient).max() / size)
        if relative <= tolerance:
            return theta, iteration, relative
        step = -np.linalg.solve(hessian, gradient.ravel()).reshape(theta.shape)
        promised = -float((step * gradient).sum())
        for halving in range(60):
            trial = theta + 0.5**halving * step
            sums = _sums(design, y, family, trial, ridge)
            rounding = 1e-13 * abs(loss)
            if sums[0] <= loss - 1e-4 * 0.5**halving * promised + rounding:
                break
        theta, (loss, gradient, hessian, size) = trial, sums
    raise RuntimeError(f"no convergence: the relative gradient is {relative:.1e} after 100 steps")


def _sums(
    design: _Standardised, y: Array, family: Family, theta: Array, ridge: float
) -> tuple[float, Array, Array, float]:
    """Mean loss, gradient, Hessian, and mean |∂ loss/∂η|, all at theta (outcomes, d + 1)."""
    n, (m, p) = design.X.shape[0], theta.shape
    loss, size = ridge * float((theta**2).sum()) / 2, 1e-300
    gradient, hessian = ridge * theta, ridge * np.eye(m * p)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for rows, part in design.blocks():
            eta = part @ theta.T
            target = y[rows]
            loss += float(family.loss(eta, target).sum()) / n
            if not np.isfinite(loss):
                return np.inf, gradient, hessian, size
            slope = family.slope(eta, target)
            size += float(np.abs(slope).sum()) / (n * m)
            gradient = gradient + slope.T @ part / n
            curvature = family.curvature(eta, target) / n
            for a in range(m):
                for b in range(a + 1):
                    square = (part * curvature[:, a, b, None]).T @ part
                    hessian[a * p : a * p + p, b * p : b * p + p] += square
                    if a != b:
                        hessian[b * p : b * p + p, a * p : a * p + p] += square.T
    return loss, gradient, hessian, size


def ratio(theta: Array, best: Estimate, X: Matrix, family: Family) -> float:
    """Variance in units of maximum likelihood's: ``1 + n/d' (θ - θ̂)ᵀ F (θ - θ̂) / φ``.

    F is the mean expected Fisher matrix at θ̂, the maximum-likelihood estimate, and d' the number of
    coefficients, intercepts included.
    """
    if not np.isfinite(theta).all():
        return float("inf")
    centre = best.theta.reshape(family.outcomes, -1)
    move = np.asarray(theta, np.float64).reshape(centre.shape) - centre
    total = 0.0
    for _, part in blocks(X):
        eta = part @ centre[:, 1:].T + centre[:, 0]
        change = part @ move[:, 1:].T + move[:, 0]
        total += float(np.einsum("na,nab,nb->", change, family.fisher(eta), change))
    return 1 + total / (best.dispersion * best.theta.size)
