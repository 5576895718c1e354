"""The bounds on the velocity: ``E‖v‖² ≤ 4σ²/λ²``, and on its maximum over many steps.

At a fixed θ, which the theorem allows, λ and ``σ² = E‖g‖²`` are constants and exact. The paper's 4
is then not reached: with ``w = (I-γÂ)v``, ``E‖w‖² ≤ (1-γλ) E‖v‖²``, and g independent of v,
``E⟨w,g⟩ = E⟨(I-γÂ)m,g⟩ ≤ √(1-γλ) ‖m‖σ`` with ``‖m‖ ≤ σ/λ``, so that

``E‖v‖² ≤ (2√(1-γλ) + γλ) σ²/λ² ≤ 2σ²/λ²``.

A rare event comes close to that 2. The model gives it the probability p, the data never show it, so
that ``g = p`` and v grows by γp a step, until a pseudo-sample is the event and v restarts near 0:
an exponential distribution, whose second moment is twice its squared mean.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from tangograd.reproduction import figures as fig
from tangograd.reproduction.base import Result, Setting
from tangograd.reproduction.examples import Example, gaussian, linear, rare_event
from tangograd.reproduction.verdicts import frequency, near_mean, quantile

DT = 1e-4
EPSILON = 0.1
P = 0.02  # of the event, in the model
PATIENCE = 5  # how many times longer the runs of the rare event are
GRID = (0.1, 0.2, 0.4, 0.7, 1.0, 1.4, 1.75)  # γR²
LENGTHS = (100, 1_000, 10_000, 100_000)


def examples() -> list[Example]:
    """Return a rare event that the data never show, a linear regression and a Gaussian."""
    return [rare_event(P), linear(), gaussian()]


def unit(example: Example, gamma: float) -> float:
    """Return ``σ²/λ²``, λ the smallest eigenvalue of ``(1-δt) F + (δt/γ) I``."""
    return example.law.sigma2 / ((1 - DT) * example.law.smallest + DT / gamma) ** 2


def expected(example: Example, gamma: float) -> float:
    """Return the stationary ``E‖v‖²`` in units of ``σ²/λ²``; the paper's bound is 4."""
    return float(np.trace(example.law.second_moment(gamma, DT)) / unit(example, gamma))


def _average(example: Example, gamma: float, steps: int, rng: np.random.Generator) -> float:
    """Return the average of ‖v‖² over a run without its first tenth, in units of ``σ²/λ²``."""
    v = example.run(gamma, steps, rng, dt=DT, records=steps // 10).v[steps // 100 :]
    return float((v**2).sum(1).mean() / unit(example, gamma))


def _largest(example: Example, gamma: float, steps: int, rng: np.random.Generator) -> float:
    """Return the maximum of ‖v‖, over the paper's bound ``(2σ/λ) √(n/ε)``."""
    bound = 2 * math.sqrt(unit(example, gamma) * steps / EPSILON)
    return example.run(gamma, steps, rng, dt=DT).largest / bound


def measure(setting: Setting) -> Result:
    """Measure E‖v‖² over γ, and the largest ‖v‖ over the length of a run."""
    models, squares, suprema = examples(), [], []
    n, steps = (30, 5_000) if setting.quick else (60, 40_000)
    count, lengths = (60, LENGTHS[:-1]) if setting.quick else (120, LENGTHS)
    for example, patience in zip(models, (PATIENCE, 1, 1), strict=True):
        averages, largest = dict[float, list[float]](), dict[int, list[float]]()
        for u in GRID:
            run = partial(_average, example, u / example.law.R2, steps * patience)
            averages[u] = setting.sample(run, n, f"{example.title} {u}", 0.18 / len(GRID))
        for length in lengths:
            run = partial(_largest, example, 1 / example.law.R2, length)
            what, share = f"{example.title} largest {length}", length / sum(lengths)
            largest[length] = setting.sample(run, count, what, 0.15 * share)
        squares.append(averages)
        suprema.append(largest)
    verdicts = []
    # At γ = 1/R² the averages of the last two have no variance; at 0.4/R² they have.
    for i, u in ((0, 1.0), (1, 0.4), (2, 0.4), (0, 1.75)):
        what = f"E‖v‖² λ²/σ², {models[i].title}, γ = {u:g}/R²"
        exactly = expected(models[i], u / models[i].law.R2)
        verdicts.append(near_mean(squares[i][u], what, exactly))
    what = "median over runs of ‖v‖² λ²/σ², rare event, γ = 1/R²"
    verdicts.append(quantile(squares[0][1.0]).at_most(what, 4))
    for example, ratios in zip(models, suprema, strict=True):
        longest = max(ratios)
        what = f"max‖v‖ within its bound, {longest} steps, ε = {EPSILON}, {example.title}"
        verdicts.append(frequency(np.array(ratios[longest]) <= 1).at_least(what, 1 - EPSILON))

    left = [
        fig.limit(4, fig.RED),
        fig.limit(2, fig.RED, ls="--"),
        fig.text(0.03, 4.5, "the paper's bound", fig.RED),
        fig.text(0.03, 2.2, "at a fixed θ", fig.RED),
        fig.area(1, 3, fig.GREY),
        fig.text(1.04, 0.013, "γ > 1/R²", fig.GREY),
    ]
    ends, words = np.array([50, 2e5]), f"the paper's bound,\nε = {EPSILON:g}"
    right = [fig.curve(ends, 2 * np.sqrt(ends / EPSILON), fig.RED, width=1.5)]
    right.append(fig.text(60, 320, words, fig.RED))
    for i, colour in enumerate((fig.BLUE, fig.GREEN, fig.ORANGE)):
        law = models[i].law
        curve = law.largest_gamma * (1 - np.geomspace(0.01, 0.975, 60)[::-1])
        second = [expected(models[i], gamma) for gamma in curve]
        left.append(fig.exact(curve * law.R2, second, colour))
        left.append(fig.quantiles(GRID, list(squares[i].values()), colour, models[i].title))
        bounds = 2 * np.sqrt(np.array(lengths) / EPSILON)[:, None]
        right.append(fig.quantiles(lengths, np.array(list(suprema[i].values())) * bounds, colour))
    panels = [
        fig.panel(
            *left, xlim=(0, 2), ylim=(0.01, 30), log="y", xlabel="γR²",
            ylabel="E‖v‖² in units of σ²/λ²",
        ),
        fig.panel(
            *right, log="xy", xlabel="steps n", ylim=(0.1, 5e3),
            ylabel="max‖v‖ over n steps, in units of σ/λ",
        ),
    ]  # fmt: skip
    picture = fig.Picture(panels, (8.0, 4.3), legend=3)
    return Result(verdicts, picture, {"squares": squares, "suprema": suprema})
