"""δt = 1 is SGD by hand; wrong members of the family are refuted."""

import numpy as np

from tangograd.reproduction import family
from tangograd.reproduction.base import Setting
from tangograd.stream import tango
from tangograd.stream.models import gaussian


def alike(n=4):
    return [np.random.default_rng(5) for _ in range(n)]


def test_sgd_by_hand():
    steps, (by_hand, rng) = 100, alike(2)
    theta, g, g_tilde = np.zeros(2), np.empty(2), np.empty(2)
    for _ in range(steps):
        gaussian(theta, by_hand, np.array([10.0, 1.0]), g, g_tilde)
        theta = theta - family.GAMMA * g
    run = tango(
        gaussian, (0, 0), gamma=family.GAMMA, dt=1.0, steps=steps, rng=rng, constants=(10.0, 1.0)
    )
    np.testing.assert_array_equal(run.theta[-1], theta)


def test_distance_from_sgd():
    difference, near = family.against_sgd(alike())
    assert difference == 0
    assert 9 < near[0] / near[1] < 11


def test_another_rate_is_not_sgd(monkeypatch):
    def wrong(*args, gamma, **options):
        return tango(*args, gamma=gamma * (1 + 1e-9), **options)

    monkeypatch.setattr(family, "tango", wrong)
    difference, _ = family.against_sgd(alike())
    assert difference > 1e-12


def _around(radius_error):
    """A stand-in for TANGO: on circles that are off by so much."""

    def path(dt, rng):
        angle = np.linspace(np.pi - 0.2, 0.2, 500)
        radius = np.sqrt(26) + radius_error(dt) * (1 + 0.1 * rng.random())
        return np.stack([5 + radius * np.cos(angle), np.log(radius * np.sin(angle))], axis=1)

    return path


def test_a_family_that_does_not_converge_is_refuted(monkeypatch):
    compared = family.against_sgd(alike())
    monkeypatch.setattr(family, "against_sgd", lambda _: compared)
    for radius_error, holds in ((lambda dt: dt**0.5, True), (lambda dt: 0.1, False)):
        monkeypatch.setattr(family, "_tango", _around(radius_error))
        assert family.measure(Setting("family", quick=True)).holds is holds
