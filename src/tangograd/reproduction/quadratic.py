"""On quadratic losses TANGO is averaged SGD with a known noise; on others it is not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from tangograd.reproduction.base import BLUE, GREEN, GREY, ORANGE, RED, Claim, Result, Setting
from tangograd.reproduction.gaussian_model import (
    START,
    TAU,
    M,
    circle,
    half_plane,
    mean_and_covariance,
)
from tangograd.reproduction.verdicts import exact, mean
from tangograd.stream import Run, averaged_sgd, tango
from tangograd.stream.models import gaussian, linear

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

# linear regression: features of unequal scales, a model that mistakes the noise of the data
SCALES, TRUTH, NOISE, SIGMA = (1.0, 0.7, 0.4, 0.2), (1.0, -1.0, 2.0, -2.0), 0.5, 1.0
REGRESSION_GAMMA, REGRESSION_STEPS = 0.05, 2000
# δt₀, δt₁, …: it varies, so that δt_{k-1} in place of δt_k would be noticed
REGRESSION_DT = 0.5 / np.arange(1, REGRESSION_STEPS + 2) ** 0.7

GAMMA, DT, TIME = 1e-2, 1e-4, 10.0  # the Gaussian model, as in Figure 1
RECORDS = 1000
TOP = 0.7  # a time near that of the circle's top


def _regression(rng: np.random.Generator) -> Run:
    constants = (NOISE, SIGMA, *SCALES, *TRUTH)
    return tango(
        linear, np.zeros(len(SCALES)), gamma=REGRESSION_GAMMA, dt=REGRESSION_DT,
        steps=REGRESSION_STEPS, rng=rng, constants=constants, records=REGRESSION_STEPS,
    )  # fmt: skip


@dataclass(frozen=True)
class Averaged:
    """Averaged SGD over all steps of several runs.

    Attributes:
        theta: the average, shape (steps + 1, runs, d).
        fast: the fast parameters, likewise.
        pull: the average over the steps of ``⟨ξ, a⟩/⟨a, a⟩`` with ``a = θ - θ_fast``, for each run;
            its mean is 0 if ξ is centred, whatever a is.
    """

    theta: Array
    fast: Array
    pull: Array


def averaged_regression(rngs: list[np.random.Generator], *, noisy: bool = True) -> Averaged:
    """Averaged SGD for the regression, from its definition, with TANGO's random numbers.

    ``θ_fast ← θ_fast - γ x (⟨x, θ_fast⟩ - y)/σ² + γ ξ``, ``θ ← (1-δt_k) θ + δt_k θ_fast``, with

    ``ξ_k = (1-δt_{k-1}) (g̃_k g̃_kᵀ - H_k) v_{k-1} = (g̃_k g̃_kᵀ - H_k) (θ_{k-1} - θ_fast,k-1)``,

    ``H = x xᵀ/σ²`` and ``g̃ = z x/σ``, z being the noise of the pseudo-sample: ``E ξ = 0``.

    Args:
        rngs: one for each run.
        noisy: whether ξ is added.
    """
    d = len(SCALES)
    draws = np.stack([rng.standard_normal((REGRESSION_STEPS, d + 2)) for rng in rngs], axis=1)
    theta = np.zeros((REGRESSION_STEPS + 1, len(rngs), d))
    fast = np.zeros_like(theta)
    pull = np.zeros(len(rngs))
    for k in range(1, REGRESSION_STEPS + 1):
        x, z = draws[k - 1, :, 1:-1] * SCALES, draws[k - 1, :, -1:]
        y = (x @ np.array(TRUTH))[:, None] + NOISE * draws[k - 1, :, :1]
        apart = theta[k - 1] - fast[k - 1]
        along = (x * apart).sum(1, keepdims=True)
        xi = (z * x / SIGMA) * (z * along / SIGMA) - x * along / SIGMA**2
        gradient = x * ((x * fast[k - 1]).sum(1, keepdims=True) - y) / SIGMA**2
        fast[k] = fast[k - 1] - REGRESSION_GAMMA * (gradient - xi * noisy)
        theta[k] = (1 - REGRESSION_DT[k]) * theta[k - 1] + REGRESSION_DT[k] * fast[k]
        if k > 1:  # at the start they are not apart
            pull += (xi * apart).sum(1) / (apart**2).sum(1) / (REGRESSION_STEPS - 1)
    return Averaged(theta, fast, pull)


def _gaussian(rngs: tuple[np.random.Generator, np.random.Generator]) -> tuple[Array, Array]:
    """TANGO's path and that of averaged SGD; the two generators draw the same numbers."""
    tangos, averages = (
        method(
            gaussian, START, gamma=GAMMA, dt=DT, steps=round(TIME / DT),
            rng=rng, constants=(M, TAU), records=RECORDS,
        ).theta
        for method, rng in zip((tango, averaged_sgd), rngs, strict=True)
    )  # fmt: skip
    return tangos, averages


def averaged_flow(time: float) -> Array:
    """θ of averaged SGD on the Gaussian model without noise.

    ``dθ_fast/dt = -(γ/δt) F(θ_fast)``, ``dθ/dt = θ_fast - θ``.
    """

    def change(_: float, y: Array) -> Array:
        a, p = M - y[2], math.exp(-2 * y[3])
        F = np.array([-a * p, 1 - (TAU**2 + a * a) * p])
        return np.concatenate([y[2:] - y[:2], -GAMMA / DT * F])

    start = np.array([*START, *START])
    return np.asarray(solve_ivp(change, (0, time), start, "LSODA", rtol=1e-8, atol=1e-8).y[:2, -1])


def expected_distance() -> tuple[float, float]:
    """Ln σ of TANGO minus that of averaged SGD at :data:`TOP`, and the error of this figure.

    The error is what the curvature changes in TANGO's mean, plus the bias ¾γ of averaged SGD.
    """
    flat, curved = (
        mean_and_covariance(GAMMA, DT, round(TOP / DT), curvature=curvature)[0][1]
        for curvature in (False, True)
    )
    return curved - averaged_flow(TOP)[1], abs(curved - flat) + 0.75 * GAMMA


def measure(setting: Setting) -> Result:
    """Both algorithms with the same random numbers, on a regression and on the Gaussian model."""
    n = 40 if setting.quick else 200
    streams = partial(setting.generators, n, "regression")
    runs = setting.several(_regression, streams(), 0.1)
    theta = np.stack([run.theta for run in runs], axis=1)
    v = np.stack([run.v for run in runs], axis=1)
    noisy, plain = (averaged_regression(streams(), noisy=noisy) for noisy in (True, False))
    setting.advance(0.1)
    alike = [setting.generators(n, "gaussian") for _ in range(2)]
    pairs = setting.several(_gaussian, zip(*alike, strict=True), 0.8)
    distance, error = expected_distance()
    top = round(TOP / TIME * RECORDS)
    verdicts = [
        exact(
            "regression: largest difference of θ, all steps and runs",
            float(np.abs(theta - noisy.theta).max()),
            1e-12,
        ),
        exact(
            "regression: largest difference of v from θ before minus θ_fast",
            float(np.abs(v[1:] - (noisy.theta[:-1] - noisy.fast[1:])).max()),
            1e-12,
        ),
        mean(noisy.pull).near("regression: mean of the noise ξ along θ - θ_fast, relative", 0.0),
        mean((theta - plain.theta)[-1].sum(1)).near(
            "regression: mean difference of Σθ if ξ is left out", 0.0
        ),
        mean([(a - b)[top, 1] for a, b in pairs]).near(
            f"Gaussian model: difference of ln σ at time {TOP:g}", distance, within=error
        ),
    ]
    gaps = {
        "identical": np.abs(theta - noisy.theta)[:, 0].max(1)[1:],
        "plain": np.abs(theta - plain.theta)[:, 0].max(1)[1:],
        "gaussian": np.abs(pairs[0][0] - pairs[0][1]).max(1)[1:],
    }
    data = {
        "regression": {
            "gamma": REGRESSION_GAMMA,
            "dt": REGRESSION_DT[[1, -1]].tolist(),
            "ends": [float((theta - plain.theta)[-1, i].sum()) for i in range(n)],
        },
        "gaussian": {
            "gamma": GAMMA,
            "dt": DT,
            "tango": half_plane(pairs[0][0]).tolist(),
            "averaged_sgd": half_plane(pairs[0][1]).tolist(),
            "natural_gradient": circle(300).tolist(),
        },
        "gaps": {name: gap[:: len(gap) // 200].tolist() for name, gap in gaps.items()},
    }
    return Result(verdicts, data)


def draw(data: dict[str, Any], figure: Figure) -> None:
    """Left, the differences along a run; right, both paths on the Gaussian model."""
    left, right = figure.subplots(1, 2)
    for name, colour, text in (
        ("gaussian", ORANGE, "Gaussian model"),
        ("plain", BLUE, "regression, without the noise ξ"),
        ("identical", GREEN, "regression, with the noise ξ"),
    ):
        gap = np.array(data["gaps"][name])
        left.plot(np.linspace(0, 1, len(gap)), np.maximum(gap, 1e-17), color=colour, label=text)
    left.set(yscale="log", ylim=(1e-18, 100), xlabel="fraction of the run", ylabel="largest |Δθ|",
             title="TANGO minus averaged SGD")  # fmt: skip
    left.legend(frameon=False, loc="center", bbox_to_anchor=(0.5, 0.52))
    model = data["gaussian"]
    for name, colour, width, text in (
        ("natural_gradient", GREY, 5, "natural gradient"),
        ("tango", GREEN, 1.5, "TANGO"),
        ("averaged_sgd", ORANGE, 1.5, "averaged SGD"),
    ):
        right.plot(*np.array(model[name]).T, color=colour, lw=width, label=text,
                   alpha=0.45 if width == 5 else 1)  # fmt: skip
    right.plot(0, 1, "o", color=RED, ms=5)
    right.plot(10, 1, "*", color=RED, ms=10)
    right.set(xlabel="μ", ylabel="σ", ylim=(0, 9), title=f"Gaussian model, δt = {model['dt']:g}")
    right.legend(frameon=False, loc="upper center", ncols=2)


CLAIM = Claim(
    name="quadratic",
    title="On quadratic losses TANGO is averaged SGD",
    where="Proposition 2",
    sentences=(
        "Averaged SGD lets fast parameters descend at a constant rate γ and returns their moving "
        "average. If the loss of each sample is quadratic, as in linear regression, then TANGO is "
        "exactly that, with one more centred noise ξ on the fast parameters, although it computes "
        "gradients at the average only: v is the average minus the fast parameters. With the same "
        "random numbers the two differ by rounding; without ξ, by noise of mean zero.\n\n"
        "On other losses they differ by much. On the Gaussian model of Figure 1, TANGO goes along "
        "the natural gradient's circle, and averaged SGD with the same γ and δt stays far below."
    ),
    measure=measure,
    draw=draw,
    size=(8.0, 4.2),
)
