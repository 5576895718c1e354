"""Without sampling noise, TANGO's error is O(δt)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tangograd.reproduction import gaussian_model
from tangograd.reproduction.base import BLUE, GREY, RED, Claim, Result, Setting, legend_below
from tangograd.reproduction.gaussian_model import expansion, flow
from tangograd.reproduction.verdicts import exact, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIME = 2.0
GAMMAS = (0.01, 0.1)  # the proposition needs γ < 1/λ_max = ½ where σ² ≥ ½
RATES = tuple(1e-3 * 0.5**j for j in range(11))
KINDS = {False: "as in the proposition", True: "with TANGO's factors 1-δt"}


def error(gamma: float, damped: bool, dt: float) -> float:
    """``‖θ_{T/δt} - θ(T)‖`` in (μ, ln σ)."""
    path = np.empty((2, 2))
    gaussian_model.noise_free(gamma, dt, round(TIME / dt), damped, path)
    return float(np.linalg.norm(path[-1] - flow(TIME)))


def local_slopes(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Between neighbours of :data:`RATES`: ``log₂ e(δt)/e(δt/2)``.

    Where ``e = c δt (1 + k δt + O(δt²))`` this is ``1 + k δt/(2 ln 2) + O(δt²)``: its distance from
    1 is halved with δt.
    """
    return np.log2(errors[:-1] / errors[1:])


def extrapolated(errors: NDArray[np.float64]) -> float:
    """The constant c from the last three errors, by Richardson: ``c (1 + O(δt³))``."""
    ratios = (errors / np.array(RATES))[-3:]
    once = 2 * ratios[1:] - ratios[:-1]
    return float((4 * once[1] - once[0]) / 3)


def measure(setting: Setting) -> Result:
    """The error at each δt, for two γ, with and without the factors 1-δt."""
    verdicts, curves = [], []
    for gamma in GAMMAS:
        for damped, kind in KINDS.items():
            errors = np.array(setting.several(partial(error, gamma, damped), RATES, 0.25))
            constant = float(np.linalg.norm(expansion(gamma, TIME, noisy=False, damped=damped).b))
            slopes = local_slopes(errors)
            curves.append(
                {
                    "gamma": gamma,
                    "kind": kind,
                    "dt": list(RATES),
                    "errors": errors.tolist(),
                    "constant": constant,
                }
            )
            where = f"γ = {gamma:g}, {kind}"
            # corrections k δt with k up to 10⁴ leave (k δt)³ after the extrapolation
            verdicts.append(
                exact(
                    f"error/δt as δt → 0, relative difference from {constant:.4g}; {where}",
                    abs(extrapolated(errors) / constant - 1),
                    1e-5,
                )
            )
            if gamma == GAMMAS[0]:
                verdicts.append(
                    number(float(slopes[-1])).near(
                        f"slope at δt = {RATES[-1]:.2g}; {where}", 1.0, within=0.01
                    )
                )
    tango = np.array(curves[1]["errors"])
    ratio = (local_slopes(tango)[-2] - 1) / (local_slopes(tango)[-1] - 1)
    verdicts.append(
        number(float(ratio)).near(
            "by how much the slope comes nearer to 1 when δt is halved", 2.0, within=0.1
        )
    )
    return Result(verdicts, {"time": TIME, "curves": curves})


def draw(data: dict[str, Any], figure: Figure) -> None:
    """Errors against δt, with the computed limits."""
    ax = figure.subplots()
    for curve in data["curves"]:
        colour = BLUE if curve["gamma"] == GAMMAS[0] else RED
        proposition = curve["kind"] == KINDS[False]
        ax.plot(
            curve["dt"], curve["errors"], "o" if proposition else "s", color=colour, ms=6,
            mfc="white" if proposition else colour,
            label=f"γ = {curve['gamma']:g}, {curve['kind']}",
        )  # fmt: skip
        ends = np.array([7e-7, 1.4e-3])
        ax.plot(ends, curve["constant"] * ends, color=GREY, lw=1, zorder=0)
    ax.plot([], [], color=GREY, lw=1, label="computed limit, proportional to δt")
    ax.set(
        xscale="log", yscale="log", xlabel="δt",
        ylabel=f"‖θ - natural gradient‖ at time {data['time']:g}",
    )  # fmt: skip
    legend_below(figure, ax, ncols=2)


CLAIM = Claim(
    name="noise-free",
    title="Without noise, the error is of the order of δt",
    where="Proposition 4",
    sentences=(
        "With the mean gradient and the Fisher matrix in place of random samples, the error is of "
        "the order of δt instead of √δt. On the Gaussian model it is proportional to δt, with the "
        "constant that a first-order expansion gives, whose main terms are proportional to 1/γ: "
        "velocities that settle slowly lag behind.\n\n"
        "The paper's proposition leaves out the factors 1-δt of TANGO. They cost nothing and, on "
        "this model and for small δt, make the error many times smaller: the damping δt/γ that "
        "they bring cancels most of the lag."
    ),
    measure=measure,
    draw=draw,
    size=(8.0, 5.0),
)
