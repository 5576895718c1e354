"""Figure 1: its closed forms, and that wrong algorithms are refuted."""

import numpy as np
import pytest

from tangograd.reproduction import figure_1
from tangograd.reproduction.base import Setting
from tangograd.reproduction.gaussian import M, circle, deviation, fisher, natural_gradient


def verdicts(monkeypatch, **changes):
    """With fewer points and TANGO's arguments changed."""
    kernel = figure_1.tango

    def changed(*arguments, **options):
        if options["dt"] != 1:  # SGD stays
            options |= changes
        return kernel(*arguments, **options)

    monkeypatch.setattr(figure_1, "tango", changed)
    monkeypatch.setattr(figure_1, "TIME", 3.0)  # the peak is at ln 2
    return [v.holds for v in figure_1.measure(Setting("figure-1", quick=True)).verdicts]


@pytest.mark.parametrize(
    "changes",
    [{"C": [2.0, 0.5], "gamma": 1e-3}, {"constants": (10.0, 3.0)}],
    ids=["another γ and C", "other data"],
)
def test_wrong_algorithms_are_refuted(monkeypatch, changes):
    assert not all(verdicts(monkeypatch, **changes))


def test_the_circle():
    path = circle()
    assert deviation(path) < 1e-12
    assert path[:, 1].max() ** 2 == pytest.approx(26, abs=1e-4)
    np.testing.assert_allclose(path[[0, -1]], [[0, 1], [M, 1]], atol=1e-2)


def test_peaks_of_the_rivals_without_noise():
    """Euler's steps with the mean gradient, for SGD and averaged SGD."""
    sgd, averaged = figure_1.noise_free_peaks()
    fast, peak = np.zeros(2), 1.0
    for _ in range(20_000):
        fast -= 1e-4 * fisher(fast) * natural_gradient(fast)
        peak = max(peak, np.exp(2 * fast[1]))
    assert sgd == pytest.approx(peak, rel=1e-2)
    fast, slow, peak = np.zeros(2), np.zeros(2), 1.0
    for _ in range(30_000):
        fast -= figure_1.GAMMA * fisher(fast) * natural_gradient(fast)
        slow += figure_1.RATES[0] * (fast - slow)
        peak = max(peak, np.exp(2 * slow[1]))
    assert averaged == pytest.approx(peak, rel=1e-2)
