"""The bias of SGD at rest against series and simulation; the loss with an arbitrary middle."""

import numpy as np
import pytest

from tangograd.reproduction import bias
from tangograd.reproduction.base import Setting
from tangograd.reproduction.gaussian import moments
from tangograd.stream import averaged_sgd, tango


def test_series():
    """``1 + 3γ/2 + 343γ²/72``, the second coefficient by extrapolation."""
    h = 1e-3
    second = [(bias.stationary_variance(g, 6) - 1 - 1.5 * g) / g**2 for g in (h, h / 2, h / 4)]
    once = 2 * np.array(second[1:]) - second[:-1]
    assert (4 * once[1] - once[0]) / 3 == pytest.approx(343 / 72, rel=1e-6)


def test_figures_and_convergence_in_the_degree():
    assert bias.stationary_variance(0.01) == pytest.approx(1.0155029, abs=1e-6)
    assert bias.stationary_variance(0.05, 8) == pytest.approx(
        bias.stationary_variance(0.05, 10), abs=2e-4
    )


def test_against_a_simulation_of_sgd():
    gamma, chains, steps = 0.05, 4000, 1500
    rng = np.random.default_rng(0)
    x, s, total = np.zeros(chains), np.zeros(chains), np.zeros(chains)
    for k in range(steps):
        gap, decay = rng.standard_normal(chains) - x, np.exp(-2 * s)
        x, s = x + gamma * gap * decay, s - gamma + gamma * gap**2 * decay
        if k >= 300:
            total += s / (steps - 300)
    expected = np.log(bias.stationary_variance(gamma)) / 2
    assert abs(total.mean() - expected) < 5 * total.std() / np.sqrt(chains)
    # first order alone is not enough
    assert abs(total.mean() - 0.75 * gamma) > 5 * total.std() / np.sqrt(chains)


@pytest.mark.parametrize("gamma", [0.01, 0.05])
def test_tango_bias_is_where_its_moments_rest(gamma):
    dt = 2e-5
    mean, _ = moments(gamma, dt, round(25 / dt))
    assert 2 * mean[1] / dt == pytest.approx(bias.tango_bias(gamma), rel=0.02)


def gradient(theta, x):
    g, g_tilde = np.empty(1), np.empty(1)
    constants = np.array([bias.KINK_GAMMA, x])
    bias.kinked(np.array([theta]), np.random.default_rng(0), constants, g, g_tilde)
    return g[0]


def test_kinked_loss():
    edge = bias.KINK_GAMMA / 2
    for x in np.array(bias.MINIMA) * bias.KINK_GAMMA:
        assert gradient(x, x) == 0
        assert [gradient(t, x) for t in (-1.0, -edge, edge, 1.0)] == [-1, -1, 1, 1]
        assert gradient(edge - 1e-9, x) == pytest.approx(1, abs=1e-6)
        assert gradient(-edge + 1e-9, x) == pytest.approx(-1, abs=1e-6)


def test_sgd_jumps_over_the_middle():
    run = bias.kink(averaged_sgd, 0.4)
    assert np.abs(run.v).min() == bias.KINK_GAMMA / 2
    assert set(np.unique(run.v[-10:])) == {-bias.KINK_GAMMA / 2, bias.KINK_GAMMA / 2}
    assert abs(bias.kink(tango, 0.4).theta[-1, 0] - 0.4 * bias.KINK_GAMMA) < 1e-12


def test_from_an_even_multiple_it_does_not(monkeypatch):
    """The start must be an odd multiple of γ/2; from an even one SGD comes to 0, inside."""
    monkeypatch.setattr(bias, "KINK_START", 8 * bias.KINK_GAMMA / 2)
    assert np.abs(bias.kink(averaged_sgd, 0.4).v).min() < bias.KINK_GAMMA / 2


def test_averaged_sgd_in_place_of_tango_is_refuted(monkeypatch):
    monkeypatch.setattr(bias, "GAMMAS", (0.05,))
    assert bias.measure(Setting("bias", quick=True)).holds

    monkeypatch.setattr(bias, "tango", averaged_sgd)
    failing = [v.what for v in bias.measure(Setting("bias", quick=True)).verdicts if not v.holds]
    assert [what.split("TANGO")[0] for what in failing] == [
        "(variance - 1)/γ by ",
        "|x|: largest distance of ",
    ]
