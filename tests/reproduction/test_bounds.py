"""The bounds, against closed forms, and wrong algorithms are refuted."""

import math

import numpy as np
import pytest

from tangograd.reproduction import bounds
from tangograd.reproduction import examples as runs
from tangograd.reproduction.base import Setting
from tangograd.reproduction.bounds import DT, P, examples, expected
from tangograd.reproduction.exact import Law
from tangograd.reproduction.models import COIN, chosen


def test_rare_event_in_closed_form():
    """With ``a = g̃²`` and ``g = p``: ``E v² = (γ²p² + 2γ²p² (1-δt)(1-γA)/c) / (1-(1-δt)² q)``.

    There ``A = E a``, ``c = 1-(1-δt)(1-γA)``, so that E v = γp/c, and ``q = E(1-γa)²``.
    """
    rare = examples()[0]
    gamma = 1.3 / rare.law.R2
    a, weights = np.array([(1 - P) ** 2, P**2]), np.array([P, 1 - P])
    A, q = weights @ a, weights @ (1 - gamma * a) ** 2
    keep = (1 - DT) * (1 - gamma * A)
    second = gamma**2 * P**2 * (1 + 2 * keep / (1 - keep)) / (1 - (1 - DT) ** 2 * q)
    lam = (1 - DT) * A + DT / gamma
    assert expected(rare, gamma) == pytest.approx(second * lam**2 / P**2)


def test_rare_event_reaches_two():
    rare = examples()[0]
    square, beyond = (expected(rare, u / rare.law.R2) for u in (1, 1.75))
    assert 1.96 < square < 2 < 4 < beyond


def test_the_bound_for_a_fixed_theta():
    """``(2√(1-γλ) + γλ) σ²/λ²``, on random laws of (g, g̃), γ = 1/R², damped or not."""
    rng = np.random.default_rng(0)
    closest = 0.0
    for _ in range(300):
        d, n = int(rng.integers(1, 4)), 12
        sizes = np.exp(2 * rng.standard_normal((2, n, 1)))
        g, g_tilde = sizes * rng.standard_normal((2, n, d))
        law = Law(g + rng.standard_normal(d), g_tilde, rng.dirichlet(np.ones(n)))
        gamma, dt = 1 / law.R2, float(rng.choice([0.0, 0.1]))
        lam = np.linalg.eigvalsh(law.damped(gamma, dt))[0]
        square = np.trace(law.second_moment(gamma, dt)) * lam**2 / law.sigma2
        bound = 2 * math.sqrt(1 - gamma * lam) + gamma * lam
        assert square <= bound * (1 + 1e-6)
        closest = max(closest, square / bound)
    assert closest > 0.5


def test_the_coin():
    rng, g, g_tilde = np.random.default_rng(0), np.empty((20_000, 1)), np.empty((20_000, 1))
    for row, row_tilde in zip(g, g_tilde, strict=True):
        chosen(np.array([math.log(3)]), rng, np.array([COIN, 0.4]), row, row_tilde)
    for x, q in ((g, 0.4), (g_tilde, 0.75)):
        assert set(np.unique(x)) == {-0.25, 0.75}
        assert abs(x.mean() - (0.75 - q)) < 5 * x.std() / math.sqrt(len(x))


def wrong(monkeypatch, change):
    kernel = runs.tango
    monkeypatch.setattr(bounds, "GRID", (0.4, 1.0, 1.75))
    monkeypatch.setattr(runs, "tango", lambda *a, **k: kernel(*a, **{**k, **change(k)}))
    return [v.holds for v in bounds.measure(Setting("bounds", quick=True)).verdicts]


def test_an_unstable_gamma_is_refuted(monkeypatch):
    """Much beyond the largest stable γ the velocity diverges, and no bound holds."""
    assert not any(wrong(monkeypatch, lambda k: {"gamma": 20 * k["gamma"]}))


def test_batches_are_refuted(monkeypatch):
    """A mean over four samples resets v more often and less."""
    holds = wrong(monkeypatch, lambda k: {"batch": 4})
    assert not holds[0]
    assert not holds[3]
