"""The start of a path: units of the columns, a weak prior, and an estimate from the first rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.families import Family
from tangograd.glm.one_pass.coordinates import Coordinates, power_of_two
from tangograd.glm.one_pass.expansion import expand, expand_at, sum_expansions
from tangograd.glm.one_pass.minimize import Slope, minimize
from tangograd.glm.one_pass.penalty import Penalty
from tangograd.glm.one_pass.working_rows import WorkingRows, gram, weighted_sum

Array = NDArray[np.float64]

#: rows of a start: this many, or ROWS_EACH for each column if those are more
ROWS = 10_000
ROWS_EACH = 50
#: and the first steps from this many, and so many for each column
FIRST_ROWS = 1000
FIRST_ROWS_EACH = 10
#: prior precision of the effect of one unit of a column on η; it guides the path alone
PRIOR = 0.01
#: of a constant, and of a column that has not varied yet
FLAT_PRIOR = 1e-10
#: a step worth less, as a Newton decrement, is the last
TOLERANCE = 1e-2
#: the least share of a class that the intercept begins with
LEAST_SHARE = 1e-6


class GrowingArrays(NamedTuple):
    """What a path is held by, for all columns."""

    theta: Array
    J: Array
    z: Array
    unit: Array

    def grown(self, places: NDArray[np.intp], columns: int) -> GrowingArrays:
        """Return the same for more columns: the new ones have a weak prior, and no unit yet."""
        outputs = len(self.theta)
        flat = (np.arange(outputs)[:, None] * columns + places).ravel()
        theta, unit = np.zeros((outputs, columns)), np.zeros(columns)
        J, z = FLAT_PRIOR * np.eye(outputs * columns), np.zeros(outputs * columns)
        theta[:, places], unit[places] = self.theta, self.unit
        J[np.ix_(flat, flat)], z[flat] = self.J, self.z
        return GrowingArrays(theta, J, z, unit)


@dataclass
class Start:
    """Where a path begins; partitions of one table must share it.

    Attributes:
        coordinates: the working coordinates.
        unit: of each column, in working coordinates; 0 while it has been constant. It sets the
            prior and the key of the sample, and nothing else.
        theta: the estimate, shape (outputs, columns).
        J: curvature that holds the path: the prior's, and that of rows it was told of.
        z: its linear part.
    """

    coordinates: Coordinates
    unit: Array
    theta: Array
    J: Array
    z: Array

    def grown(self, coordinates: Coordinates, places: NDArray[np.intp]) -> Start:
        """Return the start with more columns, in which its rows were 0."""
        path = GrowingArrays(self.theta, self.J, self.z, self.unit).grown(
            places, coordinates.columns
        )
        return Start(coordinates, path.unit, path.theta, path.J, path.z)

    @property
    def id(self) -> bytes:
        """A fingerprint: states of equal starts may be merged."""
        parts = (self.coordinates.centre, self.coordinates.scale, self.theta, self.J, self.z)
        digest = hashlib.sha256()
        for part in parts:
            digest.update(np.ascontiguousarray(part).tobytes())
        digest.update(repr(self.coordinates[2:]).encode())
        return digest.digest()[:16]


def rows_needed(columns: int) -> int:
    """Return how many rows a start is made from."""
    return max(ROWS, ROWS_EACH * columns)


def prior_precision(unit: Array, intercept: bool) -> Array:
    """Return the precision of the prior on each coefficient of one output."""
    precision = np.maximum(PRIOR * unit**2, FLAT_PRIOR)
    if intercept:
        precision[-1] = FLAT_PRIOR
    return precision


def robust_coordinates(
    family: Family, X: Array, y: Array, weights: Array, intercept: bool
) -> Coordinates:
    """Return coordinates centred at medians, in the median distance from there.

    The median is over the rows where the distance is not 0, so that it is robust to heavy tails
    and the unit of a dummy column is its 1. A column that is constant so far keeps its own unit.
    """
    centre = np.median(X, axis=0) if intercept else np.zeros(X.shape[1])
    scale = np.ones(X.shape[1])
    for j in range(X.shape[1]):
        distance = np.abs(X[:, j] - centre[j])
        distance = distance[distance > 0]
        if len(distance):
            scale[j] = np.median(distance)
    weight_unit = power_of_two(float(np.median(weights[weights > 0])))
    target_unit = 1.0
    if family.link == "identity":
        distance = np.abs(y - np.median(y))
        distance = distance[distance > 0]
        if len(distance):
            target_unit = power_of_two(float(np.median(distance)))
    return Coordinates(centre, scale, intercept, weight_unit, target_unit)


def fit_start(
    family: Family,
    X: Array,
    y: Array,
    weights: Array,
    offset: Array,
    *,
    intercept: bool = True,
    penalty: float = 0.0,
    theta: Array | None = None,
    hold: bool = False,
) -> Start:
    """Fit the first rows.

    Args:
        family: the family.
        X: their columns, dense, shape (n, d).
        y: their targets.
        weights: their weights, all positive.
        offset: known part of η.
        intercept: fit one.
        penalty: α of ``mean loss + α/2 ‖coefficients‖²``.
        theta: coefficients (outputs, d + 1) of the data's columns to begin with.
        hold: let these rows hold the path too; for partitions whose start was pooled.
    """
    coordinates = robust_coordinates(family, X, y, weights, intercept)
    rows = coordinates.rows(X, y, weights, offset, np.zeros(len(y), np.int64))
    d, q, outputs = X.shape[1], coordinates.columns, family.outputs
    unit = np.ones(q)
    unit[:d] = (rows.Z[:, :d] != 0).any(axis=0)
    prior = np.tile(prior_precision(unit, intercept), outputs)
    pull = Penalty(penalty, coordinates, outputs)
    J = np.diag(prior)
    held = J + pull.matrix(float(rows.weights.sum()))
    if theta is None:
        begin = _null(family, rows, outputs) if intercept else _least_squares(family, rows, outputs)
    else:
        begin = coordinates.to_working(theta if intercept else theta[:, :d])
    few = rows.take(slice(FIRST_ROWS + FIRST_ROWS_EACH * d))
    if len(few) < len(rows):  # most steps need no more
        begin = penalized_fit(family, few, held, begin)
    found = penalized_fit(family, rows, held, begin)
    z = np.zeros(outputs * q)
    if hold:
        sums = sum_expansions(rows, expand(family, _predictors(rows, found), rows.y))
        J, z = J + sums.J, sums.z
    return Start(coordinates, unit, found, J, z)


def penalized_fit(
    family: Family,
    rows: WorkingRows,
    precision: Array,
    theta: Array,
    tolerance: float = TOLERANCE,
) -> Array:
    """Return the estimate from rows in memory under a normal prior, by Fisher scoring."""
    shape = theta.shape
    w = rows.weights

    def value(b: Array) -> float:
        loss = expand_at(family, _predictors(rows, b.reshape(shape)), rows.y).loss
        return float(w @ loss + b @ precision @ b / 2)

    def slope(b: Array) -> Slope:
        found = expand_at(family, _predictors(rows, b.reshape(shape)), rows.y)
        fisher = gram(rows, w[:, None, None] * found.fisher) + precision
        gradient = weighted_sum(rows, w[:, None] * found.score) + precision @ b
        return Slope(gradient, fisher, fisher)

    found = minimize(value, slope, theta.ravel(), tolerance=tolerance, size=float(w.sum()))
    return found.theta.reshape(shape)


def null_predictor(family: Family, y: Array, weights: Array) -> Array:
    """Return η of the mean target, shape (outputs,)."""
    if family.outputs == 1:
        return family.linear_predictor(np.array([np.average(y, weights=weights)]))
    shares = np.bincount(y.astype(np.int64), weights, family.outputs + 1) / weights.sum()
    return family.linear_predictor(np.maximum(shares, LEAST_SHARE))


def _predictors(rows: WorkingRows, theta: Array) -> Array:
    return rows.predictor(theta) + rows.offset[:, None]


def constant_predictor(family: Family, y: Array, weights: Array, offset: Array) -> Array:
    """Return η of the model with an intercept alone, without the offset, shape (outputs,)."""
    ones = WorkingRows.of(np.ones((len(y), 1)), y, weights, offset, np.zeros(len(y), np.int64))
    begin = null_predictor(family, y, weights) - np.average(offset, weights=weights)
    prior = FLAT_PRIOR * np.eye(family.outputs)
    return penalized_fit(family, ones, prior, begin[:, None], tolerance=1e-8)[:, 0]


def _null(family: Family, rows: WorkingRows, outputs: int) -> Array:
    """Return θ of the model with an intercept alone."""
    theta = np.zeros((outputs, rows.Z.shape[1]))
    theta[:, -1] = constant_predictor(family, rows.y, rows.weights, rows.offset)
    return theta


def _least_squares(family: Family, rows: WorkingRows, outputs: int) -> Array:
    """Return θ whose predictors are next to those of ``(y + mean)/2``, for a model without one."""
    if outputs > 1:
        return np.zeros((outputs, rows.Z.shape[1]))
    middle = 0.5 * (rows.y + np.average(rows.y, weights=rows.weights))
    eta = family.linear_predictor(middle) - rows.offset
    return np.asarray(np.linalg.lstsq(rows.Z, eta, rcond=None)[0][None], dtype=np.float64)
