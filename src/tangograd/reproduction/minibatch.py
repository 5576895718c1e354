"""Minibatches: the factor B in ``F̂ = B g̃g̃ᵀ``, and what becomes of TANGO without it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from tangograd.reproduction import figures as fig
from tangograd.reproduction.base import Array, Result, Setting
from tangograd.reproduction.exact import Regression
from tangograd.reproduction.models import batches
from tangograd.reproduction.verdicts import exact, mean
from tangograd.stream import Run, tango

GAMMA, DT = 0.05, 2e-4
SCALES, START = np.array([1.0, 0.5]), np.array([1.0, 1.0])  # the truth is θ* = 0
BATCHES = (1, 2, 4, 8, 16, 32)
MOVING = (1, 4, 16)
CHECKED = 16
POINTS = 100
TIME = 1.0
STEPS = round(TIME / DT)
STRIDE = 10


@dataclass(frozen=True)
class Variant:
    """TANGO on batches, with the factor B or without it, and its exact means."""

    batch: int
    factor: bool

    @property
    def name(self) -> str:
        """Name in the table."""
        return f"B = {self.batch}, {'with' if self.factor else 'without'} the factor"

    @cached_property
    def regression(self) -> Regression:
        """A regression with the same means: ``E F̂`` is F with the factor and F/B without."""
        regression = Regression.gaussian(SCALES**2)
        divisor = 1.0 if self.factor else math.sqrt(self.batch)
        return replace(regression, factor=regression.factor / divisor)

    def average(self, steps: int) -> Array:
        """Return the mean of v over every tenth step of the last half of a run from 0, θ fixed."""
        means = self.regression.law(START).means(GAMMA, steps, DT)
        return np.asarray(means[steps // 2 :: STRIDE].mean(0))

    def path(self) -> Array:
        """Return the mean of θ - θ* at the times of the picture, relative to the start."""
        moments = self.regression.path(START, gamma=GAMMA, dt=DT, steps=STEPS)
        return along(moments[:: STEPS // POINTS, 2:4, -1])

    def run(self, steps: int, rng: np.random.Generator, **options: Any) -> Run:
        """Run from v = 0."""
        scale = math.sqrt(self.batch) if self.factor else 1.0
        constants = (self.batch, scale, 1.0, 1.0, *SCALES, 0.0, 0.0)
        options |= {"steps": steps, "rng": rng, "constants": constants}
        return tango(batches, START, gamma=GAMMA, dt=DT, **options)


def along(x: Array) -> Array:
    """Return the component along the natural gradient ``F⁻¹ E g = θ - θ*``, 1 for itself."""
    return np.asarray(x @ START / (START @ START))


def _length(variant: Variant, steps: int, rng: np.random.Generator) -> float:
    """Return an average of v at a fixed θ, along the natural gradient."""
    v = variant.run(steps, rng, frozen=True, records=steps // STRIDE).v
    return float(along(v[steps // STRIDE // 2 :].mean(0)))


def _left(variant: Variant, rng: np.random.Generator) -> Array:
    """Return what is left of θ - θ*, along the start, over time."""
    return along(variant.run(STEPS, rng, records=POINTS).theta)


def _difference(setting: Setting) -> float:
    """Return the difference in v of √B in g̃ from the equation for minibatches, same samples."""
    ends = [
        variant.run(1000, setting.generators(1, "same")[0], batch=B, rank_one=True, records=1000).v
        for variant, B in ((Variant(CHECKED, True), 1), (Variant(1, True), CHECKED))
    ]
    return float(np.abs(ends[1] - ends[0]).max())


def measure(setting: Setting) -> Result:
    """Measure the velocity over B at a fixed θ, and trajectories, with and without the factor."""
    variants, paths, lengths = [Variant(B, f) for B in BATCHES for f in (True, False)], {}, {}
    n, steps, work = 20 if setting.quick else 40, 8_000 if setting.quick else 20_000, sum(BATCHES)
    for v in variants:
        few = n if v.batch == CHECKED else n // 4  # for the picture alone
        run, share = partial(_length, v, steps), v.batch / work
        lengths[v] = setting.sample(run, few, f"frozen {v.name}", 0.3 * share)
        if v.batch in MOVING:
            share = v.batch / sum(MOVING)
            paths[v] = setting.sample(partial(_left, v), n, f"moving {v.name}", 0.19 * share)
    checked, verdicts = [v for v in variants if v.batch == CHECKED], []
    for v in checked:
        what = f"length of the mean of v, natural gradient = 1, {v.name}"
        verdicts.append(mean(lengths[v]).near(what, float(along(v.average(steps)))))
    for v in checked:
        # Without the factor θ is there ten times sooner: an earlier time tells more.
        k = POINTS if v.factor else POINTS // 10
        what = f"θ-θ* left at t = {TIME * k / POINTS:g}, {v.name}"
        verdicts.append(mean([path[k] for path in paths[v]]).near(what, float(v.path()[k])))
    what = "√B in g̃ against the paper's equation for minibatches, difference in v"
    verdicts.append(exact(what, _difference(setting), 1e-12))
    setting.advance(0.01)

    B, t, fine = list(BATCHES), np.linspace(0, TIME, POINTS + 1), np.linspace(0, TIME, 50)
    left = [fig.curve(B, B, fig.GREY, "length B", width=1.2, style=":")]
    right = [
        fig.text(0.5, 0.68, "B = 1, 4, 16", fig.GREEN),
        fig.text(0.24, 0.44, "B = 4", fig.ORANGE),
        fig.text(0.33, -0.11, "B = 16", fig.ORANGE),
    ]
    for factor, colour, marker in ((True, fig.GREEN, "o"), (False, fig.ORANGE, "s")):
        kind = [v for v in variants if v.factor is factor]
        means, label = [np.mean(lengths[v]) for v in kind], "with" if factor else "without"
        left += [
            fig.exact(B, [along(v.average(steps)) for v in kind], colour),
            fig.points(B, means, colour, f"{label} the factor B", marker=marker),
        ]
        for v in kind:
            if v in paths and (factor or v.batch > 1):  # without the factor, B = 1 is the same
                right.append(fig.exact(t, v.path(), colour))
                right.append(fig.curve(t, paths[v][0], colour, width=1.2))
    right.append(fig.curve(fine, np.exp(-fine), fig.BLACK, "natural gradient, $e^{-t}$", 1, ":"))
    ticks: dict[str, Any] = {"xticks": B, "xticklabels": B, "yticks": B, "yticklabels": B}
    title = "fixed θ: length of the mean of v,\nnatural gradient = 1"
    panels = [
        fig.panel(*left, log="xy", xlabel="batch size B", title=title, **ticks),
        fig.panel(*right, xlabel="time t = k δt", title="θ moves: what is left of θ - θ*"),
    ]
    samples = {"lengths": {v.name: found for v, found in lengths.items()}}
    return Result(verdicts, fig.Picture(panels, (8.0, 4.2), legend=3), samples)
