"""Without sampling noise, TANGO's error is O(δt)."""

from __future__ import annotations

from functools import partial

import numpy as np

from tangograd.reproduction import figures as fig
from tangograd.reproduction import gaussian
from tangograd.reproduction.base import Array, Result, Setting
from tangograd.reproduction.gaussian import expansion, flow
from tangograd.reproduction.verdicts import exact, number

TIME = 2.0
GAMMAS = (0.01, 0.1)  # the proposition needs γ < 1/λ_max = ½ where σ² ≥ ½
RATES = tuple(1e-3 * 0.5**j for j in range(11))
KINDS = {False: "as in the proposition", True: "with TANGO's factors 1-δt"}


def error(gamma: float, damped: bool, dt: float) -> float:
    """Return ``‖θ_{T/δt} - θ(T)‖`` in (μ, ln σ)."""
    theta, _ = gaussian.moments(gamma, dt, round(TIME / dt), noisy=False, damped=damped)
    return float(np.linalg.norm(theta - flow(TIME)))


def local_slopes(errors: Array) -> Array:
    """Return the slopes between neighbours of :data:`RATES`: ``log₂ e(δt)/e(δt/2)``.

    Where ``e = c δt (1 + k δt + O(δt²))`` this is ``1 + k δt/(2 ln 2) + O(δt²)``: its distance from
    1 is halved with δt.
    """
    return np.log2(errors[:-1] / errors[1:])


def extrapolated(errors: Array) -> float:
    """Return c from the last three errors by Richardson's method: ``c (1 + O(δt³))``."""
    ratios = (errors / np.array(RATES))[-3:]
    once = 2 * ratios[1:] - ratios[:-1]
    return float((4 * once[1] - once[0]) / 3)


def measure(setting: Setting) -> Result:
    """Compute the error at each δt, for two γ, with and without the factors 1-δt."""
    verdicts, marks, ends = [], list[fig.Mark](), np.array([7e-7, 1.4e-3])
    for gamma, colour in zip(GAMMAS, (fig.BLUE, fig.RED), strict=True):
        for damped, kind in KINDS.items():
            errors = np.array(setting.map(partial(error, gamma, damped), RATES, 0.25))
            constant = float(np.linalg.norm(expansion(gamma, TIME, noisy=False, damped=damped).b))
            slopes, where = local_slopes(errors), f"γ = {gamma:g}, {kind}"
            what = f"error/δt as δt → 0, relative difference from {constant:.4g}; {where}"
            # corrections k δt with k up to 10⁴ leave (k δt)³ after the extrapolation
            verdicts.append(exact(what, abs(extrapolated(errors) / constant - 1), 1e-5))
            if gamma == GAMMAS[0]:
                what = f"slope at δt = {RATES[-1]:.2g}; {where}"
                verdicts.append(number(float(slopes[-1])).near(what, 1.0, within=0.01))
                ratio = float((slopes[-2] - 1) / (slopes[-1] - 1))  # the last is TANGO's
            marker = "s" if damped else "o"
            marks += [
                fig.curve(ends, constant * ends, fig.GREY, width=1),
                fig.points(RATES, errors, colour, where, marker=marker, hollow=not damped),
            ]
    what = "by how much the slope comes nearer to 1 when δt is halved"
    verdicts.append(number(ratio).near(what, 2.0, within=0.1))
    marks.append(fig.curve([], [], fig.GREY, "computed limit, proportional to δt", width=1))
    ylabel = f"‖θ - natural gradient‖ at time {TIME:g}"
    panel = fig.panel(*marks, log="xy", xlabel="δt", ylabel=ylabel)
    return Result(verdicts, fig.Picture([panel], (8.0, 5.0), legend=2))
