"""On quadratic losses TANGO is averaged SGD with a known noise; on others it is not."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tangograd.reproduction import figures as fig
from tangograd.reproduction import gaussian
from tangograd.reproduction.base import Array, Result, Setting
from tangograd.reproduction.verdicts import exact, mean
from tangograd.stream import Run, averaged_sgd, tango
from tangograd.stream.models import linear

# linear regression: features of unequal scales, a model with the wrong variance of the noise
SCALES, TRUTH, NOISE, SIGMA = (1.0, 0.7, 0.4, 0.2), (1.0, -1.0, 2.0, -2.0), 0.5, 1.0
REGRESSION_GAMMA, REGRESSION_STEPS = 0.05, 2000
# δt₀, δt₁, …: it varies, so that δt_{k-1} in place of δt_k would be noticed
REGRESSION_DT = 0.5 / np.arange(1, REGRESSION_STEPS + 2) ** 0.7

GAMMA, DT, TIME = 1e-2, 1e-4, 10.0  # the Gaussian model, as in Figure 1
RECORDS = 1000
TOP = 0.7  # a time near that of the circle's top


def _regression(rng: np.random.Generator) -> Run:
    options: dict[str, Any] = {"steps": REGRESSION_STEPS, "records": REGRESSION_STEPS}
    options |= {"dt": REGRESSION_DT, "constants": (NOISE, SIGMA, *SCALES, *TRUTH)}
    return tango(linear, np.zeros(len(SCALES)), gamma=REGRESSION_GAMMA, rng=rng, **options)


class Averaged(NamedTuple):
    """All steps of several runs of averaged SGD."""

    theta: Array  # the average, shape (steps + 1, runs, d)
    fast: Array  # the fast parameters, of the same shape
    #: The average over the steps of ``⟨ξ, a⟩/⟨a, a⟩`` with ``a = θ - θ_fast``, for each run; its
    #: mean is 0 if ξ is centred, whatever a is.
    pull: Array


def averaged_regression(rngs: list[np.random.Generator], *, noisy: bool = True) -> Averaged:
    """Run averaged SGD for the regression, one run for each of rngs, from its definition.

    ``θ_fast ← θ_fast - γ x (⟨x, θ_fast⟩ - y)/σ² + γ ξ``, ``θ ← (1-δt_k) θ + δt_k θ_fast``, with

    ``ξ_k = (1-δt_{k-1}) (g̃_k g̃_kᵀ - H_k) v_{k-1} = (g̃_k g̃_kᵀ - H_k) (θ_{k-1} - θ_fast,k-1)``,

    ``H = x xᵀ/σ²`` and ``g̃ = z x/σ``, z being the noise of the pseudo-sample: ``E ξ = 0``. The
    random numbers are TANGO's; if not ``noisy``, ξ is left out.
    """
    d = len(SCALES)
    draws = np.stack([rng.standard_normal((REGRESSION_STEPS, d + 2)) for rng in rngs], axis=1)
    theta, fast = np.zeros((2, REGRESSION_STEPS + 1, len(rngs), d))
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


def _gaussian(rngs: tuple[np.random.Generator, np.random.Generator]) -> list[Array]:
    """Return the paths of TANGO and of averaged SGD; both generators draw the same numbers."""
    options: dict[str, Any] = {"dt": DT, "steps": round(TIME / DT), "records": RECORDS}
    methods = zip((tango, averaged_sgd), rngs, strict=True)
    return [gaussian.run(method, rng, gamma=GAMMA, **options).theta for method, rng in methods]


def expected_distance() -> tuple[float, float]:
    """Return ln σ of TANGO minus that of averaged SGD at :data:`TOP`, and a bound on its error.

    The error is what the curvature changes in TANGO's mean, plus the bias ¾γ of averaged SGD.
    """
    flat, curved = (
        gaussian.moments(GAMMA, DT, round(TOP / DT), curvature=curvature)[0][1]
        for curvature in (False, True)
    )
    averaged = gaussian.gradient_flow(TOP, rate=GAMMA / DT)[-1, 4]
    return curved - averaged, abs(curved - flat) + 0.75 * GAMMA


def measure(setting: Setting) -> Result:
    """Run both algorithms with the same random numbers, on a regression and the Gaussian model."""
    n = 40 if setting.quick else 200
    streams = partial(setting.generators, n, "regression")
    runs = setting.map(_regression, streams(), 0.1)
    theta, v = (np.stack([run[i] for run in runs], axis=1) for i in (0, 1))
    noisy, plain = (averaged_regression(streams(), noisy=noisy) for noisy in (True, False))
    setting.advance(0.1)
    alike = [setting.generators(n, "gaussian") for _ in range(2)]
    pairs = setting.map(_gaussian, zip(*alike, strict=True), 0.8)
    distance, error = expected_distance()
    top = round(TOP / TIME * RECORDS)
    rounding, plain_gap = np.abs(theta - noisy.theta), theta - plain.theta
    largest, what = float(rounding.max()), "regression: largest difference of "
    of_v = float(np.abs(v[1:] - (noisy.theta[:-1] - noisy.fast[1:])).max())
    verdicts = [
        exact(what + "θ, all steps and runs", largest, 1e-12),
        exact(what + "v from θ before minus θ_fast", of_v, 1e-12),
        mean(noisy.pull).near("regression: mean of the noise ξ along θ - θ_fast, relative", 0.0),
        mean(plain_gap[-1].sum(1)).near("regression: mean difference of Σθ if ξ is left out", 0.0),
        mean([(a - b)[top, 1] for a, b in pairs]).near(
            f"Gaussian model: difference of ln σ at time {TOP:g}", distance, within=error
        ),
    ]
    curves = [
        fig.curve(np.linspace(0, 1, len(gap)), np.maximum(gap, 1e-17), colour, label)
        for gap, colour, label in (
            (np.abs(pairs[0][0] - pairs[0][1])[1::5].max(1), fig.ORANGE, "Gaussian model"),
            (np.abs(plain_gap)[1::10, 0].max(1), fig.BLUE, "regression, without the noise ξ"),
            (rounding[1::10, 0].max(1), fig.GREEN, "regression, with the noise ξ"),
        )
    ]
    left = fig.panel(
        *curves, legend="center", log="y", ylim=(1e-18, 100), xlabel="fraction of the run",
        ylabel="largest |Δθ|", title="TANGO minus averaged SGD",
    )  # fmt: skip
    right = gaussian.half_plane_panel(
        fig.path(gaussian.half_plane(pairs[0][0]), fig.GREEN, "TANGO"),
        fig.path(gaussian.half_plane(pairs[0][1]), fig.ORANGE, "averaged SGD"),
        legend="upper center", ylim=(0, 9), title=f"Gaussian model, δt = {DT:g}",
    )  # fmt: skip
    samples = {"pull": noisy.pull, "ends": plain_gap[-1].sum(1)}
    return Result(verdicts, fig.Picture([left, right], (8.0, 4.2)), samples)
