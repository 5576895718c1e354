"""At a fixed θ the velocity solves for the damped natural gradient; how fast, and how noisily."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import toeplitz

from tangograd.reproduction import figures as fig
from tangograd.reproduction.base import Array, Result, Setting
from tangograd.reproduction.exact import Regression
from tangograd.reproduction.examples import Example
from tangograd.reproduction.models import EMPIRICAL, EXPECTED, SAMPLED, correlated_regression
from tangograd.reproduction.verdicts import mean, near_mean

# The mean: correlated features, a diagonal C, and enough damping to see each of its factors.
OFFSET, RHO, NOISE, C = (0.3, -0.2, 0.15), 0.6, 0.3, np.array([1.0, 2.0, 0.5])
GAMMA = DT = 0.03
# Speed and fluctuations: F = I, the gradient and the noise of size 1, no damping.
DIMENSIONS, DIMENSION, BATCHES = (2, 8, 32), 8, (1, 4, 16, 64)
CHECKED = 16
#: The Fisher estimates: name, kind of g̃, and whether a batch gives one outer product.
KINDS = {
    "sampled": (SAMPLED, False),
    "expected": (EXPECTED, False),
    "empirical": (EMPIRICAL, False),
    "rank one": (SAMPLED, True),
}


def estimate(
    name: str, offset: ArrayLike, batch: int = 1, rho: float = 0.0, noise: float = 1.0
) -> Example:
    """Return a regression at ``θ* + offset`` with one of the Fisher estimates."""
    (kind, rank_one), delta = KINDS[name], np.asarray(offset, np.float64)
    covariance = toeplitz(rho ** np.arange(len(delta)))
    regression = Regression.gaussian(covariance, noise=noise, kind=kind, offset=delta)
    law = replace(regression.law(delta), batch=batch, rank_one=rank_one)
    return Example(name, law, delta, (kind, rho, noise), correlated_regression)


def _averages(setting: Setting, example: Example) -> Array:
    """Return averages of v over long runs from 0, one row a run."""
    n, steps = (40, 5_000) if setting.quick else (60, 50_000)

    def one(rng: np.random.Generator) -> Array:
        v = example.run(GAMMA, steps, rng, dt=DT, C=C, records=steps).v
        return np.asarray(v[steps // 10 :].mean(0))  # the start contributes less than e⁻¹⁵

    return np.stack(setting.sample(one, n, example.title, 0.1))


def _remaining(setting: Setting, example: Example) -> tuple[Array, Array]:
    """Return what the mean of v lacks of m after k steps at ``γ = 1/R²``, in runs and exactly."""
    n, d, R2 = 200 if setting.quick else 1000, len(example.law.gradient), example.law.R2
    steps = round(3 * R2)

    def one(rng: np.random.Generator) -> Array:
        return np.asarray(1 - example.run(1 / R2, steps, rng, records=steps).v[:, 0])

    paths = np.stack(setting.sample(one, n, f"dimension {d}", 0.03))
    return paths, 1 - example.law.means(1 / R2, steps)[:, 0]


def _noise(setting: Setting, example: Example) -> list[float]:
    """Measure the fluctuations of one estimate at ``γ = 1/R²``, for one batch size."""
    n, forgets = (30, 100) if setting.quick else (60, 400)
    law, batch = example.law, example.law.batch
    forgets = min(forgets, forgets * 16 // batch)  # larger batches cost more
    gamma, m = 1 / law.R2, law.limit(1 / law.R2)
    steps = round((forgets + 10) * law.R2 / law.smallest)

    def one(rng: np.random.Generator) -> float:
        v = example.run(gamma, steps, rng, records=steps).v[steps * 10 // (forgets + 10) :]
        return float(((v - m) ** 2).sum(1).mean() / (m @ m))

    return setting.sample(one, n, f"{example.title} {batch}", 0.5 / 16)


def measure(setting: Setting) -> Result:
    """Measure the mean of four estimates, then speed and noise over dimensions and batches."""
    verdicts, distances, samples = [], [], dict[str, Any]()
    for name, (kind, rank_one) in KINDS.items():
        example = estimate(name, OFFSET, 8 if rank_one else 1, RHO, NOISE)
        m = example.law.limit(GAMMA, DT, C)
        averages = samples[name] = _averages(setting, example)
        # Errors of independent runs: their product has the square of the bias as its mean.
        halves = np.split((averages - m) / np.linalg.norm(m), 2)
        distances.append((halves[0] * halves[1]).sum(1))
        if kind != EXPECTED:  # in the table by the squared distance alone
            matrix = "E ggᵀ for F" if kind == EMPIRICAL else f"B = {example.law.batch}"
            what = f"length of the mean of v along its limit, {name}, {matrix}"
            verdicts.append(mean(averages @ m / (m @ m)).near(what, 1.0))
    what = "squared distance of the mean of v from its limit, relative, all four kinds"
    verdicts.append(mean(np.mean(distances, axis=0)).near(what, 0.0))
    shades, left = ("#a0a0a0", fig.GREY, fig.BLACK), list[fig.Mark]()
    for d, colour in zip(DIMENSIONS, shades, strict=True):
        example = estimate("sampled", np.eye(d)[0])
        lacking, exactly = _remaining(setting, example)
        k = np.unique(np.geomspace(1, len(exactly) - 1, 9).round().astype(int))
        left.append(fig.exact(range(1, len(exactly)), exactly[1:], colour))
        left.append(fig.means(k, lacking[:, k].T, colour, f"d = {d}"))
    after = int(example.law.R2 + 0.5)
    what = f"what the mean of v lacks after R² = {after} steps, d = {DIMENSIONS[-1]}"
    verdicts.append(mean(lacking[:, after]).near(what, float(exactly[after])))
    right, B = list[fig.Mark](), np.unique(np.geomspace(BATCHES[0], BATCHES[-1], 13).astype(int))
    for name, colour in zip(KINDS, (fig.BLUE, fig.GREEN, fig.PURPLE, fig.ORANGE), strict=True):
        examples = {b: estimate(name, np.eye(DIMENSION)[0], int(b)) for b in B}
        noise = {b: _noise(setting, examples[b]) for b in BATCHES}
        known = {b: e.law.fluctuation(1 / e.law.R2) for b, e in examples.items()}
        right.append(fig.exact(B, list(known.values()), colour))
        right.append(fig.means(BATCHES, list(noise.values()), colour, name))
        samples[f"noise, {name}"] = noise
        if name in ("sampled", "rank one"):
            what = f"E‖v-m‖²/‖m‖² at γ = 1/R², {name}, B = {CHECKED}"
            verdicts.append(near_mean(noise[CHECKED], what, known[CHECKED]))
    panels = [
        fig.panel(
            *left, title="what the mean of v still lacks", log="x", xlabel="step",
            legend="lower left",
        ),
        fig.panel(
            *right, title="E‖v-m‖²/‖m‖² at γ = 1/R²", log="xy", ylim=(0.08, 1.5),
            xlabel="batch size B", legend="lower left", xticks=BATCHES, xticklabels=BATCHES,
        ),
    ]  # fmt: skip
    return Result(verdicts, fig.Picture(panels, (8.0, 3.8)), samples)
