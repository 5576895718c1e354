"""Averaged SGD with the noise of the proposition is TANGO, and nothing else is."""

import numpy as np
import pytest

from tangograd.reproduction import quadratic
from tangograd.reproduction.base import Setting

RUNS = 30


def streams(n=RUNS):
    return [np.random.default_rng([1, i]) for i in range(n)]


@pytest.fixture(scope="module")
def tangos():
    return np.stack([quadratic._regression(rng).theta for rng in streams()], axis=1)


def test_equal_to_rounding(tangos):
    averaged = quadratic.averaged_regression(streams())
    assert np.abs(tangos - averaged.theta).max() < 1e-12
    assert np.abs(tangos[-1] - quadratic.TRUTH).max() < 1  # and something was learned


def test_the_indices_of_dt_matter(tangos, monkeypatch):
    monkeypatch.setattr(quadratic, "REGRESSION_DT", np.roll(quadratic.REGRESSION_DT, 1))
    assert np.abs(tangos - quadratic.averaged_regression(streams()).theta).max() > 1e-4


def test_the_noise_matters_and_is_centred(tangos):
    plain = quadratic.averaged_regression(streams(), noisy=False)
    assert np.abs(tangos - plain.theta).max() > 1e-2
    many = quadratic.averaged_regression(streams(200))
    assert abs(many.pull.mean()) < 5 * many.pull.std() / np.sqrt(200)


def test_mean_path(tangos):
    """Both follow ``E v = (1-δt)(I - γH) E v + γH (E θ - θ*)``, H = E x xᵀ."""
    H = np.array(quadratic.SCALES) ** 2
    theta, v, dt = np.zeros(4), np.zeros(4), quadratic.REGRESSION_DT
    for k in range(1, quadratic.REGRESSION_STEPS + 1):
        gradient = H * (theta - quadratic.TRUTH)
        v = (1 - dt[k - 1]) * v + quadratic.REGRESSION_GAMMA * (gradient - (1 - dt[k - 1]) * H * v)
        theta = theta - dt[k] * v
    plain = quadratic.averaged_regression(streams(), noisy=False)
    for found in (tangos[-1], plain.theta[-1]):
        assert (np.abs(found.mean(0) - theta) < 5 * found.std(0) / np.sqrt(RUNS)).all()


@pytest.mark.parametrize("wrong", ["no ξ", "averaged SGD twice"])
def test_wrong_algorithms_are_refuted(monkeypatch, wrong):
    if wrong == "no ξ":
        right = quadratic.averaged_regression
        monkeypatch.setattr(
            quadratic, "averaged_regression", lambda rngs, noisy: right(rngs, noisy=False)
        )
    else:
        monkeypatch.setattr(quadratic, "_gaussian", lambda _: (np.zeros((1001, 2)),) * 2)
    result = quadratic.measure(Setting("quadratic", quick=True))
    failing = [v.what for v in result.verdicts if not v.holds]
    assert failing
    assert all(what.startswith("regression") == (wrong == "no ξ") for what in failing)
