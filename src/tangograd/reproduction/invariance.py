"""Invariance: in other coordinates of a model, TANGO follows the same path and SGD another."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tangograd.reproduction import figures as fig
from tangograd.reproduction import gaussian
from tangograd.reproduction.base import Array, Result, Setting
from tangograd.reproduction.gaussian import Coordinates, half_plane
from tangograd.reproduction.models import AFFINE, NATURAL, STANDARD
from tangograd.reproduction.preconditioning import MEAN, distances, run_in
from tangograd.reproduction.verdicts import exact, quantile

SHEAR = ((1.0, 1.0), (0.0, 1.0))
#: Coordinates, γ (leaving velocities their fourth moment), SGD's rate and its time in the picture.
COORDINATES: tuple[tuple[Coordinates, float, float, float], ...] = (
    (Coordinates("(μ, ln σ)", AFFINE), 0.02, 2e-4, 40.0),
    (Coordinates("(μ - ln σ, ln σ)", AFFINE, SHEAR), 0.02, 2e-4, 40.0),
    (Coordinates("(μ, σ)", STANDARD), 0.02, 2e-4, 40.0),
    (Coordinates("(μ/σ², -1/2σ²)", NATURAL), 0.002, 1e-5, 20.0),
)
COLOURS = (fig.BLUE, fig.ORANGE, fig.GREEN, fig.PURPLE)


def peak(path: Array) -> tuple[float, float]:
    """Return the time of the largest σ² on a gradient flow, and its value."""
    at = int(np.argmax(path[:, 2]))
    return float(path[at, 0]), float(np.exp(2 * path[at, 2]))


def linear_error(setting: Setting) -> float:
    """Return the difference of (μ, ln σ) from its rotated, stretched version, C transformed too.

    ``φ = Λ R θ`` with a rotation R and ``C_φ = Λ R C Rᵀ Λ = Λ²``: the same steps in θ.
    """
    angle, stretch, steps = 0.7, np.array([3.0, 0.2]), 2000
    R = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    other = Coordinates("φ", AFFINE, R.T / stretch)
    first, second = (setting.generators(1, "linear")[0] for _ in range(2))
    plain = run_in(COORDINATES[0][0], 0.02, steps, first, dt=1e-3, records=steps)
    turned = run_in(other, 0.02, steps, second, dt=1e-3, records=steps, C=stretch**2)
    return float(np.abs(plain - turned).max())


def measure(setting: Setting) -> Result:
    """Test TANGO in four coordinates against the natural gradient, SGD against its own limits."""
    what = "TANGO in (μ, ln σ) minus that in turned coordinates, C turned too"
    verdicts, peaks = [exact(what, linear_error(setting), 1e-10)], []
    setting.advance(0.04)
    left, right, samples = list[fig.Mark](), list[fig.Mark](), dict[str, Any]()
    for (where, gamma, rate, time), colour in zip(COORDINATES, COLOURS, strict=True):
        name, label = where.name, f"in {where.name}"
        verdict, near, shown = distances(setting, name, where, gamma, rate, time)
        verdicts.append(verdict)
        limit = gaussian.gradient_flow(time, MEAN, where.jacobian)
        at, expected = peak(limit)
        run = partial(run_in, where, rate, round(at / rate), dt=1.0)  # SGD, up to the peak
        paths = setting.sample(run, 40 if setting.quick else 200, f"{name}, SGD", 0.04)
        squares = [float(np.exp(2 * path[-1, 1])) for path in paths]
        what = f"median σ² of SGD where its flow has the peak, {name}"
        # the bias of SGD is of the order of its relative variance, 0.02² or less
        peaks.append(quantile(squares).near(what, expected, within=0.01 * expected))
        samples[name] = {"distances": near, "peaks": squares}
        for marks, path in zip((right, left), shown, strict=True):
            marks.append(fig.path(path, colour, label))
        left.append(fig.path(half_plane(limit[:, 1:3]), fig.BLACK, width=1, style=":"))
    left.append(fig.expected([], [], "SGD's limit in each"))
    options: dict[str, Any] = {"mean": MEAN, "xlim": (-0.6, 3.7), "ylim": (0.6, 3)}
    panels = [
        gaussian.half_plane_panel(*marks, title=title, **options)
        for marks, title in ((left, "SGD"), (right, "TANGO"))
    ]
    return Result([*verdicts, *peaks[2:]], fig.Picture(panels, (8.0, 4.4), legend=3), samples)
