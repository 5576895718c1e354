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


def exact_steps(example: Example) -> float:
    """Return the steps in which the mean of v forgets its start at ``γ = 1/R²``, ``R²/λ``.

    λ is the eigenvalue of ``E F̂`` in the direction of ``E g``, for uncorrelated features.
    """
    law = example.law
    along = law.gradient @ law.fisher @ law.gradient / (law.gradient @ law.gradient)
    return float(law.R2 / along)


def _averages(setting: Setting, example: Example, share: float) -> Array:
    """Return averages of v over long runs from 0, one row a run."""
    n, steps = (40, 5_000) if setting.quick else (60, 50_000)

    def one(rng: np.random.Generator) -> Array:
        v = example.run(GAMMA, steps, rng, dt=DT, C=C, records=steps).v
        return np.asarray(v[steps // 10 :].mean(0))  # the start contributes less than e⁻¹⁵

    return np.stack(setting.sample(one, n, example.title, share))


def _remaining(
    setting: Setting, d: int, colour: str, share: float
) -> tuple[list[fig.Mark], list[float], float]:
    """Return what the mean of v lacks of m after k steps at ``γ = 1/R²``: ``(1-γ)^k`` for F = I.

    Marks of the picture, samples after R² steps, and their exact mean.
    """
    example, n = estimate("sampled", np.eye(d)[0]), 200 if setting.quick else 1000
    R2 = example.law.R2
    steps = round(3 * R2)

    def one(rng: np.random.Generator) -> Array:
        return np.asarray(1 - example.run(1 / R2, steps, rng, records=steps).v[:, 0])

    paths = np.stack(setting.sample(one, n, f"dimension {d}", share))
    exactly = 1 - example.law.means(1 / R2, steps)[:, 0]
    shown = np.unique(np.geomspace(1, steps, 9).round().astype(int))
    marks = [
        fig.exact(range(1, steps + 1), exactly[1:], colour),
        fig.means(shown, paths[:, shown].T, colour, f"d = {d}"),
    ]
    return marks, paths[:, round(R2)].tolist(), float(exactly[round(R2)])


def _noise(setting: Setting, example: Example, share: float) -> list[float]:
    """Measure the fluctuations of one estimate at ``γ = 1/R²``, for one batch size."""
    n, forgets = (30, 100) if setting.quick else (60, 400)
    law, batch = example.law, example.law.batch
    forgets = min(forgets, forgets * 16 // batch)  # larger batches cost more
    gamma, m = 1 / law.R2, law.limit(1 / law.R2)
    steps = round((forgets + 10) * law.R2 / law.smallest)

    def one(rng: np.random.Generator) -> float:
        v = example.run(gamma, steps, rng, records=steps).v[steps * 10 // (forgets + 10) :]
        return float(((v - m) ** 2).sum(1).mean() / (m @ m))

    return setting.sample(one, n, f"{example.title} {batch}", share)


def _trade(name: str, colour: str, samples: list[list[float]]) -> list[fig.Mark]:
    """Return fluctuations over the steps to forget of one estimate: exact, and measured."""
    examples = {
        int(B): estimate(name, np.eye(DIMENSION)[0], int(B))
        for B in np.unique(np.geomspace(BATCHES[0], BATCHES[-1], 13).astype(int))
    }
    pace = {B: exact_steps(e) for B, e in examples.items()}
    noise = [e.law.fluctuation(1 / e.law.R2) for e in examples.values()]
    x = [pace[B] for B in BATCHES]
    marks = [fig.exact(list(pace.values()), noise, colour), fig.means(x, samples, colour, name)]
    if name == "sampled":
        marks += [
            fig.text(a, 1.1 * float(np.mean(y)), f"{B}", colour, ha="right", fontsize=8)
            for B, a, y in zip(BATCHES, x, samples, strict=True)
        ]
    return marks


def _path(setting: Setting) -> fig.Panel:
    """Return one run: v, and its average so far."""
    example, steps = estimate("sampled", OFFSET, 1, RHO, NOISE), 20_000
    (rng,) = setting.generators(1, "path")
    v = example.run(GAMMA, steps, rng, dt=DT, C=C, records=steps).v[1:]
    setting.advance(0.01)
    k = np.unique(np.geomspace(1, steps, 300).astype(int))
    averages = v.cumsum(0) / np.arange(1, steps + 1)[:, None]
    limits, marks = example.law.limit(GAMMA, DT, C), list[fig.Mark]()
    for i, colour in enumerate((fig.RED, fig.SKY, fig.GREY)):
        marks += [
            fig.curve(k, v[k - 1, i], colour, width=0.7, alpha=0.35),
            fig.curve(k, averages[k - 1, i], colour),
            fig.limit(limits[i], fig.BLACK, ls="--"),
        ]
    title = "v (thin), its average (thick)\nand limit (dashed)"
    return fig.panel(*marks, title=title, log="x", xlabel="step", ylabel="three parameters")


def measure(setting: Setting) -> Result:
    """Measure the mean of four estimates, then speed and noise over dimensions and batches."""
    verdicts, distances, samples = [], [], dict[str, Any]()
    for name, (kind, rank_one) in KINDS.items():
        example = estimate(name, OFFSET, 8 if rank_one else 1, RHO, NOISE)
        m = example.law.limit(GAMMA, DT, C)
        averages = samples[name] = _averages(setting, example, 0.1)
        # Errors of independent runs: their product has the square of the bias as its mean.
        halves = np.split((averages - m) / np.linalg.norm(m), 2)
        distances.append((halves[0] * halves[1]).sum(1))
        if kind != EXPECTED:  # in the table by the squared distance alone
            matrix = "E ggᵀ for F" if kind == EMPIRICAL else f"B = {example.law.batch}"
            what = f"length of the mean of v along its limit, {name}, {matrix}"
            verdicts.append(mean(averages @ m / (m @ m)).near(what, 1.0))
    what = "squared distance of the mean of v from its limit, relative, all four kinds"
    verdicts.append(mean(np.mean(distances, axis=0)).near(what, 0.0))
    shades, middle = ("#a0a0a0", fig.GREY, fig.BLACK), list[fig.Mark]()
    for d, colour in zip(DIMENSIONS, shades, strict=True):
        marks, lacking, exactly = _remaining(setting, d, colour, 0.09 / 3)
        middle += marks
    examples = {
        (B, name): estimate(name, np.eye(DIMENSION)[0], B) for B in BATCHES for name in KINDS
    }
    noise = {key: _noise(setting, example, 0.5 / 16) for key, example in examples.items()}
    R2 = estimate("sampled", np.eye(DIMENSIONS[-1])[0]).law.R2
    what = f"what the mean of v lacks after R² = {R2:.0f} steps, d = {DIMENSIONS[-1]}"
    verdicts.append(mean(lacking).near(what, exactly))
    for key in ((16, "sampled"), (16, "rank one")):
        law, what = examples[key].law, f"E‖v-m‖²/‖m‖² at γ = 1/R², {key[1]}, B = {key[0]}"
        verdicts.append(near_mean(noise[key], what, law.fluctuation(1 / law.R2)))
    samples["noise"] = [[*key, found] for key, found in noise.items()]
    right = [
        mark
        for name, colour in zip(KINDS, (fig.BLUE, fig.GREEN, fig.PURPLE, fig.ORANGE), strict=True)
        for mark in _trade(name, colour, [noise[B, name] for B in BATCHES])
    ]
    panels = [
        _path(setting),
        fig.panel(
            *middle, title="what the mean of v\nstill lacks", log="x", xlabel="step",
            legend="lower left",
        ),
        fig.panel(
            *right, title="noise over time to\nforget, B = 1 … 64", log="xy", ylim=(0.08, 1.5),
            xlabel="steps to forget", ylabel="E‖v-m‖²/‖m‖²", legend="lower right",
        ),
    ]  # fmt: skip
    picture = fig.Picture(panels, (8.0, 3.8), layout={"width_ratios": (1, 1, 1.15)})
    return Result(verdicts, picture, samples)
