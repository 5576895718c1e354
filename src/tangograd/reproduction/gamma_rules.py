"""Rules for γ: what each picks on three models, and where the second moment of v is finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike
from scipy.stats import chi2

from tangograd.reproduction.base import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    Claim,
    Result,
    Setting,
    legend_below,
)
from tangograd.reproduction.moments import (
    Array,
    Law,
    finite,
    gaussian_law,
    linear_law,
    logistic_law,
)
from tangograd.reproduction.verdicts import Verdict, frequency, near_mean, number, quantile
from tangograd.stream import tango
from tangograd.stream.models import gaussian, linear, logistic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCALES = (1.0, 0.5)
#: γR² in the picture.
GRID = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0)
SEEN = 10_000  # pseudo-gradients, for the running maximum
GAUSSIAN, KURTOSIS, FOURTH = (
    "Gaussian, 1/(3E‖g̃‖²)",
    "kurtosis, 1/(κE‖g̃‖²)",
    "fourth moment, λ/E‖g̃‖⁴",
)


@njit(cache=True)
def chosen(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """The model ``constants[0]``; one function, because compiling for each model takes time."""
    if constants[0] == 0:
        gaussian(theta, rng, constants[1:], g, g_tilde)
    elif constants[0] == 1:
        linear(theta, rng, constants[1:], g, g_tilde)
    else:
        logistic(theta, rng, constants[1:], g, g_tilde)


@dataclass(frozen=True)
class Example:
    """A model at a fixed θ.

    Attributes:
        title: of the panel.
        law: of its gradients.
        theta: θ.
        constants: for :func:`chosen`.
        pseudo_gradients: draws so many g̃.
    """

    title: str
    law: Law
    theta: tuple[float, float]
    constants: tuple[float, ...]
    pseudo_gradients: Callable[[np.random.Generator, int], Array]

    def run(
        self, gamma: float, steps: int, rng: np.random.Generator, v: ArrayLike, records: int = 1
    ) -> Array:
        """The velocity of TANGO at a fixed θ and δt = 0, started at v."""
        return finite(
            tango(
                chosen,
                self.theta,
                gamma=gamma,
                dt=0.0,
                steps=steps,
                rng=rng,
                constants=self.constants,
                v=v,
                frozen=True,
                records=records,
            ).v
        )


def _scores(rng: np.random.Generator, n: int) -> Array:
    z = rng.standard_normal(n)
    return np.stack([-z, 1 - z**2], axis=1)


def _features(rng: np.random.Generator, n: int) -> Array:
    return np.asarray(rng.standard_normal((n, 2)) * SCALES)


def examples() -> list[Example]:
    """A Gaussian at σ = 1; a linear regression; a logistic one at θ = 0, where g̃ is Gaussian."""
    offset = (1.0, 1.0)
    return [
        Example("Gaussian (μ, ln σ)", gaussian_law(1.0), (0.0, 0.0), (0.0, 1.0, 1.0), _scores),
        Example(
            "linear regression",
            linear_law(SCALES, offset),
            offset,
            (1.0, 1.0, 1.0, *SCALES, 0.0, 0.0),
            lambda rng, n: rng.standard_normal((n, 1)) * _features(rng, n),
        ),
        Example(
            "logistic regression",
            logistic_law(SCALES, offset),
            (0.0, 0.0),
            (2.0, *SCALES, *offset),
            lambda rng, n: _features(rng, n) / 2,
        ),
    ]


def rules(law: Law) -> dict[str, float]:
    """The γ of each rule, from exact expectations."""
    return {
        GAUSSIAN: 1 / (3 * law.squared_norm),
        "necessary, E‖g̃‖²/E‖g̃‖⁴": law.squared_norm / law.fourth_power,
        "theorem, 1/R²": 1 / law.R2,
        KURTOSIS: 1 / (law.kurtosis * law.squared_norm),
        FOURTH: law.smallest / law.fourth_power,
    }


def fluctuation(law: Law, gamma: float) -> float:
    """``E‖v-m‖²/‖m‖²``, m the natural gradient: exact, from the linear recursion of E vvᵀ."""
    m = law.limit(gamma)
    return float(np.trace(law.second_moment(gamma)) / (m @ m) - 1)


def median_of_running_max(n: int) -> float:
    """The median of ``1/max‖g̃‖²`` over n pseudo-gradients of the Gaussian at σ = 1.

    ``‖g̃‖² = z⁴ - z² + 1``, which exceeds a ``t ≥ 1`` where ``z² > ½ + √(t-¾)``. The largest of n is
    below t with probability ``P(z² ≤ ½ + √(t-¾))ⁿ``, and ½ gives the median.
    """
    z2 = chi2.isf(-np.expm1(-np.log(2) / n), 1)
    return float(1 / (z2**2 - z2 + 1))


def _squares(example: Example, gamma: float, steps: int, rng: np.random.Generator) -> Array:
    """``‖v-m‖²/‖m‖²`` along a run at a fixed θ, started at m and after a tenth of the run."""
    m = example.law.limit(gamma)
    records = min(steps, 10_000)
    v = example.run(gamma, steps, rng, m, records)[records // 10 :]
    return np.asarray(((v - m) ** 2).sum(1) / (m @ m))


def _average(
    example: Example, gamma: float, steps: int, rng: np.random.Generator
) -> tuple[float, float]:
    squares = _squares(example, gamma, steps, rng)
    return float(squares.mean()), float(np.median(squares))


def _meet(example: Example, gamma: float, steps: int, rng: np.random.Generator) -> bool:
    """Whether two velocities that see the same samples are in the end equal up to 10⁻⁶.

    Their difference is a product of matrices ``I - γ g̃g̃ᵀ``, the noise in g is gone.
    """
    state, ends = rng.bit_generator.state, []
    for start in ([0.0, 0.0], [1.0, 1.0]):
        rng.bit_generator.state = state
        ends.append(example.run(gamma, steps, rng, start)[-1])
    return bool(np.linalg.norm(ends[1] - ends[0]) < 1e-6)


def _running_max(example: Example, rng: np.random.Generator) -> float:
    """What the paper's safe rule ``1/max‖g̃‖²`` has come to after :data:`SEEN` samples."""
    return float(1 / (example.pseudo_gradients(rng, SEEN) ** 2).sum(1).max())


def _curve(example: Example) -> dict[str, list[float]]:
    """Exact fluctuations up to where they are infinite."""
    end = example.law.largest_gamma
    gammas = np.append(
        np.geomspace(0.03 / example.law.R2, 0.9 * end, 60),
        end * (1 - 0.1 ** np.linspace(1.05, 3, 20)),
    )
    return {
        "gammas": gammas.tolist(),
        "fluctuations": [fluctuation(example.law, gamma) for gamma in gammas],
    }


def _panel(setting: Setting, example: Example, share: float) -> dict[str, Any]:
    """One model: curve, measured points, rules."""
    n, steps = (8, 5_000) if setting.quick else (16, 100_000)
    points = []
    for u in GRID:
        gamma = u / example.law.R2
        streams = setting.generators(n, f"{example.title} {u}")
        runs = setting.several(
            partial(_average, example, gamma, steps), streams, 0.9 * share / len(GRID)
        )
        averages, medians = zip(*runs, strict=True)
        low, middle, high = np.quantile(averages, [0.1, 0.5, 0.9])
        points.append(
            {
                "gamma": gamma,
                "low": float(low),
                "average": float(middle),
                "high": float(high),
                "typical": float(np.median(medians)),
            }
        )
    maxima = setting.several(
        partial(_running_max, example),
        setting.generators(100 if setting.quick else 400, f"{example.title} maximum"),
        0.1 * share,
    )
    return {
        "title": example.title,
        "rules": rules(example.law),
        "R2": example.law.R2,
        "largest_gamma": example.law.largest_gamma,
        "curve": _curve(example),
        "points": points,
        "maxima": maxima,
    }


def _exact_moments(
    setting: Setting, example: Example, rule: str, share: float
) -> tuple[list[float], Verdict]:
    """At a rule's γ the measured fluctuation is the exact one.

    At these γ moments of v of order 5 are finite, so that averages of ‖v-m‖² have a variance.
    """
    n, steps = (30, 30_000) if setting.quick else (60, 150_000)
    gamma = rules(example.law)[rule]
    streams = setting.generators(n, f"{example.title} {rule}")
    runs = setting.several(partial(_average, example, gamma, steps), streams, share)
    samples = [average for average, _ in runs]
    what = f"E‖v-m‖²/‖m‖², {example.title}, γ = {gamma:.3g} ({rule.split(',')[0]} rule)"
    return samples, near_mean(samples, what, fluctuation(example.law, gamma))


def measure(setting: Setting) -> Result:
    """Second moments over γ, and verdicts on what the rules pick."""
    models = examples()
    normal = models[0]
    panels = [_panel(setting, example, 0.15) for example in models]
    data: dict[str, Any] = {"panels": panels, "seen": SEEN}
    verdicts = []
    for example, rule in zip(models, (FOURTH, FOURTH, GAUSSIAN), strict=True):
        data[example.title], verdict = _exact_moments(setting, example, rule, 0.12)
        verdicts.append(verdict)

    # Where E‖v‖² is infinite, ‖v‖² has a tail index below 1, and its averages grow with the length.
    gamma = rules(normal.law)[GAUSSIAN]
    n, steps = (40, 1_000) if setting.quick else (100, 3_000)
    short, long = (
        setting.several(
            partial(_average, normal, gamma, length),
            setting.generators(n, f"growth {length}"),
            share,
        )
        for length, share in ((steps, 0.01), (100 * steps, 0.16))
    )
    data["growth"] = [b[0] / a[0] for a, b in zip(short, long, strict=True)]
    data["met"] = setting.several(
        partial(_meet, normal, gamma, 1_000), setting.generators(4 * n, "meet"), 0.02
    )
    safe = max(
        panel["rules"][rule] * panel["R2"] for panel in panels for rule in (KURTOSIS, FOURTH)
    )
    verdicts += [
        quantile(data["growth"]).at_least(
            f"Gaussian at the Gaussian rule's γ = {gamma:.3g}: growth of the average of ‖v-m‖² "
            "over a hundred times longer runs (1 if its mean were finite)",
            2.0,
        ),
        frequency(data["met"]).at_least(
            "Gaussian rule: two velocities on the same samples meet", 0.99
        ),
        quantile(panels[0]["maxima"]).near(
            f"Gaussian model, median of 1/max‖g̃‖² after {SEEN} samples", median_of_running_max(SEEN)
        ),
        number(safe).at_most(
            "largest γR² of the kurtosis and fourth moment rules, three models", 1.0
        ),
    ]
    return Result(verdicts, data)


def _strip(ax: Axes, panel: dict[str, Any], names: list[str]) -> None:
    """A row for each rule, at the γ it picks."""
    for row, name in enumerate(names):
        ax.axhline(row, color=GREY, lw=0.4, alpha=0.5, zorder=0)
        gamma = panel["rules"][name]
        bad = gamma >= panel["largest_gamma"]
        ax.plot(gamma, row, "X" if bad else "o", color=RED if bad else BLUE, ms=8)
    low, middle, high = np.quantile(panel["maxima"], [0.05, 0.5, 0.95])
    row = len(names)
    ax.axhline(row, color=GREY, lw=0.4, alpha=0.5, zorder=0)
    ax.errorbar(middle, row, xerr=[[middle - low], [high - middle]], fmt="o", color=BLUE, ms=8)
    ax.set(xscale="log", xlabel="γ", ylim=(row + 0.6, -0.6))


def draw(data: dict[str, Any], figure: Figure) -> None:
    """Fluctuations over γ, a panel a model; below, what the rules pick."""
    panels = data["panels"]
    axes = figure.subplots(2, len(panels), sharex="col", sharey="row", height_ratios=(1.6, 1))
    names = list(panels[0]["rules"])
    for (top, bottom), panel in zip(axes.T, panels, strict=True):
        end, points = panel["largest_gamma"], panel["points"]
        gammas = [point["gamma"] for point in points]
        average = np.array([point["average"] for point in points])
        errors = [
            average - [point["low"] for point in points],
            [point["high"] for point in points] - average,
        ]
        curve = panel["curve"]
        top.plot(
            curve["gammas"],
            curve["fluctuations"],
            color=GREY,
            lw=4,
            alpha=0.5,
            label="E‖v-m‖²/‖m‖², exact",
        )
        top.errorbar(
            gammas, average, errors, fmt="o", color=GREEN, ms=4, label="average over a long run"
        )
        top.plot(
            gammas,
            [point["typical"] for point in points],
            "_",
            color=ORANGE,
            ms=9,
            mew=2,
            label="median of ‖v-m‖²/‖m‖²",
        )
        _strip(bottom, panel, names)
        for ax in (top, bottom):
            ax.axvspan(end, 1e9, color=RED, alpha=0.12, lw=0, label="E‖v-m‖² = ∞")
            ax.set_xlim(0.03 / panel["R2"], 12 / panel["R2"])
        top.set(title=panel["title"], yscale="log", ylim=(5e-3, 1e3))
    axes[0, 0].set_ylabel("‖v-m‖²/‖m‖²")
    axes[1, 0].set_yticks(range(len(names) + 1), [*names, f"1/max‖g̃‖² of {data['seen']}"])
    legend_below(figure, axes[0, 0], ncols=2)


CLAIM = Claim(
    name="gamma-rules",
    title="γ has a limit, and rules keep to it where they apply",
    where="Definition 1 and the remarks on Theorem 5",
    sentences=(
        "The velocity v is stable only for a small enough γ: the paper's theorem asks for "
        "γ ≤ 1/R², where E[‖g̃‖² g̃g̃ᵀ] ≼ R²F, and names rules that are to ensure it: one over the "
        "largest ‖g̃‖² seen, 1/(3E‖g̃‖²) for Gaussian gradients, 1/(κE‖g̃‖²) for gradients of "
        "kurtosis κ, λ/E‖g̃‖⁴; for γ ≤ 1/R², γ ≤ E‖g̃‖²/E‖g̃‖⁴ is necessary.\n\n"
        "At a fixed θ the second moment of v obeys a linear recursion, so where it is finite is "
        "known exactly, and so is how far v strays from its mean m, the natural gradient. The "
        "rules are safe where their conditions hold: the gradients of a logistic regression "
        "on Gaussian features are Gaussian at θ = 0. They are not those of a Gaussian in "
        "(μ, ln σ), κ = 15, nor of a linear regression on Gaussian features, κ = 9 (a product of "
        "two Gaussians): there the Gaussian rule picks a γ at which E‖v‖² is infinite. That is "
        "easily overlooked: typical velocities stay calm, and the mean is carried by rare "
        "excursions. The running maximum is safe and becomes ever smaller."
    ),
    measure=measure,
    draw=draw,
    size=(8.0, 5.6),
)
