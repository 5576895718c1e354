"""Metrics are scikit-learn's, and degenerate rows have none rather than a wrong one."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn import metrics as sk

from tangograd.glm.reports.metrics import (
    binary_metrics,
    calibration,
    multiclass_metrics,
    regression_metrics,
    residual_bins,
)

N = 400
RNG = np.random.default_rng(3)
MEAN = np.exp(RNG.normal(size=N))
COUNTS = RNG.poisson(MEAN).astype(float)
WEIGHTS = RNG.integers(0, 4, N).astype(float)
PROBABILITY = RNG.random(N)
YES = (RNG.random(N) < PROBABILITY).astype(float)
PROBABILITIES = RNG.dirichlet(np.ones(4), N)
CODES = np.array([RNG.choice(4, p=row) for row in PROBABILITIES])


def poisson_deviance(y, mean):
    return 2 * (np.where(y > 0, y * np.log(np.maximum(y, 1) / mean), 0) - (y - mean))


def square(y, mean):
    return (y - mean) ** 2


@pytest.mark.parametrize("w", [None, WEIGHTS], ids=["plain", "weighted"])
def test_regression_metrics_are_scikit_learns(w):
    null = float(np.average(COUNTS, weights=w))
    found = regression_metrics(COUNTS, MEAN, poisson_deviance, null, w, loss=MEAN)
    known = {"sample_weight": w}
    assert found == {
        "n": N,
        "weight": N if w is None else w.sum(),
        "loss": pytest.approx(np.average(MEAN, weights=w)),
        "deviance": pytest.approx(sk.mean_poisson_deviance(COUNTS, MEAN, **known)),
        "d2": pytest.approx(sk.d2_tweedie_score(COUNTS, MEAN, power=1, **known)),
        "rmse": pytest.approx(sk.root_mean_squared_error(COUNTS, MEAN, **known)),
        "mae": pytest.approx(sk.mean_absolute_error(COUNTS, MEAN, **known)),
        "mean_target": pytest.approx(null),
        "mean_prediction": pytest.approx(np.average(MEAN, weights=w)),
    }


def test_null_mean_may_differ_between_rows():
    exposure = np.array([1.0, 2.0, 4.0])
    y = np.array([1.0, 1.0, 6.0])
    found = regression_metrics(y, y, square, 1.5 * exposure)
    assert found["d2"] == 1.0
    assert regression_metrics(y, 1.5 * exposure, square, 1.5 * exposure)["d2"] == 0.0


@pytest.mark.parametrize("w", [None, WEIGHTS], ids=["plain", "weighted"])
def test_binary_metrics_are_scikit_learns(w):
    found = binary_metrics(YES, PROBABILITY, w)
    known = {"sample_weight": w}
    assert found == {
        "n": N,
        "weight": N if w is None else w.sum(),
        "log_loss": pytest.approx(sk.log_loss(YES, PROBABILITY, **known)),
        "d2": pytest.approx(sk.d2_log_loss_score(YES, PROBABILITY, **known)),
        "auc": pytest.approx(sk.roc_auc_score(YES, PROBABILITY, **known)),
        "brier": pytest.approx(sk.brier_score_loss(YES, PROBABILITY, **known)),
        "accuracy": pytest.approx(sk.accuracy_score(YES, PROBABILITY > 0.5, **known)),
        "base_rate": pytest.approx(np.average(YES, weights=w)),
        "mean_prediction": pytest.approx(np.average(PROBABILITY, weights=w)),
    }


def test_binary_null_probability_is_that_of_training():
    found = binary_metrics([0, 1], [0.5, 0.5], null_probability=0.25)
    null = -(math.log(0.75) + math.log(0.25)) / 2
    assert found["d2"] == pytest.approx(1 - math.log(2) / null)


@pytest.mark.parametrize("w", [None, WEIGHTS], ids=["plain", "weighted"])
def test_multiclass_metrics_are_scikit_learns(w):
    found = multiclass_metrics(CODES, PROBABILITIES, w)
    known = {"sample_weight": w}
    shares = np.bincount(CODES, w)
    assert found == {
        "n": N,
        "weight": N if w is None else w.sum(),
        "log_loss": pytest.approx(sk.log_loss(CODES, PROBABILITIES, **known)),
        "accuracy": pytest.approx(sk.accuracy_score(CODES, PROBABILITIES.argmax(1), **known)),
        "largest_class": pytest.approx(shares.max() / shares.sum()),
    }


@pytest.mark.parametrize("y", [[1, 1, 1], [0, 0, 0]])
def test_one_class_has_no_auc(y):
    found = binary_metrics(y, [0.2, 0.5, 0.9])
    assert found["auc"] is None
    assert found["d2"] is None or found["d2"] < 0  # the null model is (almost) never wrong
    assert found["log_loss"] > 0


def test_one_class_by_weight_has_no_auc():
    assert binary_metrics([0, 1, 1], [0.2, 0.5, 0.9], [0, 1, 1])["auc"] is None


def test_certain_and_wrong_is_finite():
    assert 30 < binary_metrics([1.0], [0.0])["log_loss"] < 40
    assert 30 < multiclass_metrics([1], [[1.0, 0.0]])["log_loss"] < 40


NONE = np.empty(0)


@pytest.mark.parametrize(
    "found",
    [
        regression_metrics(NONE, NONE, square, 0.0),
        regression_metrics([1.0], [2.0], square, 0.0, [0.0]),
        binary_metrics(NONE, NONE),
        multiclass_metrics(NONE, np.empty((0, 3))),
    ],
    ids=["regression", "no weight", "binary", "multiclass"],
)
def test_no_rows_have_no_metrics(found):
    assert {value for name, value in found.items() if name not in {"n", "weight"}} == {None}
    json.dumps(found, allow_nan=False)


def test_constant_target_has_no_d2():
    assert regression_metrics([2.0, 2.0], [1.0, 2.0], square, 2.0)["d2"] is None


def test_predictions_beyond_numbers_have_no_error():
    found = regression_metrics([1.0, 2.0], [1e200, 2.0], square, 1.5)
    assert found["rmse"] is None
    assert found["mae"] == pytest.approx(5e199)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: binary_metrics([0, 1], [0.5]), r"\(2,\), \(1,\) and \(2,\)"),
        (lambda: binary_metrics([[0, 1]], [[0.5, 0.1]]), "single columns"),
        (lambda: calibration([1, 2], [1, 2], [1]), r"\(2,\), \(2,\) and \(1,\)"),
        (lambda: multiclass_metrics([0, 1], [0.5, 0.5]), r"got shape \(2,\)"),
        (lambda: multiclass_metrics([0, 1, 1], [[0.5, 0.5]]), r"row for each of the 3"),
    ],
)
def test_shapes_that_do_not_fit(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_calibration_bins_have_the_means_of_their_rows():
    order = np.argsort(MEAN)
    blocks = order.reshape(10, 40)
    found = calibration(MEAN, COUNTS)
    np.testing.assert_allclose(found.predicted, MEAN[blocks].mean(1))
    np.testing.assert_allclose(found.observed, COUNTS[blocks].mean(1))
    np.testing.assert_allclose(found.standard_error, COUNTS[blocks].std(1, ddof=1) / 40**0.5)
    np.testing.assert_array_equal(found.weight, np.full(10, 40.0))


def test_calibration_weight_is_repetition():
    w = np.where(np.arange(N) % 2, 3.0, 1.0)
    weighted = calibration(MEAN, COUNTS, w, bins=5)
    repeated = calibration(np.repeat(MEAN, w.astype(int)), np.repeat(COUNTS, w.astype(int)), bins=5)
    np.testing.assert_allclose(weighted.predicted, repeated.predicted)
    np.testing.assert_allclose(weighted.observed, repeated.observed)
    np.testing.assert_allclose(weighted.weight, repeated.weight)


def test_calibration_in_whole_is_the_mean():
    found = calibration(PROBABILITY, YES, WEIGHTS)
    total = np.average(found.observed, weights=found.weight)
    assert total == pytest.approx(binary_metrics(YES, PROBABILITY, WEIGHTS)["base_rate"])
    assert len(found.weight) == 10
    np.testing.assert_allclose(found.weight, WEIGHTS.sum() / 10, atol=3)


def test_calibration_of_right_probabilities_is_within_two_errors():
    within = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        p = rng.beta(1, 20, 10_000)
        found = calibration(p, rng.random(10_000) < p)
        within.append(np.abs(found.observed - found.predicted) < 2 * found.standard_error)
    assert 0.93 < np.mean(within) < 0.98


def test_calibration_without_a_single_yes_has_an_error():
    found = calibration([0.01] * 50, [0] * 50)
    share = 2 / 54
    np.testing.assert_allclose(found.standard_error, [math.sqrt(share * (1 - share) / 54)])


def test_equal_predictions_share_a_bin():
    found = calibration(np.repeat([1.0, 2.0, 3.0], [80, 10, 10]), np.arange(100.0))
    np.testing.assert_array_equal(found.predicted, [1, 2, 3])
    np.testing.assert_array_equal(found.weight, [80, 10, 10])


def test_calibration_of_a_single_row_has_no_error():
    found = calibration([1.5], [2.5])
    assert (found.observed[0], math.isnan(found.standard_error[0])) == (2.5, True)


def test_rows_that_cannot_be_placed_are_left_out():
    found = calibration([1.0, np.inf, 2.0, np.nan], [3.0, 4.0, 5.0, 6.0], bins=2)
    np.testing.assert_array_equal(found.observed, [3.0, 5.0])
    residuals = residual_bins([0.0, np.nan, 1.0], [1.0, 1.0, np.inf])
    np.testing.assert_array_equal(residuals.points, [[0.0, 1.0]])


@pytest.mark.parametrize("function", [calibration, residual_bins])
def test_no_rows_have_no_bins(function):
    found = function(NONE, NONE)
    assert len(found.standard_error) == 0


def test_residual_bins_have_the_means_of_their_rows():
    residual = (COUNTS - MEAN) / np.sqrt(MEAN)
    blocks = np.argsort(MEAN).reshape(20, 20)
    found = residual_bins(MEAN, residual)
    np.testing.assert_allclose(found.position, MEAN[blocks].mean(1))
    np.testing.assert_allclose(found.mean, residual[blocks].mean(1), atol=1e-14)
    np.testing.assert_allclose(found.standard_error, residual[blocks].std(1, ddof=1) / 20**0.5)
    np.testing.assert_array_equal(found.points, np.column_stack([MEAN, residual]))


def test_residuals_of_known_variance():
    found = residual_bins(np.arange(100.0), np.zeros(100), bins=4, variance=1.0)
    np.testing.assert_allclose(found.standard_error, 0.2)


def test_a_sample_of_rows_is_drawn_without_repetition_and_the_same_each_time():
    x = np.arange(10_000.0)
    first, again = residual_bins(x, -x), residual_bins(x, -x)
    np.testing.assert_array_equal(first.points, again.points)
    assert first.points.shape == (2000, 2)
    assert len(np.unique(first.points[:, 0])) == 2000
    assert not np.array_equal(first.points, residual_bins(x, -x, seed=1).points)


def test_few_rows_make_few_bins():
    assert len(residual_bins(np.arange(12.0), np.zeros(12)).mean) == 2
