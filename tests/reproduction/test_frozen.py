"""The closed forms against enumeration, and wrong algorithms are refuted."""

import numpy as np
import pytest

from tangograd.reproduction import examples, frozen
from tangograd.reproduction.base import Setting
from tangograd.reproduction.exact import normals
from tangograd.reproduction.frozen import KINDS, estimate
from tangograd.reproduction.models import EMPIRICAL, EXPECTED, SAMPLED, correlated_regression

OFFSET, RHO, NOISE = np.array([0.6, -0.4]), 0.5, 0.7


def batch_of_two(name):
    """All (ḡ, F̂) with their probabilities, at the points of an exact quadrature."""
    kind, rank_one = KINDS[name]
    variables, weights = normals(8 if kind == SAMPLED else 6, 5 if kind == EMPIRICAL else 3)
    x = np.stack(variables[:4], axis=1).reshape(-1, 2, 2)  # (points, batch, d)
    x[:, :, 1] = RHO * x[:, :, 0] + np.sqrt(1 - RHO**2) * x[:, :, 1]
    r = x @ OFFSET - NOISE * np.stack(variables[4:6], axis=1)
    sampled = np.stack(variables[6:], axis=1) if kind == SAMPLED else np.ones_like(r)
    g, g_tilde = r[..., None] * x, (r if kind == EMPIRICAL else sampled)[..., None] * x
    if rank_one:
        g_tilde = np.sqrt(2) * g_tilde.mean(1, keepdims=True)
    F = np.einsum("nbi,nbj->nij", g_tilde, g_tilde) / g_tilde.shape[1]
    return g.mean(1), F, weights


@pytest.mark.parametrize("name", KINDS)
def test_moments_are_exact(name):
    """E g, E F̂, E[F̂SF̂], and the second moment of v as a fixed point of one step."""
    g, F, weights = batch_of_two(name)
    law = estimate(name, OFFSET, 2, RHO, NOISE).law
    assert np.allclose(weights @ g, law.gradient)
    assert np.allclose(np.tensordot(weights, F, 1), law.fisher)
    S = np.array([[1.0, 0.3], [0.3, 2.0]])
    assert np.allclose(np.tensordot(weights, F @ S @ F, 1), law.sandwich(S))
    gamma = 0.5 / law.R2
    P, m, S = np.eye(2) - gamma * F, law.limit(gamma), law.second_moment(gamma)
    cross = gamma * np.einsum("n,ni,nj->ij", weights, P @ m, g)
    after = np.einsum("n,nij,jk,nlk->il", weights, P, S, P, optimize=True) + cross + cross.T
    assert np.allclose(after + gamma**2 * (weights[:, None] * g).T @ g, S)


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("batch", [1, 5])
def test_closed_forms_for_independent_features(d, batch):
    """R² and the fluctuation at γ = 1/R², both of size 1 the gradient and the noise."""
    B, data = batch, d / batch
    for name, R2, excess in (
        ("sampled", (3 * (d + 2) + B - 1) / B, 2 * (d + 2) / B),
        ("expected", (d + 2 + B - 1) / B, 0),
        ("rank one", (d + 2) * (1 + 2 / B), (d + 2) * (1 + 1 / B) - 1 + 1 / B),
    ):
        law = estimate(name, np.eye(d)[0], batch).law
        assert pytest.approx(R2) == law.R2
        assert law.fluctuation(1 / R2) == pytest.approx((excess + data) / R2)


@pytest.mark.parametrize("kind", [SAMPLED, EXPECTED, EMPIRICAL])
def test_the_model_has_the_moments(kind):
    (name,) = (name for name, each in KINDS.items() if each == (kind, False))
    law = estimate(name, OFFSET, 1, RHO, NOISE).law
    rng, g, g_tilde = np.random.default_rng(0), np.empty((20_000, 2)), np.empty((20_000, 2))
    for row, row_tilde in zip(g, g_tilde, strict=True):
        correlated_regression(OFFSET, rng, np.array([kind, RHO, NOISE]), row, row_tilde)
    outer = g_tilde[:, :, None] * g_tilde[:, None, :]
    for samples, exact in ((g, law.gradient), (outer, law.fisher)):
        error = np.abs(samples.mean(0) - exact)
        assert (error < 5 * samples.std(0) / np.sqrt(len(samples))).all()


def verdicts(monkeypatch, change):
    """Which verdicts of a quick run hold when the arguments of the kernel are changed."""
    kernel = examples.tango
    monkeypatch.setattr(frozen, "BATCHES", (16,))
    monkeypatch.setattr(examples, "tango", lambda *a, **k: kernel(*a, **{**k, **change(k)}))
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
    example = estimate("expected", frozen.OFFSET, 1, frozen.RHO, frozen.NOISE)
    keep = 1.0 if forgotten else 1 - frozen.DT
    damped = keep * example.law.fisher + frozen.DT / frozen.GAMMA * np.diag(1 / frozen.C)
    limit = np.linalg.solve(damped, example.law.gradient)
    lengths = frozen._averages(Setting("frozen"), example) @ limit / (limit @ limit)
    assert frozen.mean(lengths).near("length", 1.0).holds is holds
