"""Averaged SGD at a constant rate γ is biased, by about γ, however small δt is; TANGO is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray

from tangograd.reproduction.base import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Claim,
    Result,
    Setting,
    legend_below,
)
from tangograd.reproduction.gaussian_model import TAU, M, fisher, velocity_covariance
from tangograd.reproduction.verdicts import Verdict, exact, mean, quantile
from tangograd.stream import Run, averaged_sgd, tango
from tangograd.stream.models import gaussian

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

GAMMAS = (0.01, 0.02, 0.05)
OPTIMUM = (M, math.log(TAU))
RECORDS = 1000
FORGET = 150  # records; the averages then have forgotten their start, to e⁻¹⁰
DEGREE = 10  # of the moments that are kept

KINK_GAMMA = 1 / 16  # a power of two: multiples of γ/2 have no rounding errors
KINK_DT, KINK_STEPS, KINK_START = 1e-3, 30_000, 9 * KINK_GAMMA / 2
MINIMA = (-0.4, -0.2, 0.0, 0.2, 0.4)  # in units of γ


@njit(cache=True)
def kinked(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def] # noqa: ARG001
    """``ℓ = |θ|`` for ``|θ| ≥ γ/2``, and inside two half parabolas with the minimum at x.

    ``constants = [γ, x]``. There is no model p_θ: we take ``Â = 1``, that is g̃ = 1.
    """
    x, edge = constants[1], constants[0] / 2
    if abs(theta[0]) >= edge:
        g[0] = 1.0 if theta[0] > 0 else -1.0
    else:
        g[0] = (theta[0] - x) / (edge - x if theta[0] > x else edge + x)
    g_tilde[0] = 1.0


def stationary_variance(gamma: float, degree: int = DEGREE) -> float:
    """What averaged SGD gives as variance for data of variance 1, as δt → 0: ``exp(2 E s)``.

    SGD at the rate γ on ``(x, s) = (μ-m, ln σ)`` is the Markov chain ``x ← x + γ (ε-x) e⁻²ˢ``,
    ``s ← s - γ + γ (ε-x)² e⁻²ˢ`` with normal ε. At rest x and s are O(√γ) and all moments
    ``E xⁱsʲ`` stay as they are; with e⁻²ˢ as its Taylor series and moments above a degree left out,
    these are linear equations. The first terms of the solution are

    ``E s = 3γ/4 + 131γ²/72 + O(γ³)``, so that ``exp(2 E s) = 1 + 3γ/2 + 343γ²/72 + O(γ³)``.
    """
    n = degree + 1
    low = np.add.outer(np.arange(n), np.arange(n)) <= degree
    nodes, weights = hermegauss(2 * n)
    weights = weights / weights.sum()
    powers = [tuple(ij) for ij in np.argwhere(low)]

    def product(a: Array, b: Array) -> Array:
        """Of polynomials in (x, s), one for each node, up to the degree."""
        c = np.zeros_like(a)
        for i, j in powers:
            c[:, i:, j:] += a[:, i, j, None, None] * b[:, : n - i, : n - j]
        return c * low

    one, x, s, decay = np.zeros((4, len(nodes), n, n))
    one[:, 0, 0] = x[:, 1, 0] = s[:, 0, 1] = 1
    decay[:, 0] = [(-2.0) ** k / math.factorial(k) for k in range(n)]
    gap = nodes[:, None, None] * one - x
    x_next = x + gamma * product(gap, decay)
    s_next = s - gamma * one + gamma * product(product(gap, gap), decay)
    rows = {}
    x_power = one
    for i in range(n):
        term = x_power
        for j in range(n - i):
            rows[i, j] = np.tensordot(weights, term, 1)[low]
            term = product(term, s_next)
        x_power = product(x_power, x_next)
    change = np.eye(len(powers)) - np.array([rows[i, j] for i, j in powers])
    # the first power is 1, whose mean is known
    moments = np.linalg.solve(change[1:, 1:], -change[1:, 0])
    return math.exp(2 * moments[powers.index((0, 1)) - 1])


def tango_bias(gamma: float) -> float:
    """TANGO's mean variance minus 1, over δt, as δt → 0.

    At the optimum the natural gradient is ``f = (x, (1-(1+x²)e⁻²ˢ)/2)``, so that ``Df = I`` and
    ``E s = E x²/2 + E s²``. The covariance of (x, s) is half of what noise adds in a unit of time,
    ``S = ((W A⁻¹ + A⁻¹ W)/γ - W) δt/2``.
    """
    theta = np.array(OPTIMUM)
    W, A = velocity_covariance(theta, gamma), fisher(theta)
    S = ((W / A + (W / A).T) / gamma - W) / 2
    return float(2 * (S[0, 0] / 2 + S[1, 1]))


def estimate(
    method: Callable[..., Run], gamma: float, dt: float, steps: int, rng: np.random.Generator
) -> float:
    """The variance of the model that a long run finds: ``exp(2 s)``, s averaged over time."""
    run = method(
        gaussian, OPTIMUM, gamma=gamma, dt=dt, steps=steps, rng=rng, constants=(M, TAU),
        records=RECORDS,
    )  # fmt: skip
    return math.exp(2 * run.theta[FORGET + 1 :, 1].mean())


def kink(method: Callable[..., Run], x: float) -> Run:
    """A run on :func:`kinked`, every step recorded; nothing in it is random."""
    return method(
        kinked, (KINK_START,), gamma=KINK_GAMMA, dt=KINK_DT, steps=KINK_STEPS,
        rng=np.random.default_rng(0), constants=(KINK_GAMMA, x * KINK_GAMMA), records=KINK_STEPS,
    )  # fmt: skip


def _measure_kinks() -> tuple[dict[str, Any], list[Verdict]]:
    averaged, tangos = ([kink(method, x) for x in MINIMA] for method in (averaged_sgd, tango))
    positions = np.array(MINIMA) * KINK_GAMMA
    results = np.array([[run.theta[-1, 0] for run in runs] for runs in (averaged, tangos)])
    verdicts = [
        exact(
            "|x|: largest result of averaged SGD, over γ",
            float(np.abs(results[0]).max()) / KINK_GAMMA,
            KINK_DT,  # the average of jumps from γ/2 to -γ/2 and back is below γ δt/2
        ),
        exact(
            "|x|: largest distance of TANGO's result from the minimum, over γ",
            float(np.abs(results[1] - positions).max()) / KINK_GAMMA,
            1e-9,
        ),
    ]
    return {
        "gamma": KINK_GAMMA,
        "minima": positions.tolist(),
        "averaged_sgd": results[0].tolist(),
        "tango": results[1].tolist(),
        "nearest_to_zero_of_sgd": [float(np.abs(run.v).min()) for run in averaged],
    }, verdicts


def measure(setting: Setting) -> Result:
    """Long runs on the Gaussian model for several γ, and the loss with an arbitrary middle."""
    n, dt, steps = (24, 1e-3, 70_000) if setting.quick else (40, 1e-4, 700_000)
    verdicts, estimates = [], []
    for gamma in GAMMAS:
        found = {}
        for method in (averaged_sgd, tango):
            run = partial(estimate, method, gamma, dt, steps)
            streams = setting.generators(n, f"{method.__name__} {gamma}")
            found[method.__name__] = setting.several(run, streams, 0.15)
        expected, bias = stationary_variance(gamma), dt * tango_bias(gamma)
        averaged, tangos = (
            (np.array(found[name]) - 1) / gamma for name in ("averaged_sgd", "tango")
        )
        verdicts.append(
            mean(averaged).near(
                f"(variance - 1)/γ by averaged SGD, γ = {gamma:g}",
                (expected - 1) / gamma,
                # of the computation, and of exp(2 s): its convexity adds 2 Var s ≈ 1/steps
                within=(abs(expected - stationary_variance(gamma, DEGREE - 2)) + 1 / steps) / gamma,
            )
        )
        if gamma in (min(GAMMAS), max(GAMMAS)):
            verdicts.append(
                # the median, since at the larger γ the velocity is heavy-tailed
                quantile(tangos).near(
                    f"(variance - 1)/γ by TANGO, γ = {gamma:g}",
                    bias / gamma,
                    within=bias / gamma * dt / gamma,  # damping, the next order
                )
            )
        estimates.append({"gamma": gamma, "expected": expected, "bias": bias, **found})
    kinks, more = _measure_kinks()
    setting.advance(0.1)
    curve = np.linspace(1e-3, 0.055, 12)
    data = {
        "dt": dt,
        "steps": steps,
        "gaussian": estimates,
        "curve": {"gamma": curve.tolist(), "variance": [stationary_variance(g, 8) for g in curve]},
        "kink": kinks,
    }
    return Result(verdicts + more, data)


def _draw_variances(ax: Axes, data: dict[str, Any]) -> None:
    gammas = np.array([e["gamma"] for e in data["gaussian"]])
    curve = data["curve"]
    ax.plot(curve["gamma"], curve["variance"], color=ORANGE, lw=1.2, label="averaged SGD, computed")
    ax.plot(curve["gamma"], 1 + 1.5 * np.array(curve["gamma"]), ":", color=GREY, label="1 + 1.5 γ")
    ax.axhline(1, color="black", lw=1, label="truth")
    for name, colour, text in (
        ("averaged_sgd", ORANGE, "averaged SGD"),
        ("tango", GREEN, "TANGO"),
    ):
        values = np.array([e[name] for e in data["gaussian"]])
        half = 1.96 * values.std(1, ddof=1) / np.sqrt(values.shape[1])
        ax.errorbar(gammas, values.mean(1), half, fmt="o", color=colour, ms=6, label=text)
    ax.set(xlabel="γ", ylabel="estimated variance", title="Gaussian model", xlim=(0, None))


def _draw_kink(ax: Axes, data: dict[str, Any]) -> None:
    kink = data["kink"]
    minima = np.array(kink["minima"]) / kink["gamma"]
    ax.plot([-0.5, 0.5], [-0.5, 0.5], color="black", lw=1)
    for name, colour in (("averaged_sgd", ORANGE), ("tango", GREEN)):
        ax.plot(minima, np.array(kink[name]) / kink["gamma"], "o", color=colour, ms=6)
    ax.axhline(0, color=BLUE, lw=1, ls="--", label="centre of SGD's jumps")
    ax.set(xlabel="minimum / γ", ylabel="result / γ", title="|x| with the minimum moved")


def draw(data: dict[str, Any], figure: Figure) -> None:
    """Estimated variances against γ; results on the loss |x| with different middles."""
    left, right = figure.subplots(1, 2)
    _draw_variances(left, data)
    _draw_kink(right, data)
    legend_below(figure, left, right, ncols=3)


CLAIM = Claim(
    name="bias",
    title="Averaged SGD is biased at a constant rate, TANGO is not",
    where="TANGO and averaged SGD, with its footnote",
    sentences=(
        "On losses that are not quadratic, a moving average of SGD at a constant rate γ is off by "
        "an amount of the order of γ, no matter how slowly it moves. Fitting a Gaussian to data of "
        "variance 1 it finds a variance of 1 + 1.5 γ and more; the curve is computed from the "
        "moments of SGD at rest. TANGO finds 1 at the same γ, up to the much smaller δt.\n\n"
        "In the second example the loss is |x| outside of an interval of length γ around 0 and has "
        "its minimum somewhere inside. SGD at the rate γ, if it starts at an odd multiple of γ/2, "
        "jumps over the interval for ever, and its average is 0 wherever the minimum is. TANGO "
        "finds the minimum. (There is no probabilistic model here; its Fisher matrix is set to 1.)"
    ),
    measure=measure,
    draw=draw,
    size=(8.0, 4.5),
)
