"""Slopes, extrapolation, and wrong recursions that must be refuted."""

import numpy as np
import pytest

from tangograd.reproduction import gaussian, noise_free
from tangograd.reproduction.base import Setting

RATES = np.array(noise_free.RATES)


def test_slopes_and_extrapolation_of_a_known_error():
    errors = 7 * RATES * (1 + 3000 * RATES + 1e6 * RATES**2)
    slopes = noise_free.local_slopes(errors) - 1
    assert slopes[-1] == pytest.approx(3000 * RATES[-1] / np.log(2), rel=0.01)
    assert slopes[-2] / slopes[-1] == pytest.approx(2, rel=0.01)
    assert noise_free.extrapolated(errors) == pytest.approx(7, rel=1e-8)


def _forgotten(gamma, dt, steps, damped, path, right=gaussian.noise_free):
    right(gamma, dt, steps, False, path)


def _a_step_short(gamma, dt, steps, damped, path, right=gaussian.noise_free):
    right(gamma, dt, steps - 1, damped, path)


def _steps_too_long(gamma, dt, steps, damped, path, right=gaussian.noise_free):
    right(gamma, dt * 1.001, steps, damped, path)


@pytest.mark.parametrize("wrong", [_forgotten, _a_step_short, _steps_too_long])
def test_wrong_recursions_are_refuted(monkeypatch, wrong):
    monkeypatch.setattr(gaussian, "noise_free", wrong)
    assert not noise_free.measure(Setting("noise-free")).holds
