"""The model's gradients, the limits of the expectations, and refuted alternatives."""

import numpy as np
import pytest

from tangograd.reproduction import output_variance as claim
from tangograd.reproduction.base import Setting
from tangograd.reproduction.models import EMPIRICAL, EXPECTED, SAMPLED, arctan_regression


@pytest.mark.parametrize("bend", [0.0, 0.8])
def test_gradients_are_those_of_the_loss(bend):
    theta, truth, sigma = np.linspace(-1, 1, 5), np.linspace(0.5, 1, 5), 0.7

    def loss(theta, seed):
        rng = np.random.default_rng(seed)
        noise, _ = claim.NOISE * rng.standard_normal(), rng.standard_normal()
        x = claim.SCALES * rng.standard_normal(5)
        f = (lambda u: np.arctan(bend * u) / bend) if bend else (lambda u: u)
        return (f(x @ theta) - f(x @ truth) - noise) ** 2 / (2 * sigma**2)

    constants = np.array([EMPIRICAL, bend, claim.NOISE, sigma, *claim.SCALES, *truth])
    g, g_tilde = np.empty(5), np.empty(5)
    for seed in range(3):
        arctan_regression(theta, np.random.default_rng(seed), constants, g, g_tilde)
        steps = 1e-6 * np.eye(5)
        slope = [(loss(theta + s, seed) - loss(theta - s, seed)) / 2e-6 for s in steps]
        assert np.allclose(g, slope, atol=1e-8)
        assert np.array_equal(g, g_tilde)


def test_pseudo_gradients_have_the_fisher_matrix():
    theta, sigma, n = np.linspace(-1, 1, 5), 0.7, 20_000
    x = np.random.default_rng(0).standard_normal((200_000, 5)) * claim.SCALES
    slope = 1 / (1 + (0.8 * x @ theta) ** 2) / sigma
    fisher = (slope[:, None] * x).T @ (slope[:, None] * x) / len(x)
    for kind in (SAMPLED, EXPECTED):
        constants = np.array([kind, 0.8, claim.NOISE, sigma, *claim.SCALES, *np.ones(5)])
        rng, g, g_tilde = np.random.default_rng(1), np.empty(5), np.empty((n, 5))
        for row in g_tilde:
            arctan_regression(theta, rng, constants, g, row)
        outer = g_tilde[:, :, None] * g_tilde[:, None, :]
        error = outer.std(0) / np.sqrt(n) + 5e-3
        assert (np.abs(outer.mean(0) - fisher) < 5 * error).all()


@pytest.mark.parametrize(("factor", "limit"), [(1.0, 1.0), (2.0, 4 / 3), (10.0, 100 / 19)])
def test_long_runs_tend_to_the_level_of_their_step(factor, limit, monkeypatch):
    """c²/(2c-1) as γ → 0 and k → ∞, from the optimum."""
    gamma = claim.empirical_gamma(factor) / 5
    monkeypatch.setattr(claim, "LONG", 100_000)
    monkeypatch.setattr(claim, "NEAR", 0.0)
    monkeypatch.setattr(claim, "empirical_gamma", lambda _: gamma)
    excess = claim.expected_squares(factor)[-1] @ claim.D / (2 * claim.NOISE**2)
    assert np.isclose(excess * 2 * claim.LONG / len(claim.D), limit, rtol=0.03)


def test_interval_of_a_variance():
    z = np.random.default_rng(0).standard_normal((100, 5))
    assert claim.mean_square(z).near("variance", 1.0).holds
    assert not claim.mean_square(z).near("variance", 1.6).holds
    assert not claim.mean_square(z).near("variance", 0.6).holds


@pytest.fixture(scope="module")
def quick():
    return Setting("output-variance", quick=True)


def test_sigma_is_no_rescaling_for_the_outer_product(quick, monkeypatch):
    assert claim.rescaling_error(quick) < 1e-12
    monkeypatch.setattr(claim, "SAMPLED", claim.EMPIRICAL)
    assert claim.rescaling_error(quick) > 0.01


def test_pseudo_samples_in_place_of_the_data_are_refuted(quick, monkeypatch):
    monkeypatch.setattr(claim, "EMPIRICAL", claim.SAMPLED)
    errors = claim._empirical(quick, 10.0)
    assert not claim.efficiency(10.0, errors, claim.expected_squares(10.0)).holds
