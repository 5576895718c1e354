"""The theorem: TANGO after T/δt steps is the natural gradient at time T, up to O(√δt)."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
from scipy.stats import foldnorm

from tangograd.reproduction import figures as fig
from tangograd.reproduction import gaussian
from tangograd.reproduction.base import Array, Result, Setting
from tangograd.reproduction.gaussian import Expansion, flow
from tangograd.reproduction.verdicts import Verdict, frequency, mean, quantile
from tangograd.stream import tango

GAMMA, TIME = 1e-2, 2.0
RATES = (1e-3, 1e-4, 3e-5, 1e-5, 3e-6)
QUICK = RATES[:-1]
SMALL = 3e-5  # the slope is fitted to this δt and smaller ones
NAMES = ("μ", "ln σ")
CURVE = np.geomspace(RATES[0], RATES[-1], 16)
BLOCKS = 40
ONE_SIGMA = 0.6827  # of a normal variable is within one standard deviation


def _error(dt: float, rng: np.random.Generator) -> Array:
    """Return θ at time T, minus the natural gradient's."""
    run = gaussian.run(tango, rng, gamma=GAMMA, dt=dt, steps=round(TIME / dt))
    return np.asarray(run.theta[-1] - flow(TIME))


@lru_cache
def computed(dt: float, *, curvature: bool = True) -> tuple[Array, Array]:
    """Return mean and covariance of the error at δt, from the recursion of moments."""
    theta, P = gaussian.moments(GAMMA, dt, round(TIME / dt), curvature=curvature)
    return theta - flow(TIME), P


def slope(rates: list[float], sizes: Array) -> Array:
    """Return the exponent of δt by least squares; ``sizes`` has one row for each δt."""
    x = np.log(rates) - np.log(rates).mean()
    return np.asarray(x @ np.log(sizes) / (x @ x))


def whitened(errors: Array, S: Array) -> Array:
    """Return rows ``L⁻¹e`` with ``S = L Lᵀ``, which are N(0, δt I) in the limit."""
    return np.asarray(errors @ np.linalg.inv(np.linalg.cholesky(S)).T)


def spread(errors: Array, S: Array) -> Array:
    """Return ``√(E (e-ē)ᵀ S⁻¹ (e-ē) / 2)`` over the last axis but one: √δt for ``Cov e = δt S``."""
    return np.asarray(np.sqrt(whitened(errors, S).var(-2, ddof=1).mean(-1)))


def predicted_slope(rates: list[float], S: Array, *, curvature: bool) -> float:
    """Return the slope of the computed :func:`spread`, ``√(tr S⁻¹P / 2)``."""
    covariances = (computed(dt, curvature=curvature)[1] for dt in rates)
    traces = [np.trace(np.linalg.solve(S, P)) for P in covariances]
    return float(slope(rates, np.sqrt(np.array(traces) / 2)))


def one_sigma(bias: float, sd: float) -> float:
    """Return x for which ``|N(bias, sd²)| < x`` has the probability :data:`ONE_SIGMA`."""
    return float(foldnorm.ppf(ONE_SIGMA, abs(bias) / sd, scale=sd))


def share_error(limit: Expansion, dt: float, r: float) -> float:
    """Return a bound on the error of the probability of an ellipse, ``1-exp(-r²/2)`` in the limit.

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


def judge(errors: dict[float, Array], limit: Expansion) -> list[Verdict]:
    """Return the verdicts on the errors at each δt."""
    small, fine = [dt for dt in errors if dt <= SMALL], min(errors)
    curved, flat = (predicted_slope(small, limit.S, curvature=c) for c in (True, False))
    what = f"slope of the sd from δt = {SMALL:g} to {fine:g} (½ in the limit)"
    # a slope for each of several blocks of runs; the bias of the logarithm is the same at every δt
    sizes = [spread(errors[dt].reshape(BLOCKS, -1, 2), limit.S) for dt in small]
    # what the second order changes bounds what the third would
    within = abs(curved - flat)
    verdicts = [mean(slope(small, np.array(sizes))).near(what, curved, within=within)]
    bias, P = computed(fine)
    for i, name in enumerate(NAMES):
        sd = float(np.sqrt(limit.S[i, i]))
        finite = one_sigma(bias[i], float(np.sqrt(P[i, i]))) / np.sqrt(fine)
        what = f"sd of {name} over √δt, from the 68% quantile, δt = {fine:g}"
        interval = quantile(np.abs(errors[fine][:, i]) / np.sqrt(fine), ONE_SIGMA)
        verdicts.append(interval.near(what, sd, within=abs(finite - sd)))
    r = np.sqrt(-2 * np.log(0.05))
    what = f"runs in the 95% ellipse of the limit, δt = {fine:g}"
    inside = frequency(np.linalg.norm(whitened(errors[fine], limit.S), axis=1) <= r * fine**0.5)
    verdicts.append(inside.near(what, 0.95, within=share_error(limit, fine, r)))
    for dt in (RATES[1], fine):
        expected, flat = (computed(dt, curvature=c)[0][1] for c in (True, False))
        interval, what = mean(errors[dt][:, 1]), f"bias of ln σ, δt = {dt:g}"
        verdicts.append(interval.near(what, expected, within=abs(expected - flat)))
    return verdicts


def measure(setting: Setting) -> Result:
    """Measure errors over many runs at each δt, and compute their mean and covariance."""
    rates, runs = (QUICK, 5) if setting.quick else (RATES, 25)
    errors, work = dict[float, Array](), sum(1 / dt for dt in rates)
    for dt in rates:
        found = setting.sample(partial(_error, dt), BLOCKS * runs, f"{dt}", 0.95 / dt / work)
        errors[dt] = np.array(found)
    limit = gaussian.expansion(GAMMA, TIME)
    verdicts = judge(errors, limit)
    picture = fig.Picture([_sizes(errors, limit), _scatter(errors, limit.S)], legend=4)
    setting.advance(0.05)
    return Result(verdicts, picture, {"errors": {f"{dt:g}": e for dt, e in errors.items()}})


def _sizes(errors: dict[float, Array], limit: Expansion) -> fig.Panel:
    """Return the sizes of bias and noise against δt: measured, computed, and in the limit."""
    samples, ends = np.array(list(errors.values())), np.array([1.6e-3, 1.8e-6])
    n, sd, means = samples.shape[1], samples.std(1, ddof=1), samples.mean(1)
    biases, covariances = (np.array(x) for x in zip(*map(computed, CURVE), strict=True))
    marks = [fig.text(3.2e-6, 1.9e-2, "√δt", fig.GREY), fig.text(5e-6, 2e-4, "δt", fig.GREY)]
    for i, colour in enumerate((fig.BLUE, fig.RED)):
        noise = sd[:, i], sd[:, i] / np.sqrt(2 * n), np.sqrt(covariances[:, i, i])
        bias = np.abs(means[:, i]), sd[:, i] / np.sqrt(n), np.abs(biases[:, i])
        for label, (size, se, curve), line, marker in (
            (f"sd of {NAMES[i]}", noise, np.sqrt(ends * limit.S[i, i]), "o"),
            (f"|bias| of {NAMES[i]}", bias, ends * abs(limit.b[i]), "s"),
        ):
            bars = np.maximum(size - 2 * se, size * 1e-3), size + 2 * se
            style: dict[str, Any] = {"bars": bars, "marker": marker, "hollow": marker == "s"}
            marks += [
                fig.points(list(errors), size, colour, label, **style),
                fig.curve(CURVE, curve, colour, width=1),
                fig.curve(ends, line, fig.GREY, width=1, style=":"),
            ]
    return fig.panel(
        *marks, log="xy", xlim=ends[::-1], ylim=(3e-5, 20), xlabel="δt",
        ylabel=f"error at time {TIME:g}", title="Error against δt",
    )  # fmt: skip


def _scatter(errors: dict[float, Array], S: Array) -> fig.Panel:
    """Return the scaled errors at the smallest δt, with ellipses of the limit."""
    dt, angle = min(errors), np.linspace(0, 2 * np.pi, 200)
    circle = np.linalg.cholesky(S) @ np.stack([np.cos(angle), np.sin(angle)])
    x, y = errors[dt].T / np.sqrt(dt)
    marks = [fig.points(x, y, fig.BLUE, "a run of TANGO", marker=".", size=3)]
    for q, style in ((0.5, "--"), (0.95, "-")):
        x, y = np.sqrt(-2 * np.log(1 - q)) * circle
        marks.append(fig.curve(x, y, fig.BLACK, f"{q:.0%} of the limit", 1.3, style))
    return fig.panel(
        *marks, xlabel="error of μ / √δt", ylabel="error of ln σ / √δt",
        title=f"{len(errors[dt])} runs at δt = {dt:g}",
    )  # fmt: skip
