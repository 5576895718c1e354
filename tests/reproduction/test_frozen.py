"""The closed forms against enumeration, and wrong algorithms are refuted."""

import numpy as np
import pytest

from tangograd.reproduction import frozen
from tangograd.reproduction.base import Setting
from tangograd.reproduction.frozen import EMPIRICAL, EXPECTED, SAMPLED, Estimate, kinds
from tangograd.reproduction.moments import normals

OFFSET, RHO, NOISE = np.array([0.6, -0.4]), 0.5, 0.7


def batch_of_two(estimate):
    """All (ḡ, F̂) with their probabilities, at the points of an exact quadrature."""
    empirical = estimate.kind == EMPIRICAL
    sampled = estimate.kind == SAMPLED
    variables, weights = normals(8 if sampled else 6, 5 if empirical else 3)
    x = np.stack(variables[:4], axis=1).reshape(-1, 2, 2)  # (points, batch, d)
    x[:, :, 1] = RHO * x[:, :, 0] + np.sqrt(1 - RHO**2) * x[:, :, 1]
    r = x @ OFFSET - NOISE * np.stack(variables[4:6], axis=1)
    factor = r if empirical else np.stack(variables[6:], axis=1) if sampled else np.ones_like(r)
    g, g_tilde = r[..., None] * x, factor[..., None] * x
    if estimate.rank_one:
        g_tilde = np.sqrt(2) * g_tilde.mean(1, keepdims=True)
    F = np.einsum("nbi,nbj->nij", g_tilde, g_tilde) / g_tilde.shape[1]
    return g.mean(1), F, weights


@pytest.mark.parametrize("estimate", kinds(OFFSET, 2, RHO, NOISE), ids=lambda e: e.name)
def test_moments_are_exact(estimate):
    g, F, weights = batch_of_two(estimate)
    assert np.allclose(weights @ g, estimate.gradient)
    assert np.allclose(np.tensordot(weights, F, 1), estimate.mean)
    S = np.array([[1.0, 0.3], [0.3, 2.0]])
    assert np.allclose(np.tensordot(weights, F @ S @ F, 1), estimate.sandwich(S))
    noise = g - F @ estimate.natural_gradient
    assert np.allclose((weights[:, None] * noise).T @ noise, estimate.noise_covariance)


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("batch", [1, 5])
def test_closed_forms_for_independent_features(d, batch):
    """R² and the fluctuation at γ = 1/R², both of size 1 the gradient and the noise."""
    sampled, expected, _, rank_one = kinds(np.eye(d)[0], batch)
    B, data = batch, d / batch
    for estimate, R2, excess in (
        (sampled, (3 * (d + 2) + B - 1) / B, 2 * (d + 2) / B),
        (expected, (d + 2 + B - 1) / B, 0),
        (rank_one, (d + 2) * (1 + 2 / B), (d + 2) * (1 + 1 / B) - 1 + 1 / B),
    ):
        assert pytest.approx(R2) == estimate.R2
        assert estimate.fluctuation(1 / R2) == pytest.approx((excess + data) / R2)


@pytest.mark.parametrize("kind", [SAMPLED, EXPECTED, EMPIRICAL])
def test_the_model_has_the_moments(kind):
    estimate = Estimate("", kind, OFFSET, NOISE, RHO)
    rng, g, g_tilde = np.random.default_rng(0), np.empty((20_000, 2)), np.empty((20_000, 2))
    for row, row_tilde in zip(g, g_tilde, strict=True):
        frozen.regression(OFFSET, rng, np.array([kind, RHO, NOISE]), row, row_tilde)
    outer = g_tilde[:, :, None] * g_tilde[:, None, :]
    for samples, exact in ((g, estimate.gradient), (outer, estimate.mean)):
        error = np.abs(samples.mean(0) - exact)
        assert (error < 5 * samples.std(0) / np.sqrt(len(samples))).all()


def verdicts(monkeypatch, change):
    """Which verdicts of a quick run hold when the arguments of the kernel are changed."""
    kernel = frozen.tango
    monkeypatch.setattr(frozen, "BATCHES", (16,))
    monkeypatch.setattr(frozen, "tango", lambda *a, **k: kernel(*a, **{**k, **change(k)}))
    return [verdict.holds for verdict in frozen.measure(Setting("frozen", quick=True)).verdicts]


def test_no_pseudo_samples(monkeypatch):
    """The data's gradients everywhere: what remains is the verdict on the empirical kind."""
    holds = verdicts(monkeypatch, lambda k: {"constants": (EMPIRICAL, *k["constants"][1:])})
    assert holds == [False, True, False, False, False, False, False]


def test_half_gamma_is_refuted(monkeypatch):
    """Where δt > 0 the damping doubles; where δt = 0 the mean stays, but not speed and noise."""
    assert not any(verdicts(monkeypatch, lambda k: {"gamma": k["gamma"] / 2}))


@pytest.mark.parametrize(("forgotten", "holds"), [(False, True), (True, False)])
def test_a_forgotten_factor_is_refuted(forgotten, holds):
    """(1-δt) F without its factor moves the limit by 1%: the full intervals are finer."""
    estimate = kinds(frozen.OFFSET, 1, frozen.RHO, frozen.NOISE)[1]
    keep = 1.0 if forgotten else 1 - frozen.DT
    damped = keep * estimate.mean + frozen.DT / frozen.GAMMA * np.diag(1 / frozen.C)
    limit = np.linalg.solve(damped, estimate.gradient)
    lengths = frozen._averages(Setting("frozen"), estimate, 1.0) @ limit / (limit @ limit)
    assert frozen.mean(lengths).near("length", 1.0).holds is holds
