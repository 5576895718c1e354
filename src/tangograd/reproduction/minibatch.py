"""Minibatches: the factor B in ``F̂ = B g̃g̃ᵀ``, and what becomes of TANGO without it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tangograd.reproduction.base import GREEN, GREY, ORANGE, Claim, Result, Setting, legend_below
from tangograd.reproduction.verdicts import exact, mean
from tangograd.stream import Run, tango
from tangograd.stream.models import linear

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

GAMMA, DT = 0.05, 2e-4
SCALES, TRUTH, START = np.array([1.0, 0.5]), np.array([0.0, 0.0]), np.array([1.0, 1.0])
BATCHES = (1, 2, 4, 8, 16, 32)
MOVING = (1, 4, 16)
CHECKED = 16
POINTS = 100
TIME = 1.0
STEPS = round(TIME / DT)
STRIDE = 10


@njit(cache=True)
def batches(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """:func:`~tangograd.stream.models.linear`, a batch in one sample.

    g is the mean of ``B = constants[0]`` gradients, g̃ that of as many pseudo-gradients times
    ``constants[1]``: √B there makes ``g̃g̃ᵀ`` B times the outer product of the mean.
    """
    d, batch = len(theta), int(constants[0])
    one, one_tilde = np.empty(d), np.empty(d)
    g[:], g_tilde[:] = 0.0, 0.0
    for _ in range(batch):
        linear(theta, rng, constants[2:], one, one_tilde)
        for i in range(d):
            g[i] += one[i] / batch
            g_tilde[i] += constants[1] * one_tilde[i] / batch


@dataclass(frozen=True)
class Variant:
    """TANGO on batches, with the factor B or without it.

    All means below are exact. F is ``diag(scales²)``, and what v sees for it, ``E F̂``, is F with
    the factor and F/B without.
    """

    batch: int
    factor: bool

    @property
    def curvature(self) -> Array:
        """The diagonal of ``E F̂``."""
        return SCALES**2 / (1 if self.factor else self.batch)

    def limit(self) -> Array:
        """The mean of v at θ = START, ``((1-δt) E F̂ + δt/γ)⁻¹ E g``."""
        g = SCALES**2 * (START - TRUTH)
        return np.asarray(g / ((1 - DT) * self.curvature + DT / GAMMA))

    def average(self, steps: int) -> Array:
        """The mean of a run's average of v, over every tenth step of its last half, θ fixed.

        ``E v_k = (1 - ((1-δt)(1-γ E F̂))^k) m``, m the limit.
        """
        k = np.arange(steps // 2, steps + 1, STRIDE)[:, None]
        left = ((1 - DT) * (1 - GAMMA * self.curvature)) ** k
        return np.asarray(self.limit() * (1 - left.mean(0)))

    def path(self) -> Array:
        """The mean of θ - θ* at the times of the picture, relative to the start.

        With ``e = θ - θ*``, ``E v_k = (1-δt)(1 - γ E F̂) E v_{k-1} + γ F E e_{k-1}`` and
        ``E e_k = E e_{k-1} - δt E v_k``, for each parameter, as g̃ does not depend on θ.
        """
        keep, push = (1 - DT) * (1 - GAMMA * self.curvature), GAMMA * SCALES**2
        step = np.array([[keep, push], [-DT * keep, 1 - DT * push]]).transpose(2, 0, 1)
        several = np.linalg.matrix_power(step, STEPS // POINTS)
        state, out = np.stack([np.zeros(2), START - TRUTH], axis=1), [START - TRUTH]
        for _ in range(POINTS):
            state = (several @ state[:, :, None])[:, :, 0]
            out.append(state[:, 1])
        return along(np.array(out))

    def run(self, steps: int, rng: np.random.Generator, *, frozen: bool, records: int) -> Run:
        """A run from v = 0."""
        scale = math.sqrt(self.batch) if self.factor else 1.0
        return tango(
            batches,
            START,
            gamma=GAMMA,
            dt=DT,
            steps=steps,
            rng=rng,
            constants=(self.batch, scale, 1.0, 1.0, *SCALES, *TRUTH),
            frozen=frozen,
            records=records,
        )

    def __str__(self) -> str:
        return f"B = {self.batch}, {'with' if self.factor else 'without'} the factor"


def along(x: Array) -> Array:
    """The component along the natural gradient ``F⁻¹ E g = θ - θ*`` at the start, 1 for itself."""
    whole = START - TRUTH
    return np.asarray(x @ whole / (whole @ whole))


def _velocities(setting: Setting, variant: Variant, share: float) -> dict[str, Any]:
    """Averages of v at a fixed θ, along the natural gradient."""
    steps = 8_000 if setting.quick else 20_000
    n = 20 if setting.quick else 40
    if variant.batch != CHECKED:
        n //= 4  # for the picture alone

    def one(rng: np.random.Generator) -> float:
        v = variant.run(steps, rng, frozen=True, records=steps // STRIDE).v
        return float(along(v[steps // STRIDE // 2 :].mean(0)))

    return {
        "batch": variant.batch,
        "factor": variant.factor,
        "limit": float(along(variant.limit())),
        "expected": float(along(variant.average(steps))),
        "lengths": setting.several(one, setting.generators(n, f"frozen {variant}"), share),
    }


def _paths(setting: Setting, variant: Variant, share: float) -> dict[str, Any]:
    """θ - θ* along the start, over time."""
    n = 20 if setting.quick else 40

    def one(rng: np.random.Generator) -> list[float]:
        theta = variant.run(STEPS, rng, frozen=False, records=POINTS).theta
        return [float(x) for x in along(theta - TRUTH)]

    paths = setting.several(one, setting.generators(n, f"moving {variant}"), share)
    # Without the factor θ is there ten times sooner: an earlier time tells more.
    checked = POINTS if variant.factor else POINTS // 10
    return {
        "batch": variant.batch,
        "factor": variant.factor,
        "expected": variant.path().tolist(),
        "path": paths[0],
        "checked": checked,
        "left": [path[checked] for path in paths],
    }


def _difference(setting: Setting) -> float:
    """Of v, between the factor √B in g̃ and the equation for minibatches, on the same samples."""
    ends = []
    for batch, scale, kernel_batch in ((CHECKED, math.sqrt(CHECKED), 1), (1, 1.0, CHECKED)):
        run = tango(
            batches,
            START,
            gamma=GAMMA,
            dt=DT,
            steps=1000,
            rng=setting.generators(1, "same")[0],
            constants=(batch, scale, 1.0, 1.0, *SCALES, *TRUTH),
            batch=kernel_batch,
            rank_one=True,
            records=1000,
        )
        ends.append(run.v)
    return float(np.abs(ends[1] - ends[0]).max())


def measure(setting: Setting) -> Result:
    """The velocity over B at a fixed θ, and trajectories, with and without the factor."""
    variants = [Variant(B, factor) for B in BATCHES for factor in (True, False)]
    total = sum(variant.batch for variant in variants)
    velocities = [_velocities(setting, v, 0.6 * v.batch / total) for v in variants]
    moving = [v for v in variants if v.batch in MOVING]
    total = sum(variant.batch for variant in moving)
    paths = [_paths(setting, v, 0.39 * v.batch / total) for v in moving]
    data = {"velocities": velocities, "paths": paths, "time": TIME, "gamma": GAMMA, "dt": DT}
    verdicts = [
        mean(case["lengths"]).near(
            f"length of the mean of v, natural gradient = 1, B = {CHECKED}, "
            f"{'with' if case['factor'] else 'without'} the factor",
            case["expected"],
        )
        for case in velocities
        if case["batch"] == CHECKED
    ]
    for case in paths:
        if case["batch"] == CHECKED:
            k, name = case["checked"], "with" if case["factor"] else "without"
            what = f"θ-θ* left at t = {TIME * k / POINTS:g}, B = {CHECKED}, {name} the factor"
            verdicts.append(mean(case["left"]).near(what, case["expected"][k]))
    what = "√B in g̃ against the paper's equation for minibatches, difference in v"
    verdicts.append(exact(what, _difference(setting), 1e-12))
    setting.advance(0.01)
    return Result(verdicts, data)


def draw(data: dict[str, Any], figure: Figure) -> None:
    """Left the size of v over B, right what is left of θ - θ* over time."""
    left, right = figure.subplots(1, 2)
    B = np.array([case["batch"] for case in data["velocities"] if case["factor"]])
    left.plot(B, B, color=GREY, ls=":", lw=1.2)
    left.text(11, 14, "B", color=GREY, ha="right")
    for factor, colour, marker in ((True, GREEN, "o"), (False, ORANGE, "s")):
        name = f"{'with' if factor else 'without'} the factor B"
        cases = [case for case in data["velocities"] if case["factor"] is factor]
        left.plot(B, [case["limit"] for case in cases], color=colour, lw=4, alpha=0.3)
        lengths = [np.mean(case["lengths"]) for case in cases]
        left.plot(B, lengths, marker, color=colour, ms=5, label=name)
        for case in data["paths"]:
            if case["factor"] is factor and (factor or case["batch"] > 1):  # else the same
                t = np.linspace(0, data["time"], len(case["expected"]))
                right.plot(t, case["expected"], color=colour, lw=4, alpha=0.25)
                right.plot(t, case["path"], color=colour, lw=1.2)
    for text, x, y, colour in (
        ("B = 1, 4, 16", 0.5, 0.68, GREEN),
        ("B = 4", 0.24, 0.44, ORANGE),
        ("B = 16", 0.33, -0.11, ORANGE),
    ):
        right.text(x, y, text, color=colour)
    t = np.linspace(0, data["time"], 50)
    right.plot(t, np.exp(-t), color="black", lw=1, ls=":", label="natural gradient, $e^{-t}$")
    left.set(xscale="log", yscale="log", xlabel="batch size B", xticks=B, xticklabels=B)
    left.minorticks_off()
    left.set(
        yticks=B, yticklabels=B, title="fixed θ: length of the mean of v,\nnatural gradient = 1"
    )
    right.set(xlabel="time t = k δt", title="θ moves: what is left of θ - θ*")
    legend_below(figure, left, right, ncols=3)


CLAIM = Claim(
    name="minibatch",
    title="Minibatches need the factor B",
    where="Implementation remarks, minibatches",
    sentences=(
        "With minibatches, g̃ is the mean of B pseudo-gradients, and the mean of g̃g̃ᵀ is F/B, not F. "
        "So the paper's equation has B g̃g̃ᵀ in its place. Left: at a fixed θ the mean of v is then "
        "the natural gradient for every B; without the factor it is B times too long, less where "
        "the damping δt/γ is no longer small beside F/B. Right: as θ moves, TANGO with the factor "
        "follows the natural gradient's e^-t whatever B is; without it, θ moves B times too fast, "
        "and where v cannot follow, it overshoots. (One run each, and exact means as thick lines: "
        "linear regression, γ = 0.05, δt = 2e-4.)"
    ),
    measure=measure,
    draw=draw,
    size=(8.0, 4.2),
)
