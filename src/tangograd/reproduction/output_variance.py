"""Quadratic output losses: when the variance σ² of a Gaussian output matters, and how."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tangograd.reproduction.base import BLUE, GREEN, ORANGE, Claim, Result, Setting, legend_below
from tangograd.reproduction.linear_moments import Regression
from tangograd.reproduction.verdicts import Interval, Verdict, exact, frequency, mean, mean_square
from tangograd.stream import Run, tango

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

SAMPLED, EXPECTED, EMPIRICAL = 0.0, 1.0, 2.0
SCALES = np.array([1.0, 0.9, 0.8, 0.7, 0.6])
D = SCALES**2
NOISE = 0.5  # the actual mean square error at the optimum is NOISE²
FACTORS = (0.1, 1.0, 10.0)  # of σ² to that
DT, STEPS, LOOK, DIVERGED = 0.01, 400, 200, 1e6
OFFSET, LONG = 1000, 20_000  # δt_k = 1/(OFFSET + k) in the long runs
FAR, NEAR = 1.0, 0.002  # what every direction adds to the mean square error at the start, of MSE


@njit(cache=True)
def regression(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """Regression ``y ~ N(f(⟨x, θ⟩), σ²)`` with ``f(u) = arctan(b u)/b``, the line for b = 0.

    g̃ is the gradient of a pseudo-sample (kind 0), or has ``g̃ g̃ᵀ`` with the pseudo-sample
    integrated out (1), or is g (2). ``constants = [kind, b, noise, σ, *scales, *truth]``.
    """
    d, b, sigma = len(theta), constants[1], constants[3]
    noise, z = constants[2] * rng.standard_normal(), rng.standard_normal()
    u, truth = 0.0, 0.0
    for i in range(d):
        g_tilde[i] = constants[4 + i] * rng.standard_normal()  # x
        u += g_tilde[i] * theta[i]
        truth += g_tilde[i] * constants[4 + d + i]
    residual = u - truth - noise
    if b > 0:
        residual = (math.atan(b * u) - math.atan(b * truth)) / b - noise
    slope = 1 / (1 + (b * u) ** 2)
    factor = z / sigma
    if constants[0] == 1:
        factor = 1 / sigma
    elif constants[0] == 2:
        factor = residual / sigma**2
    for i in range(d):
        g[i] = residual / sigma**2 * slope * g_tilde[i]
        g_tilde[i] *= factor * slope


def start(share: float) -> Array:
    """Errors of θ for which every direction adds ``share`` × MSE to the mean square error."""
    error: Array = math.sqrt(share) * NOISE / SCALES
    return error


def fixed_gamma() -> float:
    """``1/(3 E‖g̃‖²)``, the paper's rule for Gaussian g̃, right for σ² = MSE."""
    return float(NOISE**2 / (3 * D.sum()))


def empirical_gamma(factor: float) -> float:
    """``1/(30 E‖g̃‖²)`` at the optimum, small enough for v to have moments of order 24.

    The rule for kurtosis 9, that of r x, would give ``1/(9 E‖g̃‖²)``; but ``g̃ g̃ᵀ`` grows with
    the error itself here, and heavy tails of v could start a run away from the optimum.
    """
    return float((factor * NOISE**2) ** 2 / (30 * NOISE**2 * D.sum()))


def rates() -> Array:
    """δt_k = 1/(1000+k)."""
    return 1 / (OFFSET + np.arange(LONG + 1.0))


def expected_fixed(factor: float) -> Array:
    """The exact mean excess loss, of the start's, at fixed γ and δt."""
    problem = Regression(SCALES, noise=NOISE, sigma=NOISE * math.sqrt(factor))
    excess = problem.excess(start(FAR), gamma=fixed_gamma(), dt=DT, steps=STEPS)
    return excess / float(excess[0])


def expected_squares(factor: float) -> Array:
    """``E e_i²`` after each of the long runs' steps, for g̃ = g and small errors e.

    Near the optimum ``g gᵀ = ε² MSE x xᵀ/σ⁴`` with ε a standard Gaussian: it is the Fisher matrix
    x xᵀ/σ² times MSE/σ² on average. So v is σ²/MSE times the natural gradient, and δt = 1/k becomes
    ``c/k`` with ``c = σ²/MSE``. The excess loss ``½ eᵀD e/MSE`` then tends to ``c²/(2c-1)`` times
    the Cramér-Rao level d/2k if c > ½ (apart from the noise of v), and falls as k⁻²ᶜ otherwise.
    """
    problem = Regression(
        SCALES, noise=NOISE, sigma=NOISE * math.sqrt(factor), pseudo=3.0, curvature=1 / factor
    )
    gamma = empirical_gamma(factor)
    return problem.moments(start(NEAR), gamma=gamma, dt=rates(), steps=LONG)[:, 2]


def _run(
    kind: float,
    factor: float,
    rng: np.random.Generator,
    *,
    theta: Array,
    gamma: float,
    dt: float | Array,
    steps: int,
    bend: float = 0.0,
    records: int = 1,
) -> Run:
    """TANGO with σ² = factor × MSE; the truth is θ = 0 for a line, and 1 for a bent one."""
    sigma = NOISE * math.sqrt(factor)
    truth = np.full(len(SCALES), 1.0 if bend else 0.0)
    constants = [kind, bend, NOISE, sigma, *SCALES, *truth]
    return tango(
        regression,
        theta,
        gamma=gamma,
        dt=np.broadcast_to(dt, steps + 1).copy(),  # of one type, so that it is compiled once
        steps=steps,
        rng=rng,
        constants=constants,
        records=records,
    )


def rescaling_error(setting: Setting) -> float:
    """The largest relative difference of θ between (σ², γ) and (MSE, γ MSE/σ²).

    ``γ g`` and ``γ g̃ g̃ᵀ`` both contain γ/σ² and nothing else of γ or σ², for any f.
    """
    paths = {}
    for kind in (SAMPLED, EXPECTED):
        for factor in FACTORS:
            (rng,) = setting.generators(1, "rescaled")  # the same random numbers
            paths[kind, factor] = _run(
                kind,
                factor,
                rng,
                theta=np.zeros(len(SCALES)),
                gamma=factor * fixed_gamma() / 3,  # pseudo-samples have three times the kurtosis
                dt=DT,
                steps=2000,
                bend=1.0,
                records=2000,
            ).theta
    errors = (np.abs(path - paths[kind, 1.0]).max() for (kind, _), path in paths.items())
    return float(max(errors) / np.abs(paths[SAMPLED, 1.0]).max())


def _fixed(setting: Setting, factor: float) -> dict[str, Any]:
    """Runs at fixed γ: the excess loss, of the start's, and the largest velocity."""
    steps = LOOK if factor < 1 else STEPS
    run = partial(
        _run,
        EXPECTED,
        factor,
        theta=start(FAR),
        gamma=fixed_gamma(),
        dt=DT,
        steps=steps,
        records=steps // 5,
    )
    rngs = setting.generators(300 if setting.quick else 1000, f"fixed {factor}")
    runs = setting.several(run, rngs, 0.05)
    excess = np.array([r.theta for r in runs]) ** 2 @ D / (len(D) * FAR * NOISE**2)
    return {
        "factor": factor,
        "steps": np.arange(0, steps + 1, 5).tolist(),
        "median": np.median(excess, axis=0).tolist(),
        "mean": excess.mean(0).tolist(),
        "expected": expected_fixed(factor)[: steps + 1 : 5].tolist(),
        "at_look": excess[:, LOOK // 5].tolist(),
        "largest": [r.largest for r in runs],
    }


def _empirical(setting: Setting, factor: float) -> dict[str, Any]:
    """Long runs with g̃ = g and δt = 1/k: ``½ eᵀD e/MSE``."""
    run = partial(
        _run,
        EMPIRICAL,
        factor,
        theta=start(NEAR),
        gamma=empirical_gamma(factor),
        dt=rates(),
        steps=LONG,
        records=100,
    )
    rngs = setting.generators(40 if setting.quick else 400, f"empirical {factor}")
    runs = setting.several(run, rngs, 0.27)
    errors, squares, every = (
        np.array([r.theta for r in runs]),
        expected_squares(factor),
        LONG // 100,
    )
    intervals = [mean(column) for column in (errors[:, 1:] ** 2 @ D / (2 * NOISE**2)).T]
    return {
        "factor": factor,
        "steps": np.arange(every, LONG + 1, every).tolist(),
        "mean": [interval.estimate for interval in intervals],
        "low": [interval.low for interval in intervals],
        "high": [interval.high for interval in intervals],
        "expected": (squares[every::every] @ D / (2 * NOISE**2)).tolist(),
        "errors": (errors[:, -1] / np.sqrt(squares[-1])).tolist(),
    }


def _efficiency(runs: dict[str, Any]) -> Verdict:
    """Of the excess loss at the end, in units of the Cramér-Rao level.

    The errors are Gaussian, as sums of many steps' noise, in units of their expected size. For
    c < ½ the start is most of them and Student's interval is right.
    """
    expected = runs["expected"][-1] * 2 * LONG / len(D)
    if runs["factor"] < 0.5:
        relative = mean((np.array(runs["errors"]) ** 2).mean(1))
    else:
        relative = mean_square(np.array(runs["errors"]))
    low, high = expected * relative.low, expected * relative.high
    # the expectation takes g gᵀ as at the optimum; with q = eᵀDe/MSE it is larger by 1+3q along e,
    # which delays ln q by at most 3 q_0
    return Interval(expected * relative.estimate, low, high, len(runs["errors"])).near(
        f"excess loss over Cramér-Rao's, g̃ = g, {name(runs)}",
        expected,
        within=3 * len(D) * NEAR * expected,
    )


def measure(setting: Setting) -> Result:
    """Rescaled γ to rounding; fixed γ, and g̃ = g, against exact expectations."""
    error = rescaling_error(setting)
    setting.advance(0.04)
    fixed = [_fixed(setting, factor) for factor in FACTORS]
    empirical = [_empirical(setting, factor) for factor in FACTORS]
    small, *others = fixed
    verdicts = [
        exact("same path for (σ², γ) and (MSE, γ MSE/σ²), relative", error, 1e-11),
        frequency(np.array(small["largest"]) > DIVERGED).at_least(
            f"diverged in {LOOK} steps at fixed γ, σ² = 0.1 MSE", 0.99
        ),
        *(
            mean(runs["at_look"]).near(
                f"excess loss relative to the start, after {LOOK} steps at fixed γ, {name(runs)}",
                float(expected_fixed(runs["factor"])[LOOK]),
            )
            for runs in others
        ),
        *(_efficiency(runs) for runs in empirical),
    ]
    data = {
        "mean_square_error": NOISE**2,
        "gamma": fixed_gamma(),
        "dt": DT,
        "fixed": fixed,
        "empirical": empirical,
        "dimension": len(D),
    }
    return Result(verdicts, data)


def name(runs: dict[str, Any]) -> str:
    """σ² in words."""
    factor = runs["factor"]
    return "σ² = MSE" if factor == 1 else f"σ² = {factor:g} MSE"


def draw(data: dict[str, Any], figure: Figure) -> None:
    """The loss at fixed γ, and with g̃ = g and δt = 1/k."""
    left, right = figure.subplots(1, 2)
    colours = (ORANGE, GREEN, BLUE)
    for runs, colour in zip(data["fixed"], colours, strict=True):
        diverges = runs["factor"] < 1
        left.plot(
            runs["steps"],
            runs["median" if diverges else "mean"],
            color=colour,
            lw=2.5,
            label=name(runs),
        )
        if not diverges:
            left.plot(runs["steps"], runs["expected"], color="black", ls=":", lw=1)
    for runs, colour in zip(data["empirical"], colours, strict=True):
        right.fill_between(runs["steps"], runs["low"], runs["high"], color=colour, alpha=0.25, lw=0)
        right.plot(runs["steps"], runs["mean"], color=colour, lw=2)
        right.plot(runs["steps"], runs["expected"], color="black", ls=":", lw=1)
    k = np.array(data["empirical"][0]["steps"])
    k = k[k >= 3000]  # before, δt = 1/(1000 + k) makes use of the good start
    right.plot(k, data["dimension"] / (2 * k), color="black", lw=1, ls="--")
    left.plot([], [], color="black", ls=":", lw=1, label="exact mean")
    left.plot([], [], color="black", ls="--", lw=1, label="Cramér-Rao")
    left.set(yscale="log", ylim=(3e-3, 1e2), xlabel="step", ylabel="excess loss / initial")
    left.set_title("Same γ for all σ²")
    right.set(xscale="log", yscale="log", ylim=(8e-5, None), xlabel="step k", ylabel="excess loss")
    right.set_title("g̃ = g, δt = 1/(1000+k)")
    legend_below(figure, left, ncols=5)


CLAIM = Claim(
    name="output-variance",
    title="The variance of a Gaussian output mostly rescales γ",
    where="Implementation remarks, quadratic losses",
    sentences=(
        "A squared error is a log-loss once the output is given a Gaussian law, of some variance "
        "σ²; the paper says that σ² should be the actual mean square error (MSE). With "
        "pseudo-samples, or with their expectation, σ² changes nothing but γ: a run with σ² and γ "
        "is, to rounding, the run with MSE and γ·MSE/σ², whatever the model. So σ² matters if γ "
        "is given as a number: at a tenth of the MSE that γ is ten times too large and runs "
        "diverge, at ten times the MSE they are slow. A rule that sets γ by the size of the "
        "gradients makes up for any σ².\n\n"
        "Where the data's own gradient is used as g̃ (the “outer product” variant) no γ makes up "
        "for it: the velocity is σ²/MSE times the natural gradient. With δt = 1/k the loss at "
        "σ² = MSE comes near the Cramér-Rao level, in the long run the lowest possible; at ten "
        "times the MSE it is 100/19 ≈ 5.3 times that level, and at a tenth the start is hardly "
        "forgotten."
    ),
    measure=measure,
    draw=draw,
    size=(8.0, 3.9),
)
