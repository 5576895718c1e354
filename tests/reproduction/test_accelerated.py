"""Closed forms against dense linear algebra; a wrong kernel is refuted."""

import numpy as np
import pytest

from tangograd.reproduction import accelerated
from tangograd.reproduction.base import Setting

K = np.arange(0, 200.0)


def transition(q, factor):
    """Of (v, e) for one mode without noise, γ times its eigenvalue being q."""
    beta = 1 - accelerated.best_rate(q)
    v = np.array([beta * (1 - q), q])
    return np.array([v, np.array([0.0, 1.0]) - factor * v])


@pytest.mark.parametrize("q", [0.1, 0.01, 0.0003])
def test_modes_are_matrix_powers(q):
    forms = (
        (accelerated.accelerated_mode, 1.0, 1 - np.sqrt(q)),
        (accelerated.plain_mode, accelerated.best_rate(q), 1 - q),
    )
    for form, factor, radius in forms:
        T, state, path = transition(q, factor), np.array([0.0, 1.0]), []
        for _ in K:
            path.append(state[1])
            state = T @ state
        assert np.allclose(form(q, K), path, rtol=1e-9, atol=1e-12)
        # a double root is found to the square root of the precision only
        assert np.isclose(np.abs(np.linalg.eigvals(T)).max(), radius, atol=1e-6)


def test_no_momentum_is_better():
    """The δt of `best_rate` has the smallest spectral radius."""
    q, radii = 0.01, []
    for beta in np.linspace(0.5, 0.99, 99):
        T = np.array([[(1 - q) * (1 + beta), -(1 - q) * beta], [1.0, 0.0]])
        radii.append(np.abs(np.linalg.eigvals(T)).max())
    assert min(radii) >= 1 - np.sqrt(q) - 1e-6


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(accelerated, "CONDITIONS", (10, 30))
    monkeypatch.setattr(accelerated, "BATCH", 16)


def measured():
    return accelerated.measure(Setting("accelerated", quick=True))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda options: options | {"accelerated": False},
        lambda options: options | {"dt": 2 * options["dt"]},
        lambda options: options | {"rank_one": True},
    ],
    ids=["plain", "momentum 1-2δt", "rank-one Fisher"],
)
def test_another_algorithm_is_refuted(small, monkeypatch, wrong):
    right = accelerated.tango
    monkeypatch.setattr(
        accelerated, "tango", lambda *args, **options: right(*args, **wrong(options))
    )
    assert not measured().holds
