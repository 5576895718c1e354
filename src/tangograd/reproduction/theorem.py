"""The theorem: TANGO after T/δt steps is the natural gradient at time T, up to O(√δt)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

from tangograd.reproduction.base import BLUE, GREY, RED, Claim, Result, Setting, legend_below
from tangograd.reproduction.gaussian_model import (
    START,
    TAU,
    Expansion,
    M,
    expansion,
    flow,
    mean_and_covariance,
)
from tangograd.reproduction.verdicts import Interval, Verdict, frequency, mean, quantile
from tangograd.stream import tango
from tangograd.stream.models import gaussian

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

GAMMA, TIME = 1e-2, 2.0
RATES = (1e-3, 1e-4, 3e-5, 1e-5, 3e-6)
QUICK = RATES[:-1]
SMALL = 3e-5  # the slope is fitted from here down
NAMES = ("μ", "ln σ")
CURVE = np.geomspace(RATES[0], RATES[-1], 16)
ONE_SIGMA = 0.6827  # of a normal variable is within one standard deviation


def _error(dt: float, rng: np.random.Generator) -> Array:
    """θ at time T, minus the natural gradient's."""
    steps = round(TIME / dt)
    run = tango(gaussian, START, gamma=GAMMA, dt=dt, steps=steps, rng=rng, constants=(M, TAU))
    return np.asarray(run.theta[-1] - flow(TIME))


def computed(dt: float, *, curvature: bool = True) -> tuple[Array, Array]:
    """Mean and covariance of the error at δt, by recursion and not by sampling."""
    m, P = mean_and_covariance(GAMMA, dt, round(TIME / dt), curvature=curvature)
    return m - flow(TIME), P


def slope(rates: list[float], sizes: Array) -> Array:
    """By least squares, the exponent of δt; ``sizes`` has one row for each δt."""
    x = np.log(rates) - np.log(rates).mean()
    return np.asarray(x @ np.log(sizes) / (x @ x))


def spread(errors: Array, S: Array) -> Array:
    """The standard deviation over the last axis but one, both coordinates in one.

    ``√(E (e-ē)ᵀ S⁻¹ (e-ē) / 2)``: it is √δt where the covariance is ``δt S``.
    """
    centred = errors - errors.mean(-2, keepdims=True)
    squares = np.einsum("...i,ij,...j->...", centred, np.linalg.inv(S), centred)
    return np.asarray(np.sqrt(squares.sum(-1) / (2 * (errors.shape[-2] - 1))))


def spread_of(P: Array, S: Array) -> float:
    """:func:`spread` for a covariance that is known: ``√(tr S⁻¹P / 2)``."""
    return float(np.sqrt(np.trace(np.linalg.solve(S, P)) / 2))


def slopes(errors: dict[float, Array], S: Array, blocks: int) -> Interval:
    """The slope of :func:`spread`, fitted in each of several blocks of runs.

    In a block the logarithm of the spread is biased, but at every δt by the same amount.
    """
    small = _small(errors)
    sizes = [spread(errors[dt].reshape(blocks, -1, 2), S) for dt in small]
    return mean(slope(small, np.array(sizes)))


def predicted_slope(rates: list[float], S: Array, *, curvature: bool) -> float:
    """The slope of the computed spread."""
    sizes = [spread_of(computed(dt, curvature=curvature)[1], S) for dt in rates]
    return float(slope(rates, np.array(sizes)))


def _small(errors: dict[float, Array]) -> list[float]:
    return [dt for dt in errors if dt <= SMALL]


def one_sigma(bias: float, sd: float) -> float:
    """Where ``|N(bias, sd²)|`` has probability :data:`ONE_SIGMA` to be below."""

    def excess(x: float) -> float:
        return float(ndtr((x - bias) / sd) - ndtr((-x - bias) / sd)) - ONE_SIGMA

    return float(brentq(excess, 0.0, abs(bias) + 10 * sd))


def radius(errors: Array, S: Array, dt: float) -> Array:
    """``√(eᵀ S⁻¹ e / δt)``; in the limit ``P(radius > r) = exp(-r²/2)``."""
    return np.asarray(np.sqrt(np.einsum("ni,ij,nj->n", errors, np.linalg.inv(S), errors) / dt))


def share_error(limit: Expansion, dt: float, r: float) -> float:
    """How far ``P(radius ≤ r)`` can be from that of the limit at this δt.

    In coordinates in which the limit is N(0, I), the error is a normal variable that is at most k
    and at least h times as wide and shifted by d: the probability is between those of the radii
    ``(r-d)/k`` and ``(r+d)/h``.
    """
    bias, P = computed(dt)
    root = np.linalg.inv(np.linalg.cholesky(limit.S * dt))
    low, high = np.sqrt(np.linalg.eigvalsh(root @ P @ root.T))
    d = float(np.linalg.norm(root @ bias))
    inner, outer = (np.exp(-(x**2) / 2) for x in ((r - d) / high, (r + d) / low))
    return float(max(inner - np.exp(-(r**2) / 2), np.exp(-(r**2) / 2) - outer))


def _verdicts(errors: dict[float, Array], limit: Expansion, blocks: int) -> list[Verdict]:
    small, coarse, fine = _small(errors), RATES[1], min(errors)
    curved, flat = (predicted_slope(small, limit.S, curvature=c) for c in (True, False))
    verdicts = [
        slopes(errors, limit.S, blocks).near(
            f"slope of the sd from δt = {SMALL:g} to {fine:g} (½ in the limit)",
            curved,
            within=abs(curved - flat),  # what the second order changes bounds what the third would
        )
    ]
    bias, P = computed(fine)
    for i, name in enumerate(NAMES):
        sd = float(np.sqrt(limit.S[i, i]))
        finite = one_sigma(bias[i], float(np.sqrt(P[i, i]))) / np.sqrt(fine)
        verdicts.append(
            quantile(np.abs(errors[fine][:, i]) / np.sqrt(fine), ONE_SIGMA).near(
                f"sd of {name} over √δt, from the 68% quantile, δt = {fine:g}",
                sd,
                within=abs(finite - sd),
            )
        )
    r = np.sqrt(-2 * np.log(0.05))
    verdicts.append(
        frequency(radius(errors[fine], limit.S, fine) <= r).near(
            f"runs in the 95% ellipse of the limit, δt = {fine:g}",
            0.95,
            within=share_error(limit, fine, r),
        )
    )
    for dt in (coarse, fine):
        expected = computed(dt)[0][1]
        verdicts.append(
            mean(errors[dt][:, 1]).near(
                f"bias of ln σ, δt = {dt:g}",
                expected,
                within=abs(expected - computed(dt, curvature=False)[0][1]),
            )
        )
    return verdicts


def measure(setting: Setting) -> Result:
    """Errors over many runs at each δt, beside their computed mean and covariance."""
    rates, blocks, runs = (QUICK, 40, 5) if setting.quick else (RATES, 40, 25)
    steps = np.array([1 / dt for dt in rates])
    errors = {
        dt: np.array(
            setting.several(
                partial(_error, dt), setting.generators(blocks * runs, f"{dt}"), 0.95 * share
            )
        )
        for dt, share in zip(rates, steps / steps.sum(), strict=True)
    }
    limit = expansion(GAMMA, TIME)
    curve = [computed(dt) for dt in CURVE]
    verdicts = _verdicts(errors, limit, blocks)
    setting.advance(0.05)
    data = {
        "gamma": GAMMA,
        "time": TIME,
        "natural_gradient": flow(TIME).tolist(),
        "limit": {"b": limit.b.tolist(), "S": limit.S.tolist()},
        "runs": [{"dt": dt, "errors": e.tolist()} for dt, e in errors.items()],
        "computed": {
            "dt": CURVE.tolist(),
            "bias": [bias.tolist() for bias, _ in curve],
            "sd": [np.sqrt(np.diag(P)).tolist() for _, P in curve],
        },
    }
    return Result(verdicts, data)


def _draw_sizes(ax: Axes, data: dict[str, Any]) -> None:
    rates = np.array([run["dt"] for run in data["runs"]])
    errors = [np.array(run["errors"]) for run in data["runs"]]
    n = len(errors[0])
    ends = np.array([1.6e-3, 1.8e-6])
    for i, (name, colour) in enumerate(zip(NAMES, (BLUE, RED), strict=True)):
        sd = np.array([e[:, i].std(ddof=1) for e in errors])
        bias = np.abs([e[:, i].mean() for e in errors])
        for size, half, marker, what, known, limit in (
            (
                sd,
                1.96 * sd / np.sqrt(2 * n),
                "o",
                "sd",
                "sd",
                np.sqrt(ends * data["limit"]["S"][i][i]),
            ),
            (
                bias,
                1.96 * sd / np.sqrt(n),
                "s",
                "|bias|",
                "bias",
                ends * abs(data["limit"]["b"][i]),
            ),
        ):
            fill = colour if what == "sd" else "white"
            low = np.minimum(half, size * 0.999)
            ax.errorbar(
                rates, size, [low, half], fmt=marker, color=colour, mfc=fill, ms=5, lw=1,
                label=f"{what} of {name}", zorder=3,
            )  # fmt: skip
            ax.plot(
                data["computed"]["dt"], np.abs(np.array(data["computed"][known])[:, i]),
                color=colour, lw=1, alpha=0.7,
            )  # fmt: skip
            ax.plot(ends, limit, ":", color=GREY, lw=1)
    ax.set(
        xscale="log", yscale="log", xlim=(ends[1], ends[0]), ylim=(3e-5, 20),
        xlabel="δt", ylabel=f"error at time {data['time']:g}", title="Error against δt",
    )  # fmt: skip
    ax.text(3.2e-6, 1.9e-2, "√δt", color=GREY)
    ax.text(5e-6, 2e-4, "δt", color=GREY)


def _draw_scatter(ax: Axes, data: dict[str, Any]) -> None:
    run, S = data["runs"][-1], np.array(data["limit"]["S"])
    x, y = np.array(run["errors"]).T / np.sqrt(run["dt"])
    ax.plot(x, y, ".", color=BLUE, ms=3, alpha=0.6, label="a run of TANGO")
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.linalg.cholesky(S) @ np.stack([np.cos(angle), np.sin(angle)])
    for share, style in ((0.5, "--"), (0.95, "-")):
        ellipse = np.sqrt(-2 * np.log(1 - share)) * circle
        ax.plot(*ellipse, style, color="black", lw=1.3, label=f"{share:.0%} of the limit")
    ax.set(
        xlabel="error of μ / √δt", ylabel="error of ln σ / √δt",
        title=f"{len(x)} runs at δt = {run['dt']:g}",
    )  # fmt: skip


def draw(data: dict[str, Any], figure: Figure) -> None:
    """Standard deviation and bias against δt; the scaled errors at the smallest δt."""
    left, right = figure.subplots(1, 2)
    _draw_sizes(left, data)
    _draw_scatter(right, data)
    legend_below(figure, left, right, ncols=4)


CLAIM = Claim(
    name="theorem",
    title="The error is of the order of √δt",
    where="Theorems 3 and 5",
    sentences=(
        "After T/δt steps TANGO is where the natural gradient is at time T, up to a random error "
        "of the order of √δt, at a fixed γ. On the Gaussian model of Figure 1 at T = 2 the error's "
        "standard deviation falls like √δt and its bias faster, like δt; dotted lines are these "
        "limits. At δt = 1e-3 and 1e-4 the velocity lags behind and both are still larger.\n\n"
        "Nothing is fitted: the lines through the points come from a recursion for mean and "
        "covariance of θ and v without random numbers, and the ellipses from the linearised "
        "stochastic differential equation, whose solution is the limit of error / √δt."
    ),
    measure=measure,
    draw=draw,
    size=(8.0, 4.5),
)
