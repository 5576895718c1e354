"""How good predictions are on rows that were held out, in figures and as data of pictures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy

from tangograd.glm.fitted import Array

Metrics = dict[str, float | None]
TINY = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class HeldOut:
    """Rows that were not learned from, with what the model says of them.

    Attributes:
        y: shape (n,): the targets; for classes their numbers, 0, 1, … in the model's order.
        mean: the predicted means, shape (n,); for classes their probabilities, shape (n, classes),
            or for two classes the probability of the second alone.
        eta: the linear predictors, shape (n,), offset included; ``None`` where there are several.
        weights: shape (n,); all one by default.
        pearson: shape (n,): ``(y - mean) / sqrt(φ V(mean) / weight)``, of variance 1 under the
            model; not needed for classes, where it follows from the above.
    """

    y: Array
    mean: Array
    eta: Array | None = None
    weights: Array | None = None
    pearson: Array | None = None


@dataclass(frozen=True)
class Calibration:
    """Observed against predicted means, in bins of equal weight; each of shape (bins,).

    Attributes:
        predicted: the mean prediction in the bin.
        observed: the mean target.
        standard_error: of the observed mean; NaN where the bin has a single row.
        weight: the sum of the weights.
    """

    predicted: Array
    observed: Array
    standard_error: Array
    weight: Array


@dataclass(frozen=True)
class ResidualBins:
    """Mean residuals along a predictor, in bins of as many rows, and a sample of single rows.

    Attributes:
        position: the mean predictor in the bin.
        mean: the mean residual.
        standard_error: of that mean; NaN where the bin has a single row.
        points: shape (at most 2000, 2): predictor and residual of rows drawn at random.
    """

    position: Array
    mean: Array
    standard_error: Array
    points: Array


def regression_metrics(
    y: ArrayLike,
    mean: ArrayLike,
    unit_deviance: Callable[[Array, Array], Array],
    null_mean: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    loss: ArrayLike | None = None,
) -> Metrics:
    """How far predicted means are from their targets.

    Args:
        y: the targets, shape (n,).
        mean: the predictions, shape (n,).
        unit_deviance: of targets and means, row by row; that of the family.
        null_mean: the prediction of a model with an intercept alone, learned from the same rows as
            the model: a number, or one for each row (if there is an exposure).
        weights: of the rows.
        loss: minus the log-likelihood of each row.

    Returns:
        n, weight, loss (if given), deviance (a row), d2 (the share of the null model's deviance
        that is explained), rmse, mae, mean_target, mean_prediction; ``None`` for what is undefined
        or infinite.

    Example:
        >>> square = lambda y, mean: (y - mean) ** 2
        >>> found = regression_metrics([1, 2, 4], [1, 3, 3], square, null_mean=2.0)
        >>> round(found["rmse"], 3), round(found["d2"], 3)
        (0.816, 0.6)
    """
    y, mean, w = _columns(y, mean, weights)
    null = np.broadcast_to(np.asarray(null_mean, float), y.shape)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # an infinite mean is None
        deviance = _average(unit_deviance(y, mean), w)
        null_deviance = _average(unit_deviance(y, null), w)
        squared = _average((y - mean) ** 2, w)
    found: Metrics = {"n": len(y), "weight": float(w.sum())}
    if loss is not None:
        found["loss"] = _average(np.asarray(loss, float), w)
    return found | {
        "deviance": deviance,
        "d2": _share(deviance, null_deviance),
        "rmse": None if squared is None else math.sqrt(squared),
        "mae": _average(np.abs(y - mean), w),
        "mean_target": _average(y, w),
        "mean_prediction": _average(mean, w),
    }


def binary_metrics(
    y: ArrayLike,
    probability: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    null_probability: float | None = None,
) -> Metrics:
    """How good the predicted probabilities of a yes are.

    Args:
        y: 0 or 1, shape (n,).
        probability: of a 1, shape (n,).
        weights: of the rows.
        null_probability: the share of ones in the rows that were learned from; by default that of
            these rows.

    Returns:
        n, weight, log_loss, d2 (the share of the log-loss at the null probability that is
        explained), auc (``None`` if all targets are the same), brier, accuracy (at 1/2), base_rate,
        mean_prediction; ``None`` where undefined.

    Example:
        >>> found = binary_metrics([0, 0, 1, 1], [0.1, 0.6, 0.4, 0.9])
        >>> found["auc"], found["accuracy"], found["base_rate"]
        (0.75, 0.5, 0.5)
    """
    y, probability, w = _columns(y, probability, weights)
    base = _average(y, w)
    null = base if null_probability is None else null_probability
    log_loss = _average(_log_loss(y, probability), w)
    null_loss = None if null is None else _average(_log_loss(y, np.full(y.shape, null)), w)
    return {
        "n": len(y),
        "weight": float(w.sum()),
        "log_loss": log_loss,
        "d2": _share(log_loss, null_loss),
        "auc": _auc(y, probability, w),
        "brier": _average((y - probability) ** 2, w),
        "accuracy": _average((probability > 0.5) == (y > 0.5), w),
        "base_rate": base,
        "mean_prediction": _average(probability, w),
    }


def multiclass_metrics(
    codes: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None = None
) -> Metrics:
    """How good the predicted probabilities of several classes are.

    Args:
        codes: the classes' numbers, 0, 1, …, shape (n,).
        probabilities: shape (n, classes).
        weights: of the rows.

    Returns:
        n, weight, log_loss, accuracy, largest_class (the share of the most frequent class, which is
        the accuracy of always guessing it); ``None`` where undefined.

    Example:
        >>> multiclass_metrics([0, 1, 1], [[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.5, 0.3, 0.2]])[
        ...     "accuracy"
        ... ]
        0.6666666666666666
    """
    p = np.asarray(probabilities, float)
    classes = np.asarray(codes, int)
    if p.ndim != 2 or p.shape[0] != len(classes):
        raise ValueError(
            f"probabilities must have a row for each of the {len(classes)} classes observed and a "
            f"column for each class; got shape {p.shape}"
        )
    classes, _, w = _columns(classes, classes, weights)
    classes = classes.astype(int)
    right = p[np.arange(len(classes)), classes]
    shares = np.bincount(classes, weights=w, minlength=1)
    return {
        "n": len(classes),
        "weight": float(w.sum()),
        "log_loss": _average(-np.log(np.clip(right, TINY, 1)), w),
        "accuracy": _average(p.argmax(axis=1) == classes, w) if p.size else None,
        "largest_class": float(shares.max() / w.sum()) if w.sum() > 0 else None,
    }


def calibration(
    mean: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None, bins: int = 10
) -> Calibration:
    """Observed against predicted means, in bins by quantiles of the prediction.

    Equal predictions share a bin, so there may be fewer. The standard error is from the spread in
    the bin; for targets 0 and 1 that of Agresti and Coull (two more of each), which is not 0 in a
    bin without a single 1. Rows with weight 0 or a prediction that is not finite are left out.

    Example:
        >>> found = calibration([0.1, 0.1, 0.3, 0.3], [0, 1, 1, 0], bins=2)
        >>> found.predicted, found.observed
        (array([0.1, 0.3]), array([0.5, 0.5]))
    """
    y, mean, w = _columns(y, mean, weights)
    keep = (w > 0) & np.isfinite(mean)
    y, mean, w = y[keep], mean[keep], w[keep]
    group = _quantile_groups(mean, w, bins)
    count, weight = np.bincount(group), np.bincount(group, w).astype(float)
    observed = np.bincount(group, w * y) / weight
    if np.isin(y, (0.0, 1.0)).all():
        effective = weight**2 / np.bincount(group, w**2)
        share = (observed * effective + 2) / (effective + 4)
        variance = share * (1 - share) / (effective + 4)
    else:
        spread = np.bincount(group, w**2 * (y - observed[group]) ** 2) / weight**2
        variance = np.where(count > 1, spread * count / np.maximum(count - 1, 1), np.nan)
    predicted = np.bincount(group, w * mean) / weight
    return Calibration(predicted, observed, np.sqrt(variance), weight)


def residual_bins(
    position: ArrayLike,
    residual: ArrayLike,
    *,
    bins: int = 20,
    points: int = 2000,
    variance: float | None = None,
    seed: int = 0,
) -> ResidualBins:
    """Mean residuals in bins by quantiles of the linear predictor or the prediction.

    Residuals of a right model average to 0 in every bin.

    Args:
        position: the predictor, shape (n,).
        residual: Pearson's, shape (n,).
        bins: how many, at most; fewer if there are less than 5 rows for each.
        points: how many single rows are sampled, at most.
        variance: of a residual, where it is known (1, for classes: a bin without a single yes has
            no spread to tell it); from the spread in each bin by default.
        seed: of the sample.

    Example:
        >>> residual_bins([0, 0, 1, 1], [1.0, -1.0, 3.0, 1.0], bins=2).mean
        array([1.])
    """
    residual, position, ones = _columns(residual, position, None)
    keep = np.isfinite(residual) & np.isfinite(position)
    residual, position, ones = residual[keep], position[keep], ones[keep]
    group = _quantile_groups(position, ones, max(1, min(bins, len(position) // 5)))
    count = np.bincount(group)
    mean = np.bincount(group, residual) / count
    spread = np.bincount(group, (residual - mean[group]) ** 2)
    if variance is None:
        variances = np.where(count > 1, spread / np.maximum(count - 1, 1) / count, np.nan)
    else:
        variances = variance / count
    chosen = np.arange(len(position))
    if len(chosen) > points:
        chosen = np.sort(np.random.default_rng(seed).choice(len(chosen), points, replace=False))
    return ResidualBins(
        position=np.bincount(group, position) / count,
        mean=mean,
        standard_error=np.sqrt(variances),
        points=np.column_stack([position[chosen], residual[chosen]]),
    )


def _columns(
    y: ArrayLike, mean: ArrayLike, weights: ArrayLike | None
) -> tuple[Array, Array, Array]:
    """As float columns of one length.

    Raises:
        ValueError: they are not.
    """
    first, second = np.asarray(y, float), np.asarray(mean, float)
    w = np.ones(first.shape) if weights is None else np.asarray(weights, float)
    if first.ndim != 1 or first.shape != second.shape or first.shape != w.shape:
        raise ValueError(
            "targets, predictions and weights must be single columns of one length; got shapes "
            f"{first.shape}, {second.shape} and {w.shape}"
        )
    return first, second, w


def _average(values: NDArray[np.float64] | NDArray[np.bool_], weights: Array) -> float | None:
    """The weighted mean; none of no rows, nor where it is not finite."""
    keep = weights > 0
    if not keep.any():
        return None
    mean = float(values[keep] @ weights[keep] / weights[keep].sum())
    return mean if math.isfinite(mean) else None


def _share(part: float | None, whole: float | None) -> float | None:
    """What is explained of the whole; of nothing, there is no share."""
    return None if part is None or not whole or not whole > 0 else 1 - part / whole


def _log_loss(y: Array, probability: Array) -> Array:
    p = np.clip(probability, TINY, 1 - TINY)
    return np.asarray(-xlogy(y, p) - xlogy(1 - y, 1 - p), float)


def _auc(y: Array, probability: Array, weights: Array) -> float | None:
    """How often a row of class 1 has the higher probability of a pair; ties count half."""
    values, place = np.unique(probability, return_inverse=True)
    yes = np.bincount(place, weights * (y > 0.5), len(values))
    no = np.bincount(place, weights * (y <= 0.5), len(values))
    pairs = yes.sum() * no.sum()
    return float(yes @ (np.cumsum(no) - no / 2) / pairs) if pairs > 0 else None


def _quantile_groups(values: Array, weights: Array, bins: int) -> NDArray[np.intp]:
    """Number the rows' bins from 0 without gaps; equal values share a bin."""
    _, place = np.unique(values, return_inverse=True)
    weight = np.bincount(place, weights)
    middle = (np.cumsum(weight) - weight / 2) / weight.sum()
    _, group = np.unique(np.floor(bins * middle), return_inverse=True)
    numbers: NDArray[np.intp] = group[place]
    return numbers
