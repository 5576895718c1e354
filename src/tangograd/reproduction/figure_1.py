"""Figure 1: from N(0, 1) to N(10, 1), by SGD, averaged SGD, TANGO and the natural gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tangograd.reproduction import figures as fig
from tangograd.reproduction import gaussian
from tangograd.reproduction.base import Array, Result, Setting
from tangograd.reproduction.verdicts import frequency, quantile
from tangograd.stream import Run, averaged_sgd, tango

GAMMA, SGD_RATE, SGD_STEPS = 1e-2, 1e-3, 100_000
RATES = (1e-4, 1e-5)
TIME = 10.0  # the natural gradient is then within 10 e⁻¹⁰ of the optimum
POINTS = 1000
PEAKS = (22.7, 36.4)  # where 95% of the runs at δt=1e-4 have the largest σ²


def _run(method: Callable[..., Run], gamma: float, dt: float, time: float, rng: Any) -> Array:
    """Return the path of a run in (μ, σ)."""
    options: dict[str, Any] = {"steps": round(time / dt), "records": POINTS}
    return gaussian.half_plane(gaussian.run(method, rng, gamma=gamma, dt=dt, **options).theta)


def noise_free_peaks() -> tuple[float, float]:
    """Return the largest σ² on the paths of SGD and of averaged SGD, with the mean gradient."""
    sgd = gaussian.gradient_flow(SGD_RATE * SGD_STEPS)
    averaged = gaussian.gradient_flow(TIME, rate=GAMMA / RATES[0])
    return float(np.exp(2 * sgd[:, 2].max())), float(np.exp(2 * averaged[:, 4].max()))


def measure(setting: Setting) -> Result:
    """Measure deviations from the circle and peaks of σ² over many runs."""
    n = 30 if setting.quick else 200
    cases = (
        ("tango 0.0001", 0.1, partial(_run, tango, GAMMA, RATES[0], TIME)),
        ("tango 1e-05", 0.8, partial(_run, tango, GAMMA, RATES[1], TIME)),
        ("averaged", 0.05, partial(_run, averaged_sgd, GAMMA, RATES[0], TIME)),
        ("sgd", 0.05, partial(_run, tango, SGD_RATE, 1.0, SGD_STEPS)),
    )
    runs = {what: setting.sample(run, n, what, share) for what, share, run in cases}
    peaks = {what: [float((p[:, 1] ** 2).max()) for p in paths] for what, paths in runs.items()}
    coarse, fine, averaged, sgd = peaks.values()
    far, near = ([gaussian.deviation(p) for p in paths] for paths in list(runs.values())[:2])
    low, high = PEAKS
    sgd_peak, averaged_peak = noise_free_peaks()
    verdicts = [
        # an independent simulation of many runs had 95% of them there, to about a hundredth
        frequency([low <= peak <= high for peak in coarse]).near(
            f"runs with a peak σ² in {low} … {high} (a separate simulation), δt=1e-4", 0.95, 0.03
        ),
        # at δt=1e-5 the median is above the circle's by less than the sd of the peaks, 0.5
        quantile(fine).near("median peak σ² of TANGO, δt=1e-5", 26, within=0.5),
        quantile(near).at_most("median deviation from the circle, δt=1e-5", 0.1),
        quantile(np.divide(far, near)).at_least("median ratio of deviations, δt=1e-4 to 1e-5", 2.0),
        # the bias of averaged SGD is 1.5 γ of the variance
        quantile(averaged).near(
            "median peak σ² of averaged SGD", averaged_peak, within=1.5 * GAMMA * averaged_peak
        ),
        # noise makes the largest of many σ² larger, by the order of the fluctuations √γ/10
        quantile(sgd).near("median peak σ² of SGD", sgd_peak, within=0.01 * sgd_peak),
    ]
    panels = [
        gaussian.half_plane_panel(
            fig.path(paths[0], fig.GREEN, "TANGO"),
            fig.path(runs["averaged"][0], fig.ORANGE, "averaged SGD"),
            fig.path(runs["sgd"][0], fig.BLUE, "SGD"),
            title=f"TANGO at δt = {dt:g}", aspect="equal", xlim=(-0.6, 10.6), ylim=(0, 10.6),
        )
        for dt, paths in zip(RATES, runs.values(), strict=False)
    ]  # fmt: skip
    samples = {"peaks": peaks, "deviations": {"tango 0.0001": far, "tango 1e-05": near}}
    return Result(verdicts, fig.Picture(panels, (8.0, 3.9), legend=4), samples)
