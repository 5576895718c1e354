"""The accelerated variant, ``θ_k = θ_{k-1} - v_k``: Nesterov's method on a quadratic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tangograd.reproduction import figures as fig
from tangograd.reproduction.base import Array, Result, Setting
from tangograd.reproduction.exact import Regression
from tangograd.reproduction.models import rows
from tangograd.reproduction.verdicts import exact, mean, number
from tangograd.stream import tango
from tangograd.stream.models import linear

Gradient = Callable[[Array, Array], Array]  # of y and θ_{k-1}

CONDITIONS = (10, 30, 100, 300, 1000, 3000, 10_000)
REDUCTION = 1e-3
NOISY = 100.0  # the condition number κ of the problem with noise
LEVEL = 1500  # from this step on, both are at their level of noise
NOISE, BATCH, GAMMA = 0.1, 64, 0.5  # γ in units of 1/λ_max, with moments of v of all small orders


def spectrum(condition: float) -> Array:
    """Return the eigenvalues 1, 1/√κ and 1/κ."""
    return np.array([1.0, condition**-0.5, 1 / condition])


def best_rate(q: float) -> float:
    """Return the δt of the fastest momentum: ``1-δt = (1-√q)/(1+√q)``, q = γ λ_min."""
    return float(2 * np.sqrt(q) / (1 + np.sqrt(q)))


def accelerated_mode(q: float, k: Array) -> Array:
    """Return the slowest mode under the accelerated variant at :func:`best_rate`, from 1.

    ``e_k = (1-q) [(1+β) e_{k-1} - β e_{k-2}]`` then has the double root 1-√q, and ``e_1 = 1-q``.
    """
    return np.asarray((1 + k * np.sqrt(q)) * (1 - np.sqrt(q)) ** k)


def plain_mode(q: float, k: Array) -> Array:
    """Return the slowest mode under TANGO at the same δt, with the roots 1-q and 1-δt.

    TANGO is here averaged gradient descent, ``e_k = (1-δt) e_{k-1} + δt (1-q)^k``.
    """
    dt = best_rate(q)
    a = dt * (1 - q) / (dt - q)
    return np.asarray(a * (1 - q) ** k + (1 - a) * (1 - dt) ** k)


def nesterov(start: Array, gradient: Gradient, gamma: float, beta: float, steps: int) -> Array:
    """Run ``θ_k = y - γ gradient(y, θ_{k-1})`` with ``y = θ_{k-1} + β(θ_{k-1}-θ_{k-2})``."""
    path = [start, start]
    for _ in range(steps):
        y = path[-1] + beta * (path[-1] - path[-2])
        path.append(y - gamma * gradient(y, path[-1]))
    return np.array(path[1:])


def noisy_gradient(rng: np.random.Generator, batch: int) -> Gradient:
    """Return the gradient of batches, plus the noise that the paper says TANGO adds.

    It is ``∇ℓ_k(y) + ξ_k``, ``ξ_k = (Σ g̃ g̃ᵀ/B - H_k)(y - θ_{k-1})``, where ∇ℓ_k and H_k are the
    batch's and ``y - θ_{k-1} = -β v_{k-1}``; data and pseudo-samples are those that TANGO draws.
    """
    scales = np.sqrt(spectrum(NOISY))

    def gradient(y: Array, before: Array) -> Array:
        draws = rng.standard_normal((batch, len(scales) + 2))  # noise, x, the pseudo-sample's
        x, z = draws[:, 1:-1] * scales, draws[:, -1]
        xi = ((z**2 - 1)[:, None] * x).T @ (x @ (y - before)) / batch
        return np.asarray(x.T @ (x @ y - NOISE * draws[:, 0]) / batch + xi)

    return gradient


def _noise_free(accelerated: bool, condition: float) -> Array:
    """Return θ after each step, from (1, 1, 1), at γ = 1/λ_max, until the slowest mode is small."""
    limit = np.log(1 / REDUCTION) * (3 * condition**0.5 if accelerated else 2 * condition)
    options: dict[str, Any] = {"steps": int(limit), "records": int(limit), "batch": 3}
    options |= {"dt": best_rate(1 / condition), "constants": [0.0, *spectrum(condition)]}
    rng = np.random.default_rng(0)  # from which nothing is drawn
    return tango(rows, np.ones(3), gamma=1.0, rng=rng, accelerated=accelerated, **options).theta


def _noisy(accelerated: bool, steps: int, rng: np.random.Generator, *, batch: int) -> Array:
    """Return θ after each step on noisy batches; every mode starts with the same excess loss."""
    scales = np.sqrt(spectrum(NOISY))
    constants = [NOISE, 1.0, *scales, 0.0, 0.0, 0.0]
    options: dict[str, Any] = {"batch": batch, "accelerated": accelerated, "records": steps}
    options |= {"dt": best_rate(GAMMA / NOISY), "steps": steps, "constants": constants}
    return tango(linear, 1 / scales, gamma=GAMMA, rng=rng, **options).theta


def _first_below(mode: Array) -> int:
    """Return the first step after which a mode is reduced; the number of all steps if none."""
    below = np.abs(mode) < REDUCTION
    return int(np.argmax(below)) if below.any() else len(mode)


def _against_nesterov(path: Array, condition: float) -> float:
    """Return the largest difference of a path without noise from Nesterov's method."""
    h, beta = spectrum(condition), 1 - best_rate(1 / condition)
    other = nesterov(path[0], lambda y, _: h * y, 1.0, beta, len(path) - 1)
    return float(np.abs(path - other).max())


def _against_noisy_nesterov(setting: Setting) -> float:
    """Return the difference from Nesterov's method with the paper's noise, over the start."""
    first, second = (setting.generators(1, "replayed")[0] for _ in range(2))
    path, beta = _noisy(True, 200, first, batch=8), 1 - best_rate(GAMMA / NOISY)
    other = nesterov(path[0], noisy_gradient(second, 8), GAMMA, beta, 200)
    return float(np.abs(path - other).max() / np.abs(path[0]).max())


def measure(setting: Setting) -> Result:
    """Test paths without noise against closed forms, and with noise against expectations."""
    plain, fast = (setting.map(partial(_noise_free, a), CONDITIONS, 0.1) for a in (False, True))
    counts = [[_first_below(path[:, 2]) for path in paths] for paths in (plain, fast)]
    closed = [
        [_first_below(mode(1 / condition, np.arange(1e5))) for condition in CONDITIONS]
        for mode in (plain_mode, accelerated_mode)
    ]
    without = max(map(_against_nesterov, fast, CONDITIONS))
    setting.advance(0.04)
    ratio, expected = (x[0][-1] / x[1][-1] for x in (counts, closed))
    one_step = expected / closed[1][-1]  # where rounding decides
    what = f"steps of TANGO for one accelerated step, κ={CONDITIONS[-1]}"
    replayed = _against_noisy_nesterov(setting)
    verdicts = [
        exact("accelerated TANGO minus Nesterov's method, no noise", without, 1e-12),
        exact("the same on noisy batches, with the paper's additional noise", replayed, 1e-11),
        number(ratio).near(what, expected, within=one_step),
    ]
    h, steps, n = spectrum(NOISY), 2000, 20 if setting.quick else 100
    regression, rate = Regression.gaussian(h, noise=NOISE), best_rate(GAMMA / NOISY)
    k, right = np.unique(np.geomspace(1, steps, 60).astype(int)), list[fig.Mark]()
    levels, at_targets, samples = [], [], dict[str, Array]()
    for name, colour in (("TANGO", fig.BLUE), ("accelerated", fig.ORANGE)):
        accelerated = name == "accelerated"
        run = partial(_noisy, accelerated, steps, batch=BATCH)
        paths = np.array(setting.sample(run, n, f"noisy {accelerated}", 0.38))
        options = {"dt": rate, "batch": BATCH, "accelerated": accelerated, "steps": steps}
        exactly = regression.excess(1 / np.sqrt(h), gamma=GAMMA, **options)
        excess, target = paths**2 @ h / len(h), int(np.argmax(exactly < 0.01))
        samples[name] = excess[:, target]
        what = f"excess loss relative to the start, after {target} noisy steps, {name}"
        at_targets.append(mean(samples[name]).near(what, float(exactly[target])))
        levels.append(float(exactly[LEVEL:].mean()))
        right += fig.averages(k, excess[:, k], exactly[k], colour)
    what = f"mean of the slowest mode after {target} noisy accelerated steps"
    slowest = float(accelerated_mode(GAMMA / NOISY, np.array(target)))
    verdicts.append(mean(paths[:, target, 2] * np.sqrt(h[2])).near(what, slowest))
    what = "final level of noise, accelerated, in units of TANGO's"
    level = mean(excess[:, LEVEL:].mean(1) / levels[0])
    verdicts += [*at_targets[::-1], level.near(what, levels[1] / levels[0])]
    left = fig.panel(
        fig.curve(CONDITIONS, closed[0], fig.GREY, width=1.2),
        fig.curve(CONDITIONS, closed[1], fig.GREY, "exact, no noise", 1.2),
        fig.points(CONDITIONS, counts[0], fig.BLUE, "TANGO"),
        fig.points(CONDITIONS, counts[1], fig.ORANGE, "accelerated", marker="s"),
        fig.expected([], [], "exact mean, with noise"), log="xy", xlabel="condition number κ",
        title="Without noise", ylabel=f"steps to {REDUCTION:g} of the error",
    )  # fmt: skip
    title, ylabel = f"With noise, κ = {NOISY:g}", "excess loss / initial"
    panels = [left, fig.panel(*right, log="y", xlabel="step", title=title, ylabel=ylabel)]
    return Result(verdicts, fig.Picture(panels, (8.0, 3.9), legend=4), samples)
