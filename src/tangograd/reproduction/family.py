"""From SGD, at δt = 1, to the natural gradient, as δt → 0: one family of algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tangograd.reproduction.base import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Claim,
    Result,
    Setting,
    legend_below,
)
from tangograd.reproduction.gaussian_model import (
    START,
    TAU,
    M,
    circle,
    deviation,
    half_plane,
    noise_free,
)
from tangograd.reproduction.verdicts import exact, quantile
from tangograd.stream import averaged_sgd, tango
from tangograd.stream.models import gaussian

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

GAMMA = 1e-2
RATES = (1.0, 0.3, 0.1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
DRAWN = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5)
FALLING = (1e-2, 1e-3, 1e-4, 1e-5)
EVERY = 20  # steps from one recorded θ to the next; overshoots take hundreds
NEAR_SGD = (0.99, 0.999)
STEPS, AWAY = 20_000, 100  # for comparisons with SGD: how many, and those of the first jumps
CURVE = np.geomspace(1, 1e-5, 31)


def steps(dt: float) -> int:
    """Enough for both ends: SGD needs 10⁵ to come close to the optimum, the flow a time of 5."""
    return round(max(1e5, 5 / dt) / 1000) * 1000


def _tango(dt: float, rng: np.random.Generator) -> Array:
    n = steps(dt)
    return tango(
        gaussian, START, gamma=GAMMA, dt=dt, steps=n, rng=rng, constants=(M, TAU),
        records=n // EVERY,
    ).theta  # fmt: skip


def against_sgd(rngs: Sequence[np.random.Generator]) -> tuple[float, list[float]]:
    """TANGO and plain SGD at the rate γ.

    Args:
        rngs: four of them that draw the same random numbers.

    Returns:
        The largest difference of any parameter at any step at δt = 1, and the largest ones after
        the first :data:`AWAY` steps at the δt of :data:`NEAR_SGD`.
    """
    common: dict[str, Any] = {
        "gamma": GAMMA, "steps": STEPS, "constants": (M, TAU), "records": STEPS,
    }  # fmt: skip
    # the fast parameters of averaged SGD, which are recorded as v, are those of SGD
    sgd = averaged_sgd(gaussian, START, dt=1.0, rng=rngs[0], **common).v
    differences = [
        np.abs(tango(gaussian, START, dt=dt, rng=rng, **common).theta - sgd)
        for dt, rng in zip((1.0, *NEAR_SGD), rngs[1:], strict=True)
    ]
    return float(differences[0].max()), [float(d[AWAY:].max()) for d in differences[1:]]


def thinned(path: Array, points: int = 300) -> Array:
    """A path in (μ, σ) on its way to the optimum: points evenly along its length in (μ, ln σ)."""
    there = np.hypot(path[:, 0] - M, np.log(path[:, 1] / TAU)) < 0.2
    path = path[: np.argmax(there) + 1] if there.any() else path
    step = np.diff(np.stack([path[:, 0], np.log(path[:, 1])], axis=1), axis=0)
    length = np.concatenate([[0.0], np.hypot(*step.T).cumsum()])
    return path[np.searchsorted(length, np.linspace(0, length[-1], points))]


def noise_free_peak(dt: float) -> float:
    """The largest σ with mean gradients and Fisher matrices in place of samples."""
    path = np.empty((steps(dt) // EVERY + 1, 2))
    noise_free(GAMMA, dt, steps(dt), True, path)
    return float(np.exp(path[:, 1].max()))


def measure(setting: Setting) -> Result:
    """Paths, peaks of σ and deviations from the natural gradient for each δt; SGD beside δt = 1."""
    n, pairs, rates = (24, 24, DRAWN) if setting.quick else (100, 60, RATES)
    alike = [setting.generators(pairs, "sgd") for _ in range(4)]
    compared = setting.several(against_sgd, zip(*alike, strict=True), 0.1)
    total = sum(steps(dt) for dt in rates)
    family: dict[float, dict[str, Any]] = {}
    for dt in rates:
        share = 0.85 * steps(dt) / total
        runs = setting.several(partial(_tango, dt), setting.generators(n, f"{dt}"), share)
        paths = [half_plane(theta) for theta in runs]
        family[dt] = {
            "dt": dt,
            "peaks": [float(path[:, 1].max()) for path in paths],
            "deviations": [deviation(path) for path in paths],
        }
        if dt in DRAWN:
            typical = int(np.argsort(family[dt]["peaks"])[n // 2])
            family[dt]["path"] = thinned(paths[typical]).tolist()
    verdicts = [
        exact(
            f"largest difference of δt = 1 from SGD, {STEPS} steps",
            max(difference for difference, _ in compared),
            1e-12,
        ),
        quantile([near[0] / near[1] for _, near in compared]).near(
            f"median ratio of the distances from SGD, δt = {NEAR_SGD[0]} to {NEAR_SGD[1]}",
            (1 - NEAR_SGD[0]) / (1 - NEAR_SGD[1]),
            # θ is a smooth function of δt: linear in 1-δt up to a relative error of its order
            within=0.1,
        ),
    ]
    for coarse, fine in pairwise(FALLING):
        ratios = np.divide(family[coarse]["deviations"], family[fine]["deviations"])
        verdicts.append(
            quantile(ratios).at_least(
                f"median ratio of the deviations from the circle, δt = {coarse:g} to {fine:g}", 2.0
            )
        )
    data = {
        "gamma": GAMMA,
        "natural_gradient": circle(300).tolist(),
        "family": list(family.values()),
        "noise_free": {"dt": CURVE.tolist(), "peaks": [noise_free_peak(dt) for dt in CURVE]},
        "distances_from_sgd": [near for _, near in compared],
    }
    setting.advance(0.05)
    return Result(verdicts, data)


def _draw_paths(ax: Axes, data: dict[str, Any]) -> None:
    ax.plot(*np.array(data["natural_gradient"]).T, color=GREY, lw=6, alpha=0.45,
            label="natural gradient")  # fmt: skip
    drawn = [member for member in data["family"] if "path" in member]
    for member, colour in zip(drawn, (BLUE, SKY, PURPLE, RED, ORANGE, GREEN), strict=True):
        name = f"δt = {member['dt']:g}" + (" (SGD)" if member["dt"] == 1 else "")
        ax.plot(*np.array(member["path"]).T, color=colour, lw=1.4, label=name)
    ax.plot(0, 1, "o", color="black", ms=5, zorder=3)
    ax.plot(10, 1, "*", color="black", ms=9, zorder=3)
    ax.set(xlabel="μ", ylabel="σ", yscale="log", title="Paths of TANGO")


def _draw_peaks(ax: Axes, data: dict[str, Any]) -> None:
    rates = [member["dt"] for member in data["family"]]
    low, middle, high = np.quantile([member["peaks"] for member in data["family"]],
                                    [0.05, 0.5, 0.95], axis=1)  # fmt: skip
    ax.errorbar(rates, middle, [middle - low, high - middle], fmt="o", color=GREEN, ms=5, lw=1.2,
                label="TANGO: median and 90% of runs")  # fmt: skip
    ax.plot(data["noise_free"]["dt"], data["noise_free"]["peaks"], color="black", lw=1,
            label="without noise")  # fmt: skip
    ax.axhline(np.sqrt(26), color=GREY, lw=6, alpha=0.45, zorder=0)
    ax.axvline(data["gamma"], color=GREY, lw=1, ls=":")
    ax.annotate("δt = γ", (data["gamma"], 0.03), (4, 0), ("data", "axes fraction"), "offset points")
    ax.set(xlabel="δt", xscale="log", yscale="log", title="Largest σ on the way", ylabel="σ")
    ax.invert_xaxis()


def draw(data: dict[str, Any], figure: Figure) -> None:
    """Paths for several δt, and the largest σ on the way for all of them."""
    left, right = figure.subplots(1, 2, sharey=True)
    _draw_paths(left, data)
    _draw_peaks(right, data)
    right.tick_params(labelleft=True)
    legend_below(figure, left, right, ncols=3)


CLAIM = Claim(
    name="family",
    title="From SGD to the natural gradient",
    where="Properties 1 and 2 of the introduction",
    sentences=(
        "At δt = 1 TANGO is SGD with the rate γ: the same numbers, to the last bit. As δt falls "
        "with γ fixed, it becomes the natural gradient, and its path depends on δt without jumps. "
        "Here γ = 0.01, on the model of Figure 1.\n\n"
        "The paths do not lie between those of the two ends, though. Where δt is about γ, the "
        "velocity carries on for tens of steps as in SGD with momentum, and from this start, where "
        "gradients are large, it overshoots to a σ of 30 or more before it comes back. The left "
        "panel shows the run with the median peak for each δt."
    ),
    measure=measure,
    draw=draw,
    size=(8.0, 5.0),
)
