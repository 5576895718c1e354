"""Rules for γ: what each picks on three models, and where the second moment of v is finite."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.stats import chi2

from tangograd.reproduction import figures as fig
from tangograd.reproduction.base import Result, Setting
from tangograd.reproduction.exact import Law
from tangograd.reproduction.examples import Example, gaussian, linear, logistic
from tangograd.reproduction.verdicts import frequency, near_mean, number, quantile

#: γR² in the picture.
GRID = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0)
SEEN = 10_000  # pseudo-gradients, for the running maximum
GAUSSIAN, KURTOSIS, FOURTH = (
    "Gaussian, 1/(3E‖g̃‖²)",
    "kurtosis, 1/(κE‖g̃‖²)",
    "fourth moment, λ/E‖g̃‖⁴",
)
RUNNING = f"1/max‖g̃‖² of {SEEN}"


def examples() -> list[Example]:
    """Return a Gaussian, a linear and a logistic regression; the last has Gaussian g̃."""
    return [gaussian(), linear(), logistic()]


def rules(law: Law) -> dict[str, float]:
    """Return the γ of each rule, from exact expectations."""
    second, fourth = law.power(2), law.power(4)
    return {
        GAUSSIAN: 1 / (3 * second),
        "necessary, E‖g̃‖²/E‖g̃‖⁴": second / fourth,
        "theorem, 1/R²": 1 / law.R2,
        KURTOSIS: 1 / (law.kurtosis * second),
        FOURTH: law.smallest / fourth,
    }


def running_max(rng: np.random.Generator, n: int = SEEN) -> float:
    """Return ``1/max‖g̃‖²`` over n pseudo-gradients ``(-z, 1-z²)`` of the Gaussian at σ = 1."""
    z2 = rng.standard_normal(n) ** 2
    return float(1 / (z2 + (1 - z2) ** 2).max())


def median_of_running_max(n: int = SEEN) -> float:
    """Return the median of :func:`running_max`.

    ``‖g̃‖² = z⁴ - z² + 1``, which exceeds a ``t ≥ 1`` where ``z² > ½ + √(t-¾)``. The largest of n is
    below t with probability ``P(z² ≤ ½ + √(t-¾))ⁿ``, and ½ gives the median.
    """
    z2 = chi2.isf(-np.expm1(-np.log(2) / n), 1)
    return float(1 / (z2**2 - z2 + 1))


def _average(example: Example, gamma: float, steps: int, rng: Any) -> tuple[float, float]:
    """Return mean and median of ``‖v-m‖²/‖m‖²`` along a run from m, without its first tenth."""
    m, records = example.law.limit(gamma), min(steps, 10_000)
    v = example.run(gamma, steps, rng, v=m, records=records).v[records // 10 :]
    squares = ((v - m) ** 2).sum(1) / (m @ m)
    return float(squares.mean()), float(np.median(squares))


def _meet(example: Example, gamma: float, steps: int, rng: np.random.Generator) -> bool:
    """Return whether two velocities that see the same samples are in the end equal up to 10⁻⁶.

    Their difference is a product of matrices ``I - γ g̃g̃ᵀ``, without the noise of g.
    """
    state, ends = rng.bit_generator.state, []
    for start in ([0.0, 0.0], [1.0, 1.0]):
        rng.bit_generator.state = state
        ends.append(example.run(gamma, steps, rng, v=start).v[-1])
    return bool(np.linalg.norm(ends[1] - ends[0]) < 1e-6)


def _panels(setting: Setting, example: Example, picked: dict[str, float]) -> list[fig.Panel]:
    """Measure one model's fluctuations over γ; draw them, and the γ that rules pick."""
    n, steps = (8, 5_000) if setting.quick else (16, 100_000)
    law, R2, end, runs = example.law, example.law.R2, example.law.largest_gamma, []
    for u in GRID:
        run, what = partial(_average, example, u / R2, steps), f"{example.title} {u}"
        runs.append(setting.sample(run, n, what, 0.14 / len(GRID)))
    averages, medians = np.array(runs).transpose(2, 0, 1)
    below = end * (1 - 0.1 ** np.linspace(1.05, 3, 20))  # the curve ends where it is infinite
    gammas, tried = np.append(np.geomspace(0.03 / R2, 0.9 * end, 60), below), np.array(GRID) / R2
    exact, middle = [law.fluctuation(gamma) for gamma in gammas], np.median(medians, 1)
    infinite, xlim = fig.area(end, 1e9, fig.RED, "E‖v-m‖² = ∞"), (0.03 / R2, 12 / R2)
    top = fig.panel(
        fig.curve(gammas, exact, fig.GREY, "E‖v-m‖²/‖m‖², exact", 4, alpha=0.5),
        fig.quantiles(tried, averages, fig.GREEN, "average over a long run"),
        fig.points(tried, middle, fig.ORANGE, "median of ‖v-m‖²/‖m‖²", marker="_", size=9),
        infinite, title=example.title, log="xy", xlim=xlim, ylim=(5e-3, 1e3),
    )  # fmt: skip
    marks = [infinite]
    for i, gamma in enumerate(picked.values()):
        colour, marker = (fig.RED, "X") if gamma >= end else (fig.BLUE, "o")
        marks.append(fig.points(gamma, i, colour, marker=marker, size=8))
    labels = [*rules(law), RUNNING]
    options: dict[str, Any] = {"yticks": range(len(labels)), "yticklabels": labels}
    return [top, fig.panel(*marks, log="x", xlabel="γ", ylim=(5.6, -0.6), xlim=xlim, **options)]


def measure(setting: Setting) -> Result:
    """Measure second moments over γ, and test what the rules pick."""
    models = examples()
    maxima = setting.sample(
        running_max, 100 if setting.quick else 400, f"{models[0].title} maximum", 0.03
    )
    picked = [rules(model.law) for model in models]
    picked[0][RUNNING] = float(np.median(maxima))
    panels = [_panels(setting, *each) for each in zip(models, picked, strict=True)]
    samples: dict[str, Any] = {"maxima": maxima}
    verdicts = []
    # At these γ moments of v of order 5 are finite, so that averages of ‖v-m‖² have a variance.
    for example, rule in zip(models, (FOURTH, FOURTH, GAUSSIAN), strict=True):
        n, steps = (30, 30_000) if setting.quick else (60, 150_000)
        gamma, word = rules(example.law)[rule], rule.split(",")[0]
        run, what = partial(_average, example, gamma, steps), f"{example.title} {rule}"
        samples[example.title] = [a for a, _ in setting.sample(run, n, what, 0.12)]
        what = f"E‖v-m‖²/‖m‖², {example.title}, γ = {gamma:.3g} ({word} rule)"
        expected = example.law.fluctuation(gamma)
        verdicts.append(near_mean(samples[example.title], what, expected))

    # Where E‖v‖² is infinite, ‖v‖² has a tail index below 1, and its averages grow with the length.
    gamma = rules(models[0].law)[GAUSSIAN]
    n, steps = (40, 1_000) if setting.quick else (100, 3_000)
    short, long = (
        setting.sample(partial(_average, models[0], gamma, length), n, f"growth {length}", share)
        for length, share in ((steps, 0.01), (100 * steps, 0.16))
    )
    samples["growth"] = [b[0] / a[0] for a, b in zip(short, long, strict=True)]
    samples["met"] = setting.sample(partial(_meet, models[0], gamma, 1_000), 4 * n, "meet", 0.02)
    safe = [
        max(gammas[KURTOSIS], gammas[FOURTH]) * model.law.R2
        for model, gammas in zip(models, picked, strict=True)
    ]
    verdicts += [
        quantile(samples["growth"]).at_least(
            f"Gaussian at the Gaussian rule's γ = {gamma:.3g}: growth of the average of ‖v-m‖² "
            "over a hundred times longer runs (1 if its mean were finite)",
            2.0,
        ),
        frequency(samples["met"]).at_least(
            "Gaussian rule: two velocities on the same samples meet", 0.99
        ),
        quantile(maxima).near(
            f"Gaussian model, median of 1/max‖g̃‖² after {SEEN} samples", median_of_running_max()
        ),
        number(max(safe)).at_most(
            "largest γR² of the kurtosis and fourth moment rules, three models", 1.0
        ),
    ]
    layout = {"height_ratios": (1.6, 1.0), "sharey": "row"}
    shown = [panel for row in zip(*panels, strict=True) for panel in row]
    picture = fig.Picture(shown, (8.0, 5.6), legend=2, rows=2, layout=layout)
    return Result(verdicts, picture, samples)
