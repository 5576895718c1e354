"""Figure 1: from N(0, 1) to N(10, 1), by SGD, averaged SGD, TANGO and the natural gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.integrate import solve_ivp

from tangograd.reproduction.base import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    Claim,
    Result,
    Setting,
    legend_below,
)
from tangograd.reproduction.gaussian_model import (
    START,
    TAU,
    Array,
    M,
    circle,
    deviation,
    fisher,
    half_plane,
    natural_gradient,
)
from tangograd.reproduction.verdicts import frequency, quantile
from tangograd.stream import Run, averaged_sgd, tango
from tangograd.stream.models import gaussian

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAMMA, SGD_RATE, SGD_STEPS = 1e-2, 1e-3, 100_000
RATES = (1e-4, 1e-5)
TIME = 10.0  # the natural gradient is then within 10 e⁻¹⁰ of the optimum
POINTS = 1000
PEAKS = (22.7, 36.4)  # where 95% of the runs at δt=1e-4 have the largest σ²


def _path(method: Callable[..., Run], dt: float, rng: np.random.Generator) -> Array:
    """A run of TANGO or of averaged SGD, in (μ, σ)."""
    run = method(
        gaussian, START, gamma=GAMMA, dt=dt, steps=round(TIME / dt), rng=rng,
        constants=(M, TAU), records=POINTS,
    )  # fmt: skip
    return half_plane(run.theta)


def _sgd(rng: np.random.Generator) -> Array:
    run = tango(
        gaussian,
        START,
        gamma=SGD_RATE,
        dt=1.0,
        steps=SGD_STEPS,
        rng=rng,
        constants=(M, TAU),
        records=POINTS,
    )
    return half_plane(run.theta)


def noise_free_peaks() -> tuple[float, float]:
    """The largest σ² on the ways of SGD and of averaged SGD, with the mean gradient F.

    ``dθ/dt = -F(θ)``; and ``dθ_fast/dt = -(γ/δt) F(θ_fast)``, ``dθ/dt = θ_fast - θ``.
    """

    def fast(_: float, theta: Array) -> Array:
        return -fisher(theta) * natural_gradient(theta)

    def averaged(_: float, y: Array) -> Array:
        return np.concatenate([GAMMA / RATES[0] * fast(0.0, y[:2]), y[:2] - y[2:]])

    peaks = []
    for slope, start, end in ((fast, START, SGD_RATE * SGD_STEPS), (averaged, 2 * START, TIME)):
        path = solve_ivp(slope, (0, end), start, "LSODA", rtol=1e-8, atol=1e-8, max_step=end / 1000)
        peaks.append(float(np.exp(2 * path.y[-1].max())))
    return peaks[0], peaks[1]


def measure(setting: Setting) -> Result:
    """Paths for the picture, and over many runs the deviation from the circle and the peak σ²."""
    n = 30 if setting.quick else 200
    data: dict[str, Any] = {
        "gamma": GAMMA,
        "sgd_rate": SGD_RATE,
        "time": TIME,
        "natural_gradient": circle().round(4).tolist(),
        "tango": [],
    }
    for dt, share in zip(RATES, (0.1, 0.8), strict=True):
        paths = setting.several(
            partial(_path, tango, dt), setting.generators(n, f"tango {dt}"), share
        )
        data["tango"].append(
            {
                "dt": dt,
                "path": paths[0].round(4).tolist(),
                "deviations": [deviation(path) for path in paths],
                "peaks": [float((path[:, 1] ** 2).max()) for path in paths],
            }
        )
    averaged = setting.several(
        partial(_path, averaged_sgd, RATES[0]), setting.generators(n, "averaged"), 0.05
    )
    sgd = setting.several(_sgd, setting.generators(n, "sgd"), 0.05)
    for name, paths in (("averaged_sgd", averaged), ("sgd", sgd)):
        data[name] = {
            "path": paths[0].round(4).tolist(),
            "peaks": [float((path[:, 1] ** 2).max()) for path in paths],
        }
    coarse, fine = data["tango"]
    low, high = PEAKS
    inside = [low <= peak <= high for peak in coarse["peaks"]]
    sgd_peak, averaged_peak = noise_free_peaks()
    verdicts = [
        # an independent simulation of many runs had 95% of them there, to about a hundredth
        frequency(inside).near(
            f"runs with a peak σ² in {low} … {high} (a separate simulation), δt=1e-4", 0.95, 0.03
        ),
        # at δt=1e-5 the median is above the circle's by less than the sd of the peaks, 0.5
        quantile(fine["peaks"]).near("median peak σ² of TANGO, δt=1e-5", 26, within=0.5),
        quantile(fine["deviations"]).at_most("median deviation from the circle, δt=1e-5", 0.1),
        quantile(np.array(coarse["deviations"]) / np.array(fine["deviations"])).at_least(
            "median ratio of deviations, δt=1e-4 to 1e-5", 2.0
        ),
        # the bias of averaged SGD is 1.5 γ of the variance
        quantile(data["averaged_sgd"]["peaks"]).near(
            "median peak σ² of averaged SGD", averaged_peak, within=1.5 * GAMMA * averaged_peak
        ),
        # noise makes the largest of many σ² larger, by the order of the fluctuations √γ/10
        quantile(data["sgd"]["peaks"]).near(
            "median peak σ² of SGD", sgd_peak, within=0.01 * sgd_peak
        ),
    ]
    return Result(verdicts, data)


def draw(data: dict[str, Any], figure: Figure) -> None:
    """The paper's figure, in the (μ, σ) half plane."""
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for ax, run in zip(axes, data["tango"], strict=True):
        for path, colour, width, name in (
            (data["natural_gradient"], GREY, 5, "natural gradient"),
            (run["path"], GREEN, 1.2, "TANGO"),
            (data["averaged_sgd"]["path"], ORANGE, 1.5, "averaged SGD"),
            (data["sgd"]["path"], BLUE, 1, "SGD"),
        ):
            x, y = np.array(path).T
            ax.plot(x, y, color=colour, lw=width, label=name, alpha=0.45 if width == 5 else 1)
        ax.plot(*[(0,), (1,)], "o", color=RED, ms=5)
        ax.plot(*[(10,), (1,)], "*", color=RED, ms=10)
        ax.set(title=f"TANGO at δt = {run['dt']:g}", xlabel="μ", ylim=(0, None))
        ax.set_aspect("equal")
    axes[0].set_ylabel("σ")
    legend_below(figure, axes[0], ncols=4)


CLAIM = Claim(
    name="figure-1",
    title="TANGO follows the natural gradient",
    where="Figure 1",
    sentences=(
        "A Gaussian N(0, 1) is to become N(10, 1). In the half plane of (μ, σ) the natural "
        "gradient goes along the half circle (μ-5)² + σ² = 26: it first becomes uncertain, up to "
        "σ² = 26, moves over, and becomes certain again. TANGO at γ = 0.01 follows that circle, "
        "with fluctuations at δt = 1e-4, closely at 1e-5. SGD at the rate 1e-3 first becomes far "
        "too uncertain; averaged SGD, with γ = 0.01 and δt = 1e-4, hardly does, and lags behind."
    ),
    measure=measure,
    draw=draw,
    size=(8.0, 3.9),
)
