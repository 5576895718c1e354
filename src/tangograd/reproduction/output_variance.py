"""Quadratic output losses: when the variance σ² of a Gaussian output matters, and how."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from tangograd.reproduction import figures as fig
from tangograd.reproduction.base import Array, Result, Setting
from tangograd.reproduction.exact import Regression
from tangograd.reproduction.models import EMPIRICAL, EXPECTED, SAMPLED, arctan_regression
from tangograd.reproduction.verdicts import Interval, Verdict, exact, frequency, mean, mean_square
from tangograd.stream import Run, tango

SCALES = np.array([1.0, 0.9, 0.8, 0.7, 0.6])
D = SCALES**2
NOISE = 0.5  # the actual mean square error at the optimum is NOISE²
FACTORS = (0.1, 1.0, 10.0)  # of σ² to that
DT, STEPS, LOOK, DIVERGED = 0.01, 400, 200, 1e6
OFFSET, LONG = 1000, 20_000  # δt_k = 1/(OFFSET + k) in the long runs
FIXED = float(NOISE**2 / (3 * D.sum()))  # 1/(3 E‖g̃‖²), the paper's rule, right for σ² = MSE
FAR, NEAR = 1.0, 0.002  # what every direction adds to the mean square error at the start, of MSE


def start(share: float) -> Array:
    """Return errors of θ that add ``share`` × MSE to the mean square error in every direction."""
    return np.asarray(math.sqrt(share) * NOISE / SCALES)


def empirical_gamma(factor: float) -> float:
    """Return ``1/(30 E‖g̃‖²)`` at the optimum, for which v has moments of order 24.

    The rule for kurtosis 9, that of r x, would give ``1/(9 E‖g̃‖²)``; but ``g̃ g̃ᵀ`` grows with
    the error itself here, and heavy tails of v could drive a run away from the optimum.
    """
    return float((factor * NOISE**2) ** 2 / (30 * NOISE**2 * D.sum()))


def expected_squares(factor: float) -> Array:
    """Return ``E e_i²`` after each of the long runs' steps, for g̃ = g and small errors e.

    Near the optimum ``g gᵀ = ε² MSE x xᵀ/σ⁴`` with ε a standard Gaussian: it is the Fisher matrix
    x xᵀ/σ² times MSE/σ² on average. So v is σ²/MSE times the natural gradient, and δt = 1/k becomes
    ``c/k`` with ``c = σ²/MSE``. The excess loss ``½ eᵀD e/MSE`` then tends to ``c²/(2c-1)`` times
    the Cramér-Rao level d/2k if c > ½ (apart from the noise of v), and falls as k⁻²ᶜ otherwise.
    """
    regression = Regression.gaussian(D, noise=NOISE, sigma=NOISE * math.sqrt(factor))
    regression = replace(regression, factor=regression.factor / math.sqrt(factor))
    gamma, d, dt = empirical_gamma(factor), len(D), 1 / (OFFSET + np.arange(LONG + 1.0))
    path = regression.path(start(NEAR), gamma=gamma, dt=dt, steps=LONG)
    return np.asarray(path[:, range(d, 2 * d), range(d, 2 * d)])


def _run(
    kind: int, factor: float, rng: np.random.Generator, *, bend: float = 0.0, **options: Any
) -> Run:
    """Run TANGO with σ² = factor × MSE; the truth is θ = 0 for a line, and 1 for a bent one."""
    truth = np.full(len(SCALES), 1.0 if bend else 0.0)
    constants = [kind, bend, NOISE, NOISE * math.sqrt(factor), *SCALES, *truth]
    return tango(arctan_regression, rng=rng, constants=constants, **options)


def rescaling_error(setting: Setting) -> float:
    """Return the largest relative difference of θ between (σ², γ) and (MSE, γ MSE/σ²).

    ``γ g`` and ``γ g̃ g̃ᵀ`` both contain γ/σ² and nothing else of γ or σ², for any f.
    """
    paths, start = {}, np.zeros(len(SCALES))
    options: dict[str, Any] = {"theta": start, "dt": DT, "steps": 2000, "records": 2000}
    for kind, factor in product((SAMPLED, EXPECTED), FACTORS):
        (rng,) = setting.generators(1, "rescaled")  # the same random numbers
        gamma = factor * FIXED / 3  # pseudo-samples have three times the kurtosis
        paths[kind, factor] = _run(kind, factor, rng, gamma=gamma, bend=1.0, **options).theta
    errors = (np.abs(path - paths[kind, 1.0]).max() for (kind, _), path in paths.items())
    return float(max(errors) / np.abs(paths[SAMPLED, 1.0]).max())


def _fixed(setting: Setting, factor: float) -> tuple[Array, Array, list[float]]:
    """Return the excess loss relative to the start's, its exact mean, and the largest velocity."""
    steps, n = LOOK if factor < 1 else STEPS, 300 if setting.quick else 1000
    options: dict[str, Any] = {"gamma": FIXED, "dt": DT, "steps": steps}
    run = partial(_run, EXPECTED, factor, theta=start(FAR), records=steps // 5, **options)
    runs = setting.sample(run, n, f"fixed {factor}", 0.05)
    sigma = NOISE * math.sqrt(factor)
    regression = Regression.gaussian(D, noise=NOISE, sigma=sigma, kind=EXPECTED)
    expected = regression.excess(start(FAR), **options)[::5]
    excess = np.array([r.theta for r in runs]) ** 2 @ D / (len(D) * FAR * NOISE**2)
    return excess, expected, [r.largest for r in runs]


def _empirical(setting: Setting, factor: float) -> Array:
    """Run for long with g̃ = g and δt = 1/k; return the errors of 100 steps."""
    n, dt = 40 if setting.quick else 400, 1 / (OFFSET + np.arange(LONG + 1.0))
    options: dict[str, Any] = {"gamma": empirical_gamma(factor), "dt": dt, "theta": start(NEAR)}
    run = partial(_run, EMPIRICAL, factor, steps=LONG, records=100, **options)
    return np.array([r.theta for r in setting.sample(run, n, f"empirical {factor}", 0.27)])


def efficiency(factor: float, errors: Array, squares: Array) -> Verdict:
    """Test the excess loss at the end, in units of the Cramér-Rao level.

    The errors are Gaussian, as sums of many steps' noise, in units of their expected size. For
    c < ½ the start is most of them and Student's interval is right.
    """
    level = float(squares[-1] @ D / NOISE**2) * LONG / len(D)
    scaled = errors[:, -1] / np.sqrt(squares[-1])
    relative = mean((scaled**2).mean(1)) if factor < 0.5 else mean_square(scaled)
    estimate, low, high = (level * x for x in (relative.estimate, relative.low, relative.high))
    what = f"excess loss over Cramér-Rao's, g̃ = g, {name(factor)}"
    # the expectation takes g gᵀ as at the optimum; with q = eᵀDe/MSE it is larger by 1+3q along e,
    # which delays ln q by at most 3 q_0
    interval = Interval(estimate, low, high, len(errors))
    return interval.near(what, level, within=3 * len(D) * NEAR * level)


def name(factor: float) -> str:
    """Return σ² in words."""
    return "σ² = MSE" if factor == 1 else f"σ² = {factor:g} MSE"


def measure(setting: Setting) -> Result:
    """Test rescaled γ to rounding; fixed γ, and g̃ = g, against exact expectations."""
    error, left, right, samples = rescaling_error(setting), list[fig.Mark](), list[fig.Mark](), {}
    setting.advance(0.04)
    fixed, long, k = list[Verdict](), list[Verdict](), np.arange(200, LONG + 1, 200)
    for factor, colour in zip(FACTORS, (fig.ORANGE, fig.GREEN, fig.BLUE), strict=True):
        excess, exactly, largest = _fixed(setting, factor)
        steps = 5 * np.arange(len(exactly))
        if factor < 1:
            left.append(fig.curve(steps, np.median(excess, 0), colour, name(factor)))
            what = f"diverged in {LOOK} steps at fixed γ, {name(factor)}"
            fixed.append(frequency(np.array(largest) > DIVERGED).at_least(what, 0.99))
        else:
            left += fig.averages(steps, excess, exactly, colour, name(factor))
            at_look = samples[f"fixed, {name(factor)}"] = excess[:, LOOK // 5]
            words = f"after {LOOK} steps at fixed γ, {name(factor)}"
            what = f"excess loss relative to the start, {words}"
            fixed.append(mean(at_look).near(what, float(exactly[LOOK // 5])))
        errors, squares = _empirical(setting, factor), expected_squares(factor)
        samples[f"g̃ = g, {name(factor)}"] = errors[:, -1]
        long.append(efficiency(factor, errors, squares))
        excess, exactly = (x @ D / (2 * NOISE**2) for x in (errors[:, 1:] ** 2, squares[k]))
        right += fig.averages(k, excess, exactly, colour)
    what = "same path for (σ², γ) and (MSE, γ MSE/σ²), relative"
    verdicts = [exact(what, error, 1e-11), *fixed, *long]
    late = k[k >= 3000]  # before, δt = 1/(1000 + k) makes use of the good start
    dashed: dict[str, Any] = {"width": 1, "style": "--"}
    right.append(fig.curve(late, len(D) / (2 * late), fig.BLACK, **dashed))
    left.append(fig.expected([], [], "exact mean"))
    left.append(fig.curve([], [], fig.BLACK, "Cramér-Rao", **dashed))
    panels = [
        fig.panel(
            *left, log="y", ylim=(3e-3, 1e2), xlabel="step", ylabel="excess loss / initial",
            title="Same γ for all σ²",
        ),
        fig.panel(
            *right, log="xy", ylim=(8e-5, None), xlabel="step k", ylabel="excess loss",
            title="g̃ = g, δt = 1/(1000+k)",
        ),
    ]  # fmt: skip
    return Result(verdicts, fig.Picture(panels, (8.0, 3.9), legend=5), samples)
