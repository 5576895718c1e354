"""From SGD, at δt = 1, to the natural gradient, as δt → 0: one family of algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from tangograd.reproduction import figures as fig
from tangograd.reproduction import gaussian
from tangograd.reproduction.base import Array, Result, Setting
from tangograd.reproduction.gaussian import half_plane
from tangograd.reproduction.verdicts import exact, quantile
from tangograd.stream import averaged_sgd, tango

GAMMA = 1e-2
RATES = (1.0, 0.3, 0.1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
DRAWN = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5)
FALLING = (1e-2, 1e-3, 1e-4, 1e-5)
EVERY = 20  # steps from one recorded θ to the next; overshoots take hundreds
NEAR_SGD = (0.99, 0.999)
STEPS, AWAY = 20_000, 100  # for comparisons with SGD: number of steps, and those of the first jumps
COLOURS = (fig.BLUE, fig.SKY, fig.PURPLE, fig.RED, fig.ORANGE, fig.GREEN)


def steps(dt: float) -> int:
    """Return enough steps for both ends: SGD needs 10⁵ steps, the flow a time of 5."""
    return round(max(1e5, 5 / dt) / 1000) * 1000


def _tango(dt: float, rng: np.random.Generator) -> Array:
    n = steps(dt)
    return gaussian.run(tango, rng, gamma=GAMMA, dt=dt, steps=n, records=n // EVERY).theta


def against_sgd(rngs: Sequence[np.random.Generator]) -> tuple[float, list[float]]:
    """Return the largest difference of TANGO at δt = 1 from plain SGD at the rate γ.

    Also return those at the δt of :data:`NEAR_SGD`, after the first :data:`AWAY` steps.
    """
    run = partial(gaussian.run, gamma=GAMMA, steps=STEPS, records=STEPS)
    # the fast parameters of averaged SGD, which are recorded as v, are those of SGD
    sgd = run(averaged_sgd, rngs[0], dt=1.0).v
    differences = [
        np.abs(run(tango, rng, dt=dt).theta - sgd)
        for dt, rng in zip((1.0, *NEAR_SGD), rngs[1:], strict=True)
    ]
    return float(differences[0].max()), [float(d[AWAY:].max()) for d in differences[1:]]


def measure(setting: Setting) -> Result:
    """Measure peaks of σ and deviations from the natural gradient for each δt, and SGD."""
    n, pairs, rates = (24, 24, DRAWN) if setting.quick else (100, 60, RATES)
    alike = [setting.generators(pairs, "sgd") for _ in range(4)]
    compared = setting.map(against_sgd, zip(*alike, strict=True), 0.1)
    total = sum(steps(dt) for dt in rates)
    peaks, deviations, paths = {}, {}, list[fig.Mark]()
    for dt in rates:
        runs = setting.sample(partial(_tango, dt), n, f"{dt}", 0.85 * steps(dt) / total)
        peaks[dt] = [float(np.exp(theta[:, 1].max())) for theta in runs]
        deviations[dt] = [gaussian.deviation(half_plane(theta)) for theta in runs]
        if dt in DRAWN:
            name = f"δt = {dt:g}" + (" (SGD)" if dt == 1 else "")
            middle = runs[int(np.argsort(peaks[dt])[n // 2])]
            paths.append(fig.path(half_plane(middle), COLOURS[len(paths)], name))
    what = f"largest difference of δt = 1 from SGD, {STEPS} steps"
    verdicts = [exact(what, max(difference for difference, _ in compared), 1e-12)]
    what = f"median ratio of the distances from SGD, δt = {NEAR_SGD[0]} to {NEAR_SGD[1]}"
    ratio = (1 - NEAR_SGD[0]) / (1 - NEAR_SGD[1])
    # θ is a smooth function of δt: linear in 1-δt up to a relative error of its order
    verdicts.append(quantile([a / b for _, (a, b) in compared]).near(what, ratio, within=0.1))
    for coarse, fine in pairwise(FALLING):
        ratios = np.divide(deviations[coarse], deviations[fine])
        what = f"median ratio of the deviations from the circle, δt = {coarse:g} to {fine:g}"
        verdicts.append(quantile(ratios).at_least(what, 2.0))
    title = "Paths of TANGO"
    left = gaussian.half_plane_panel(*paths, log="y", ylim=(0.6, 60), title=title)
    words, every = "TANGO: median and 90% of runs", list(peaks.values())
    right = fig.panel(
        fig.quantiles(rates, every, fig.GREEN, words, 0.05),
        fig.limit(26**0.5, fig.GREY, lw=6, alpha=0.45),
        fig.curve([GAMMA, GAMMA], [0.1, 100], fig.GREY, width=1.2, style=":"),
        fig.text(GAMMA / 1.2, 0.75, "δt = γ", fig.GREY), log="xy", xlabel="δt", ylabel="σ",
        xlim=(2, 5e-6), ylim=(0.6, 60), title="Largest σ of a run",
    )  # fmt: skip
    setting.advance(0.05)
    samples = {"peaks": peaks, "deviations": deviations, "compared": compared}
    return Result(verdicts, fig.Picture([left, right], (8.0, 5.0), legend=3), samples)
