"""The result of a pass in the coordinates and units of the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.one_pass.diagnostics import Diagnosis, diagnose
from tangograd.glm.one_pass.finish import Finish
from tangograd.glm.one_pass.state import OnePassState

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Solution:
    """What one pass, or several, say about all rows.

    Coefficients in flat arrays are those of the first output, the intercept (if any) first, then
    those of the next.

    Attributes:
        coefficients: shape (outputs, d + 1), the intercept last; 0 for aliased columns.
        covariance: flat; the excess is included; NaN for aliased columns.
        robust: the sandwich covariance, likewise.
        parameters: coefficients that were estimated.
        dispersion: φ.
        excess: measured, of the variance over maximum likelihood's.
        loss: Σ w loss at the estimate.
        loss_error: its standard error.
        deviance: at the estimate.
        null_deviance: of the model with an intercept alone.
        log_likelihood: at the estimate.
        weight: Σ w.
        rows: how many.
        readings: of the table.
        diagnoses: what is wrong, the most important first.
    """

    coefficients: Array
    covariance: Array
    robust: Array
    parameters: int
    dispersion: float
    excess: float
    loss: float
    loss_error: float
    deviance: float
    null_deviance: float
    log_likelihood: float
    weight: float
    rows: int
    readings: int
    diagnoses: tuple[Diagnosis, ...]


def solution(state: OnePassState, found: Finish) -> Solution:
    """Return a result in the units of the data."""
    family, coordinates, totals = state.family, state.start.coordinates, state.totals
    unit, scale = coordinates.weight_unit, coordinates.target_unit**2
    outputs, _ = found.theta.shape
    p = outputs * len(found.columns)
    weight = totals.weight * unit
    dispersion = 1.0
    if family.estimates_dispersion:
        free = weight - p if weight > p else weight
        dispersion = found.pearson * unit / free
    excess = found.excess if np.isfinite(found.excess) else np.inf
    own = found.covariance / unit
    sandwich = own @ (found.meat * unit**2) @ own
    extra = dispersion * excess if np.isfinite(excess) else np.inf
    to_flat = _jacobian(state, found)
    lost = _lost(state, found)
    covariance = dispersion * (1 + excess) * (to_flat @ own @ to_flat.T)
    robust = to_flat @ (sandwich + extra * own) @ to_flat.T
    for each in (covariance, robust):
        each[lost], each[:, lost] = np.nan, np.nan
    with np.errstate(over="ignore", invalid="ignore"):
        null = state.null_model.loss(family, totals, found.kept, 1 / found.probability)
    loss, saturated = found.loss * unit, totals.saturated * unit
    return Solution(
        coefficients=_with_intercept(state, coordinates.to_original(found.theta.copy())),
        covariance=covariance,
        robust=robust,
        parameters=p,
        dispersion=dispersion * scale,
        excess=excess,
        loss=loss * scale,
        loss_error=found.loss_error * unit * scale,
        deviance=2 * max(loss - saturated, 0.0) * scale,
        null_deviance=2 * max(null * unit - saturated, 0.0) * scale,
        log_likelihood=_log_likelihood(state, loss, dispersion),
        weight=weight,
        rows=totals.rows,
        readings=state.readings,
        diagnoses=tuple(diagnose(state, found)),
    )


def _log_likelihood(state: OnePassState, loss: float, dispersion: float) -> float:
    """Return the log-likelihood, for targets in their own unit."""
    totals, coordinates = state.totals, state.start.coordinates
    unit = coordinates.weight_unit
    weight = totals.weight * unit
    value = state.family.log_likelihood(
        loss, totals.saturated * unit, totals.normalizer * unit, weight, dispersion
    )
    return value - weight * float(np.log(coordinates.target_unit))


def _with_intercept(state: OnePassState, theta: Array) -> Array:
    if state.start.coordinates.intercept:
        return theta
    return np.column_stack([theta, np.zeros(len(theta))])


def _jacobian(state: OnePassState, found: Finish) -> Array:
    """Return the matrix from the estimated coefficients to flat ones of the data."""
    coordinates, outputs = state.start.coordinates, len(found.theta)
    T = coordinates.jacobian()
    if coordinates.intercept:
        T = np.roll(T, 1, axis=0)
    return np.asarray(np.kron(np.eye(outputs), T[:, found.columns]), dtype=np.float64)


def _lost(state: OnePassState, found: Finish) -> NDArray[np.intp]:
    """Return the flat numbers of aliased coefficients."""
    outputs, q = found.theta.shape
    columns = np.setdiff1d(np.arange(q), found.columns)
    if state.start.coordinates.intercept:
        columns = (columns + 1) % q
    return np.asarray((np.arange(outputs)[:, None] * q + columns).ravel(), dtype=np.intp)
