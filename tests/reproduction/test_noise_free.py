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


@pytest.mark.parametrize(
    "wrong",
    [
        lambda dt, steps, damped: {"dt": dt, "steps": steps, "damped": False},
        lambda dt, steps, damped: {"dt": dt, "steps": steps - 1, "damped": damped},
        lambda dt, steps, damped: {"dt": dt * 1.001, "steps": steps, "damped": damped},
    ],
    ids=["forgotten 1-δt", "a step short", "steps too long"],
)
def test_wrong_recursions_are_refuted(monkeypatch, wrong):
    right = gaussian.moments
    monkeypatch.setattr(
        gaussian,
        "moments",
        lambda gamma, dt, steps, *, noisy, damped: right(
            gamma, noisy=noisy, **wrong(dt, steps, damped)
        ),
    )
    assert not noise_free.measure(Setting("noise-free")).holds
