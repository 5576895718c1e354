"""Sums for the report: likelihood, deviance, and the model with an intercept alone."""

import numpy as np
import pytest
import statsmodels.api as sm

from tangograd.glm.matrices import split
from tangograd.glm.tally import Tally
from tests.glm.simulated import CLASSES, FAMILIES, rows, simulate, simulate_classes

every_family = pytest.mark.parametrize("name", FAMILIES)


def tally_of(of, data, size, classes=2):
    tally = Tally(of, classes)
    for block in split(data, size):
        tally.add([block], 1.0 * len(block), 2.0 * len(block))
    return tally


@every_family
@pytest.mark.parametrize("size", [7, 1000])
def test_sums(name, size):
    of, _ = FAMILIES[name]
    X, y = simulate(name, 200, 2)
    w = np.random.default_rng(0).uniform(0.5, 2, 200)
    tally = tally_of(of, rows(X, y, w), size)
    assert tally.rows == 200
    assert tally.weight == pytest.approx(w.sum(), rel=1e-14)
    assert tally.loss == 200
    assert tally.pearson == 400
    assert tally.total == pytest.approx(w @ y, rel=1e-12)
    mean = w @ y / w.sum()
    assert tally.variation == pytest.approx(w @ (y - mean) ** 2, rel=1e-12)
    assert tally.saturated == pytest.approx(w @ of.saturated_loss(y), rel=1e-12, abs=1e-12)
    assert tally.normalizer == pytest.approx(w @ of.log_normalizer(y), rel=1e-12, abs=1e-12)


@every_family
def test_null_deviance_is_statsmodels(name):
    of, theirs = FAMILIES[name]
    X, y = simulate(name, 300, 2, seed=1)
    w = np.random.default_rng(0).integers(1, 4, 300).astype(np.float64)
    tally = tally_of(of, rows(X, y, w), 64)
    expected = sm.GLM(y, np.ones(300), family=theirs, freq_weights=w).fit().null_deviance
    assert 2 * (tally.null_loss() - tally.saturated) == pytest.approx(expected, rel=1e-10)


@every_family
def test_null_deviance_with_an_offset_is_statsmodels(name):
    of, theirs = FAMILIES[name]
    rng = np.random.default_rng(3)
    offset = rng.normal(size=300) * 0.7
    X, y = simulate(name, 300, 2, seed=1, offset=offset)
    w = rng.integers(1, 4, 300).astype(np.float64)
    model = sm.GLM(y, np.ones(300), family=theirs, freq_weights=w, offset=offset)
    expected = model.fit(tol=1e-14, maxiter=200)
    tally = Tally(of, 2)
    tally.add(list(split(rows(X, y, w, offset), 50)), 0.0, 0.0)
    assert tally.null_predictor() == pytest.approx(expected.params[0], rel=1e-8)
    found = 2 * (tally.null_loss() - tally.saturated)
    assert found == pytest.approx(expected.deviance, rel=1e-10)


@every_family
def test_null_deviance_of_a_stream_with_an_offset_is_close(name):
    """Each block's at the intercept known by then; the first blocks' at their own."""
    of, theirs = FAMILIES[name]
    rng = np.random.default_rng(4)
    n = 4000
    offset = rng.normal(size=n) * 0.5
    offset[:1000] = 0.0
    X, y = simulate(name, n, 2, seed=2, offset=offset)
    model = sm.GLM(y, np.ones(n), family=theirs, offset=offset).fit()
    tally = tally_of(of, rows(X, y, None, offset), 200)
    errors = model.bse[0]
    assert abs(tally.null_predictor() - model.params[0]) < 1.5 * errors
    found = 2 * (tally.null_loss() - tally.saturated)
    assert found == pytest.approx(model.deviance, rel=0.01)


def test_null_deviance_of_classes_is_that_of_their_shares():
    X, y = simulate_classes(200, 2)
    tally = tally_of(CLASSES, rows(X, y), 30, classes=4)  # one of which does not occur
    shares = np.bincount(y.astype(int), minlength=4) / 200
    assert np.array_equal(tally.classes, 200 * shares)
    expected = -np.log(shares[y.astype(int)]).sum()
    assert tally.null_loss() == pytest.approx(expected, rel=1e-12)


def test_gaussian_null_deviance_keeps_its_digits_far_from_zero():
    y = 1e9 + np.random.default_rng(5).normal(size=100)
    tally = tally_of(FAMILIES["gaussian"][0], rows(np.zeros((100, 1)), y), 9)
    assert 2 * tally.null_loss() == pytest.approx(100 * np.var(y - 1e9), rel=1e-6)


def test_the_trace_is_the_mean_loss_since_the_last_note():
    of, _ = FAMILIES["poisson"]
    _, y = simulate("poisson", 1000, 1)
    tally = Tally(of, 2)
    expected, since, losses = [], 0.0, iter(np.random.default_rng(6).random(100))
    noted = 0
    for block in split(rows(np.zeros((1000, 1)), y), 10):
        loss = next(losses)
        since += loss - of.saturated_loss(block.y).sum()
        tally.add([block], loss, 0.0)
        if tally.trace_rows[-1] == tally.rows:
            expected.append(since / (tally.rows - noted))
            noted, since = tally.rows, 0.0
    assert np.allclose(tally.trace_loss, expected, rtol=1e-10)
    steps = np.array(tally.trace_rows)
    assert (steps[1:] >= 1.1 * steps[:-1]).all()
    assert (steps[1:] <= 1.1 * steps[:-1] + 10).all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gaussian", lambda y: len(y)),
        ("logit", lambda y: len(y) * y.mean() * (1 - y.mean())),
        ("poisson", lambda y: y.sum()),
        ("gamma", lambda y: len(y) * y.mean() ** 2 / y.var()),
        ("tweedie", lambda y: len(y) * y.mean() ** 2 / y.var()),
    ],
)
def test_information_is_that_of_the_null_model_whatever_the_unit(name, expected):
    """Rows, or events: counts, successes and failures, and for others mean²/variance a row."""
    of, _ = FAMILIES[name]
    X, y = simulate(name, 500, 2, seed=7)
    units = (1.0, 1e-4) if of.estimates_dispersion else (1.0,)
    for unit in units:
        tally = tally_of(of, rows(X, y * unit, np.full(500, 3.0)), 90)
        assert tally.information() == pytest.approx(expected(y), rel=1e-9)


def test_information_about_classes_is_that_of_the_rarest():
    y = np.repeat([0.0, 1.0, 2.0], [50, 40, 10])
    tally = tally_of(CLASSES, rows(np.zeros((100, 1)), y), 30, classes=3)
    assert tally.information() == pytest.approx(100 * 0.1 * 0.9)
