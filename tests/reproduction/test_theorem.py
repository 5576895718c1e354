"""The theorem's verdicts: closed forms, and wrong algorithms that must be refuted."""

import numpy as np
import pytest
from numba import njit

from tangograd.reproduction import theorem
from tangograd.reproduction.base import Setting
from tangograd.reproduction.gaussian import Expansion, expansion
from tangograd.stream import models

LIMIT = Expansion(np.array([-100.0, 200.0]), np.array([[35.0, -14.0], [-14.0, 9.0]]))
RATES = (1e-4, 3e-5, 1e-5)


@pytest.fixture(scope="module")
def limit():
    return expansion(theorem.GAMMA, theorem.TIME)


def normal_errors(rng, n, scale=1.0, shift=0.0):
    """Errors as they are computed to be, or wider, or shifted."""
    errors = {}
    for dt in RATES:
        bias, P = theorem.computed(dt)
        errors[dt] = rng.multivariate_normal(bias + shift, scale**2 * P, n)
    return errors


def verdicts(errors, limit):
    return [v.holds for v in theorem.judge(errors, limit)]


def test_spread_and_slope():
    rng = np.random.default_rng(0)
    rates = [1e-3, 1e-4, 1e-5]
    errors = [rng.multivariate_normal([1.0, 2.0], LIMIT.S * dt, 20_000) for dt in rates]
    sizes = np.array([theorem.spread(e, LIMIT.S) for e in errors])
    np.testing.assert_allclose(sizes, np.sqrt(rates), rtol=0.02)
    assert abs(theorem.slope(rates, sizes) - 0.5) < 0.01


def test_one_sigma():
    assert theorem.one_sigma(0.0, 3.0) == pytest.approx(3.0, rel=1e-4)
    samples = np.abs(0.5 + np.random.default_rng(0).standard_normal(200_000))
    assert theorem.one_sigma(0.5, 1.0) == pytest.approx(
        np.quantile(samples, theorem.ONE_SIGMA), rel=0.01
    )


def test_share_error_bounds_the_difference(limit):
    dt, r = 1e-5, 2.0
    bias, P = theorem.computed(dt)
    samples = np.random.default_rng(0).multivariate_normal(bias, P, 200_000)
    share = (np.linalg.norm(theorem.whitened(samples, limit.S), axis=1) <= r * dt**0.5).mean()
    difference = abs(share - (1 - np.exp(-2.0)))
    assert 0 < difference < theorem.share_error(limit, dt, r) < 0.15


def test_true_errors_hold(limit):
    assert all(verdicts(normal_errors(np.random.default_rng(0), 1000), limit))


@pytest.mark.parametrize(
    ("scale", "shift", "which"),
    [(2.0, 0.0, 1), (0.5, 0.0, 2), (2.0, 0.0, 3), (1.0, 0.01, 5)],
)
def test_wrong_constants_are_refuted(limit, scale, shift, which):
    errors = normal_errors(np.random.default_rng(1), 1000, scale, shift)
    assert not verdicts(errors, limit)[which]


def test_an_error_that_stays_is_refuted(limit):
    errors = normal_errors(np.random.default_rng(2), 1000)
    errors[RATES[-1]] = errors[RATES[-2]]
    assert not verdicts(errors, limit)[0]


right = models.gaussian


@njit
def _too_small(theta, rng, constants, g, g_tilde):
    right(theta, rng, constants, g, g_tilde)
    for i in range(2):
        g_tilde[i] *= 0.9


def test_wrong_pseudo_samples_are_refuted(monkeypatch):
    monkeypatch.setattr(models, "gaussian", _too_small)
    monkeypatch.setattr(theorem, "QUICK", (1e-4, 5e-5))
    monkeypatch.setattr(theorem, "SMALL", 1e-4)
    result = theorem.measure(Setting("theorem", quick=True))
    assert not result.holds
