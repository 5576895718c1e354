"""Figure 1: from N(0, 1) to N(10, 1), by SGD, averaged SGD, TANGO and the natural gradient."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tangograd.reproduction.base import BLUE, GREEN, GREY, ORANGE, RED, Claim, Result, Setting
from tangograd.reproduction.verdicts import Verdict, quantile
from tangograd.stream import averaged_sgd, tango
from tangograd.stream.models import gaussian

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAMMA, SGD_RATE = 1e-2, 1e-3
RATES = (1e-4, 1e-5)
TIME = 10.0  # the natural gradient is then within e⁻¹⁰ of the optimum
START, DATA = (0.0, 0.0), (10.0, 1.0)
POINTS = 1000


def natural_gradient(points: int = POINTS) -> NDArray[np.float64]:
    """(μ, σ) along the exact flow: ``μ = 10 (1-e⁻ᵗ)``, ``σ² = 1 + 100 e⁻ᵗ(1-e⁻ᵗ)``."""
    decay = np.linspace(1, np.exp(-TIME), points)
    return np.stack([10 * (1 - decay), np.sqrt(1 + 100 * decay * (1 - decay))], axis=1)


def half_plane(theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """(μ, ln σ) to (μ, σ)."""
    return np.stack([theta[:, 0], np.exp(theta[:, 1])], axis=1)


def deviation(path: NDArray[np.float64]) -> float:
    """The largest distance of a path in (μ, σ) from the circle ``(μ-5)² + σ² = 26``."""
    return float(np.abs(np.hypot(path[:, 0] - 5, path[:, 1]) - np.sqrt(26)).max())


def _tango(dt: float, rng: np.random.Generator) -> NDArray[np.float64]:
    steps = round(TIME / dt)
    run = tango(
        gaussian, START, gamma=GAMMA, dt=dt, steps=steps, rng=rng, constants=DATA, records=POINTS
    )
    return half_plane(run.theta)


def _averaged(dt: float, rng: np.random.Generator) -> NDArray[np.float64]:
    steps = round(TIME / dt)
    run = averaged_sgd(
        gaussian, START, gamma=GAMMA, dt=dt, steps=steps, rng=rng, constants=DATA, records=POINTS
    )
    return half_plane(run.theta)


def _sgd(rng: np.random.Generator) -> NDArray[np.float64]:
    run = tango(
        gaussian,
        START,
        gamma=SGD_RATE,
        dt=1.0,
        steps=100_000,
        rng=rng,
        constants=DATA,
        records=POINTS,
    )
    return half_plane(run.theta)


def measure(setting: Setting) -> Result:
    """Paths for the picture, and over many runs the deviation from the circle and the peak σ²."""
    n = 60 if setting.quick else 200
    data: dict[str, Any] = {
        "gamma": GAMMA,
        "sgd_rate": SGD_RATE,
        "time": TIME,
        "natural_gradient": natural_gradient().tolist(),
        "tango": [],
    }
    verdicts: list[Verdict] = []
    for dt, share in zip(RATES, (0.1, 0.8), strict=True):
        paths = setting.several(partial(_tango, dt), setting.generators(n, f"tango {dt}"), share)
        data["tango"].append(
            {
                "dt": dt,
                "path": paths[0].tolist(),
                "deviations": [deviation(path) for path in paths],
                "peaks": [float((path[:, 1] ** 2).max()) for path in paths],
            }
        )
    averaged = setting.several(
        partial(_averaged, RATES[0]), setting.generators(n, "averaged"), 0.05
    )
    sgd = setting.several(_sgd, setting.generators(n, "sgd"), 0.05)
    for name, paths in (("averaged_sgd", averaged), ("sgd", sgd)):
        data[name] = {
            "path": paths[0].tolist(),
            "peaks": [float((path[:, 1] ** 2).max()) for path in paths],
        }
    coarse, fine = data["tango"]
    verdicts += [
        quantile(coarse["peaks"]).between("median peak σ² of TANGO, δt=1e-4", 24, 32),
        quantile(fine["peaks"]).near("median peak σ² of TANGO, δt=1e-5", 26, within=0.5),
        quantile(fine["deviations"]).at_most("median deviation from the circle, δt=1e-5", 0.1),
        quantile(np.array(coarse["deviations"]) / np.array(fine["deviations"])).at_least(
            "median ratio of deviations, δt=1e-4 to 1e-5", 2.0
        ),
        quantile(data["averaged_sgd"]["peaks"]).at_most("median peak σ² of averaged SGD", 6),
        quantile(data["sgd"]["peaks"]).at_least("median peak σ² of SGD", 80),
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
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)


CLAIM = Claim(
    name="figure-1",
    title="TANGO follows the natural gradient",
    where="Figure 1",
    sentences=(
        "A Gaussian N(0, 1) is to become N(10, 1). In the half plane of (μ, σ) the natural "
        "gradient goes along the half circle (μ-5)² + σ² = 26: it first becomes uncertain, up to "
        "σ² = 26, moves over, and becomes certain again. TANGO at γ = 0.01 follows that circle, "
        "with fluctuations at δt = 1e-4, closely at 1e-5. SGD at the rate 1e-3 first becomes far "
        "too uncertain; averaged SGD, with TANGO's γ and δt, hardly does, and lags behind."
    ),
    measure=measure,
    draw=draw,
    size=(8.0, 3.9),
)
