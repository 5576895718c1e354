"""Averaged SGD at a constant rate γ is biased, by about γ, however small δt is; TANGO is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from tangograd.reproduction import figures as fig
from tangograd.reproduction import gaussian
from tangograd.reproduction.base import Array, Result, Setting
from tangograd.reproduction.exact import gaussian_law
from tangograd.reproduction.gaussian import TAU, M
from tangograd.reproduction.models import kinked
from tangograd.reproduction.verdicts import Verdict, exact, mean, quantile
from tangograd.stream import Run, averaged_sgd, tango

GAMMAS = (0.01, 0.02, 0.05)
OPTIMUM = (M, math.log(TAU))
RECORDS = 1000
FORGET = 150  # records; the averages then have forgotten their start, to e⁻¹⁰
DEGREE = 10  # of the moments that are kept

KINK_GAMMA = 1 / 16  # a power of two: multiples of γ/2 have no rounding errors
KINK_DT, KINK_STEPS, KINK_START = 1e-3, 30_000, 9 * KINK_GAMMA / 2
MINIMA = (-0.4, -0.2, 0.0, 0.2, 0.4)  # in units of γ


def stationary_variance(gamma: float, degree: int = DEGREE) -> float:
    """Return averaged SGD's variance for data of variance 1, as δt → 0: ``exp(2 E s)``.

    SGD at the rate γ on ``(x, s) = (μ-m, ln σ)`` is the Markov chain ``x ← x + γ (ε-x) e⁻²ˢ``,
    ``s ← s - γ + γ (ε-x)² e⁻²ˢ`` with normal ε. In the stationary state x and s are O(√γ) and the
    moments ``E xⁱsʲ`` do not change; with e⁻²ˢ as its Taylor series and moments above a degree left
    out, these are linear equations. The first terms of the solution are

    ``E s = 3γ/4 + 131γ²/72 + O(γ³)``, so that ``exp(2 E s) = 1 + 3γ/2 + 343γ²/72 + O(γ³)``.
    """
    n = degree + 1
    low = np.add.outer(np.arange(n), np.arange(n)) <= degree
    nodes, weights = hermegauss(2 * n)
    weights = weights / weights.sum()
    powers = [tuple(ij) for ij in np.argwhere(low)]

    def product(a: Array, b: Array) -> Array:
        """Multiply polynomials in (x, s), one for each node, up to the degree."""
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
    rows, x_power = [], one
    for i in range(n):
        term = x_power
        for _ in range(n - i):
            rows.append(np.tensordot(weights, term, 1)[low])
            term = product(term, s_next)
        x_power = product(x_power, x_next)
    change = np.eye(len(powers)) - np.array(rows)
    # the first power is 1, whose mean is known, and the next is s
    moments = np.linalg.solve(change[1:, 1:], -change[1:, 0])
    return math.exp(2 * moments[0])


def tango_bias(gamma: float) -> float:
    """Return TANGO's mean variance minus 1, over δt, as δt → 0.

    At the optimum the natural gradient is ``f = (x, (1-(1+x²)e⁻²ˢ)/2)``, so that ``Df = I`` and
    ``E s = E x²/2 + E s²``. The covariance of (x, s) is half of what noise adds in a unit of time.
    """
    S = gaussian_law(M, OPTIMUM).diffusion(gamma) / 2
    return float(2 * (S[0, 0] / 2 + S[1, 1]))


def estimate(method: Callable[..., Run], rng: np.random.Generator, **options: Any) -> float:
    """Return the model's variance after a long run: ``exp(2 s)``, s averaged over time."""
    run = gaussian.run(method, rng, theta=OPTIMUM, records=RECORDS, **options)
    return math.exp(2 * run.theta[FORGET + 1 :, 1].mean())


def kink(method: Callable[..., Run], x: float) -> Run:
    """Run on the loss |x| with the minimum moved, every step recorded; nothing is random."""
    options: dict[str, Any] = {"gamma": KINK_GAMMA, "dt": KINK_DT, "rng": np.random.default_rng(0)}
    options |= {"steps": KINK_STEPS, "records": KINK_STEPS}
    return method(kinked, (KINK_START,), constants=(KINK_GAMMA, x * KINK_GAMMA), **options)


def _kinks() -> tuple[list[Verdict], fig.Panel]:
    """Test the limits on the loss |x| with the minimum moved."""
    averaged, tangos = (
        np.array([kink(method, x).theta[-1, 0] for x in MINIMA]) / KINK_GAMMA
        for method in (averaged_sgd, tango)
    )
    what = "|x|: largest result of averaged SGD, over γ"
    # the average of jumps from γ/2 to -γ/2 and back is below γ δt/2
    verdicts = [exact(what, float(np.abs(averaged).max()), KINK_DT)]
    what = "|x|: largest distance of TANGO's result from the minimum, over γ"
    verdicts.append(exact(what, float(np.abs(tangos - MINIMA).max()), 1e-9))
    return verdicts, fig.panel(
        fig.curve([-0.5, 0.5], [-0.5, 0.5], fig.BLACK, width=1),
        fig.limit(0, fig.BLUE, "centre of SGD's jumps", ls="--"),
        fig.points(MINIMA, averaged, fig.ORANGE), fig.points(MINIMA, tangos, fig.GREEN),
        xlabel="minimum / γ", ylabel="result / γ", title="|x| with the minimum moved",
    )  # fmt: skip


def measure(setting: Setting) -> Result:
    """Measure long runs on the Gaussian model for several γ, and the loss with a moved minimum."""
    n, dt, steps = (24, 1e-3, 70_000) if setting.quick else (40, 1e-4, 700_000)
    verdicts, found = [], dict[str, dict[float, list[float]]]()
    for gamma in GAMMAS:
        for name, method in (("averaged_sgd", averaged_sgd), ("tango", tango)):
            run = partial(estimate, method, gamma=gamma, dt=dt, steps=steps)
            samples = setting.sample(run, n, f"{name} {gamma}", 0.15)
            found.setdefault(name, {})[gamma] = samples
        averaged, tangos = ((np.array(each[gamma]) - 1) / gamma for each in found.values())
        variance, target = stationary_variance(gamma), dt * tango_bias(gamma) / gamma
        # errors of the computation, and of exp(2 s): its convexity adds 2 Var s ≈ 1/steps
        error = abs(variance - stationary_variance(gamma, DEGREE - 2)) + 1 / steps
        what = f"(variance - 1)/γ by averaged SGD, γ = {gamma:g}"
        verdicts.append(mean(averaged).near(what, (variance - 1) / gamma, within=error / gamma))
        if gamma in (min(GAMMAS), max(GAMMAS)):
            what = f"(variance - 1)/γ by TANGO, γ = {gamma:g}"
            # the median, since at the larger γ the velocity is heavy-tailed; damping is next order
            verdicts.append(quantile(tangos).near(what, target, within=target * dt / gamma))
    more, right = _kinks()
    setting.advance(0.1)
    curve = np.linspace(1e-3, 0.055, 12)
    variances = [stationary_variance(gamma, 8) for gamma in curve]
    marks = [
        fig.curve(curve, variances, fig.ORANGE, "averaged SGD, computed", 1.2),
        fig.curve(curve, 1 + 1.5 * curve, fig.GREY, "1 + 1.5 γ", 1.5, ":"),
        fig.limit(1, fig.BLACK, "truth"),
    ]
    colours, labels = (fig.ORANGE, fig.GREEN), ("averaged SGD", "TANGO")
    for each, colour, label in zip(found.values(), colours, labels, strict=True):
        marks.append(fig.means(GAMMAS, list(each.values()), colour, label))
    options: dict[str, Any] = {"title": "Gaussian model", "xlim": (0, None)}
    left = fig.panel(*marks, xlabel="γ", ylabel="estimated variance", **options)
    return Result(verdicts + more, fig.Picture([left, right], legend=3), found)
