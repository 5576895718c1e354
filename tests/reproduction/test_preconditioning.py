"""Learned diagonals, the natural gradient's own speed, and refuted alternatives."""

import numpy as np
import pytest

from tangograd.reproduction import preconditioning as claim
from tangograd.reproduction.base import Setting
from tangograd.reproduction.gaussian import Coordinates
from tangograd.reproduction.models import AFFINE


@pytest.fixture(scope="module")
def quick():
    return Setting("preconditioning", quick=True)


def test_learned_diagonals(quick):
    none, rms, inverse = claim.learned(quick)
    s = claim.SCALES
    assert np.allclose(rms[1] * s, rms[1][0] * s[0])  # g_i is s_i times ± the residual
    assert np.allclose(inverse[1], 1 / s**2)
    for _, C, gamma in (none, rms, inverse):
        assert np.isclose(gamma, 1 / (C @ s**2))


def test_expected_steps(quick):
    """The inverse diagonal is near the natural gradient, for which (1-δt)^2k = 0.01 at k = 114."""
    needed = {
        name: int(np.argmax(claim.expected_excess(C, gamma, 20_000) < claim.GOAL))
        for name, C, gamma in claim.learned(quick)
    }
    natural = int(np.ceil(np.log(claim.GOAL) / (2 * np.log(1 - claim.RATE))))
    assert natural == 114
    assert natural <= needed["inverse diagonal Fisher"] < 1.1 * natural
    # the slowest direction decays by 1 - γ C_i s_i² a step
    slowest = np.log(1 / np.sqrt(5 * claim.GOAL)) * (claim.SCALES**2).sum()
    assert np.isclose(needed["no C"], slowest, rtol=0.03)


def test_another_root_is_refuted(quick, monkeypatch):
    assert claim.change_of_variable_error(quick) < 1e-12
    monkeypatch.setattr(claim, "root", lambda C: Coordinates("C⁻¹θ", AFFINE, C))
    assert claim.change_of_variable_error(quick) > 1e-3


@pytest.mark.parametrize(
    "wrong",
    [
        lambda options: options | {"C": options["C"] / 2},
        lambda options: options | {"C": options["C"] ** 2},
        lambda options: options | {"dt": 2 * options["dt"]},
    ],
    ids=["C/2", "C²", "2δt"],
)
def test_another_speed_is_refuted(quick, monkeypatch, wrong):
    right = claim.tango
    monkeypatch.setattr(claim, "tango", lambda *args, **options: right(*args, **wrong(options)))
    name, C, gamma = claim.learned(quick)[1]
    verdict, *_ = claim._speed(quick, name, C, gamma, "black")
    assert not verdict.holds
