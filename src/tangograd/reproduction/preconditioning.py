"""Preconditioned TANGO: the same limit for every C, a change of variable, and what it gains."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tangograd.reproduction import figures as fig
from tangograd.reproduction import gaussian
from tangograd.reproduction.base import Array, Result, Setting
from tangograd.reproduction.exact import Regression
from tangograd.reproduction.gaussian import Coordinates, half_plane
from tangograd.reproduction.models import AFFINE, gaussian_in_coordinates, signs
from tangograd.reproduction.verdicts import Verdict, exact, mean, quantile
from tangograd.stream import tango

MEAN, TIME, LONG_TIME, DT = 3.0, 1.5, 6.0, 3e-5
THETA = Coordinates("(μ, ln σ)", AFFINE)
#: C, with a γ that leaves the velocity its fourth moment, and a rate of SGD for the picture.
PRECONDITIONERS: tuple[tuple[str, Array, float, float], ...] = (
    ("C = 1", np.eye(2), 0.02, 2e-4),
    ("C = diag(4, ¼)", np.diag([4.0, 0.25]), 0.015, 2e-4),
    ("C = [[1, 0.8], [0.8, 1]]", np.array([[1.0, 0.8], [0.8, 1.0]]), 0.02, 2e-4),
)
SCALES = np.geomspace(1, 100, 5)
NOISE, RATE, GOAL = 0.1, 0.02, 0.01


def root(C: Array) -> Coordinates:
    """Return ``φ = S⁻¹θ``, ``C = S Sᵀ``, on which preconditioned TANGO is plain TANGO."""
    return Coordinates("S⁻¹θ", AFFINE, np.linalg.cholesky(C))


def preconditioned(C: Array, *, gamma: float, dt: float, steps: int, rng: Any) -> Array:
    """Run the paper's equations with a matrix C, line by line; return θ after each step."""
    theta, v, g, g_tilde = np.zeros(2), np.zeros(2), np.empty(2), np.empty(2)
    constants, path = THETA.constants(MEAN), [np.zeros(2)]
    for _ in range(steps):
        gaussian_in_coordinates(theta, rng, constants, g, g_tilde)
        v = (1 - dt) * v + gamma * C @ g - gamma * (1 - dt) * (v @ g_tilde) * (C @ g_tilde)
        theta = theta - dt * v
        path.append(theta)
    return np.array(path)


def run_in(
    coordinates: Coordinates, gamma: float, steps: int, rng: np.random.Generator, **options: Any
) -> Array:
    """Return θ along a run of TANGO in some coordinates, from N(0, 1) to N(MEAN, 1)."""
    options = dict[str, Any](dt=DT, constants=coordinates.constants(MEAN), rng=rng) | options
    run = tango(gaussian_in_coordinates, coordinates.start, gamma=gamma, steps=steps, **options)
    return coordinates.decode(run.theta)


def change_of_variable_error(setting: Setting) -> float:
    """Return the difference of preconditioned TANGO on θ from TANGO on S⁻¹θ, for the same draws."""
    error, steps = 0.0, 2000
    for _, C, gamma, _ in PRECONDITIONERS:
        rngs = [setting.generators(1, "variable")[0] for _ in range(3)]
        options: dict[str, Any] = {"dt": 1e-3, "records": steps}
        other = run_in(root(C), gamma, steps, rngs[0], **options)
        paths = [preconditioned(C, gamma=gamma, dt=1e-3, steps=steps, rng=rngs[1])]
        if not C[0, 1]:
            paths.append(run_in(THETA, gamma, steps, rngs[2], C=np.diag(C), **options))
        error = max(error, *(float(np.abs(path - other).max()) for path in paths))
    return error


def distances(
    setting: Setting, name: str, where: Coordinates, gamma: float, rate: float, time: float = 40.0
) -> tuple[Verdict, Array, list[Array]]:
    """Test the distances of runs from the natural gradient at :data:`TIME`.

    Also return them, and longer paths of TANGO and of SGD, which has the rate and the time given.
    """
    run, n = partial(run_in, where, gamma, round(TIME / DT)), 40 if setting.quick else 300
    theta = np.array([path[-1] for path in setting.sample(run, n, name, 0.2)])
    expected = gaussian.median_distance(TIME, MEAN, gamma, where.jacobian, DT)
    what = f"median distance from the natural gradient, {name}"
    # left out are terms of the relative orders δt/(γ λ_min) < 0.03 and √δt = 0.005, with constants
    # larger than 1: 4000 runs of each case were within 2%, and 7% for natural parameters
    found = gaussian.distance(theta, TIME, MEAN)
    verdict = quantile(found).near(what, expected, within=0.1 * expected)
    first, second = setting.generators(2, f"{name}, shown")
    paths = [
        run_in(where, gamma, round(LONG_TIME / DT), first, records=1000),
        run_in(where, rate, round(time / rate), second, dt=1.0, records=5000),
    ]
    return verdict, found, [half_plane(path) for path in paths]


def learned(setting: Setting) -> tuple[tuple[str, Array, float], ...]:
    """Return diagonals from 1000 gradients at the start, each with ``γ = 1/max g̃ᵀCg̃``."""
    (rng,) = setting.generators(1, "learned")
    constants, theta = np.array([NOISE, *SCALES]), 1 / SCALES
    g, g_tilde = np.empty((2, 1000, len(SCALES)))
    for row, row_tilde in zip(g, g_tilde, strict=True):
        signs(theta, rng, constants, row, row_tilde)
    choices = {"no C": np.ones(len(SCALES)), "RMSProp": 1 / np.sqrt((g**2).mean(0))}
    choices |= {"inverse diagonal Fisher": 1 / (g_tilde**2).mean(0)}
    return tuple((name, C, float(1 / (g_tilde**2 @ C).max())) for name, C in choices.items())


def expected_excess(C: Array, gamma: float, steps: int) -> Array:
    """Return the exact mean excess loss after each step, relative to the start's."""
    regression = Regression.signs(SCALES, NOISE)
    return regression.excess(1 / SCALES, gamma=gamma, dt=RATE, steps=steps, C=C)


def _speed(
    setting: Setting, name: str, C: Array, gamma: float, colour: str
) -> tuple[Verdict, Array, list[fig.Mark]]:
    """Run up to the step where the excess loss is expected to have fallen to GOAL."""
    expected = expected_excess(C, gamma, 30_000)
    steps = -(-int(np.argmax(expected < GOAL)) // 10) * 10
    options: dict[str, Any] = {"steps": steps, "records": steps // 10, "C": C}
    options |= {"gamma": gamma, "dt": RATE, "constants": [NOISE, *SCALES]}

    def run(rng: np.random.Generator) -> Array:
        theta = tango(signs, 1 / SCALES, rng=rng, **options).theta
        return np.asarray(theta**2 @ SCALES**2 / len(SCALES))

    n = (200 if steps > 1000 else 400) * (1 if setting.quick else 4)
    excess, what = np.array(setting.sample(run, n, name, 0.12)), "excess loss relative to the start"
    k = np.unique(np.geomspace(1, steps // 10, 60).astype(int))
    marks = fig.averages(10 * k, excess[:, k], expected[10 * k], colour, name)
    verdict = mean(excess[:, -1]).near(f"{what}, {steps} steps, {name}", float(expected[steps]))
    return verdict, excess[:, -1], marks


def measure(setting: Setting) -> Result:
    """Test a change of variable, the limit with three C, and the speed with two diagonals."""
    what = "preconditioned TANGO on θ minus TANGO on S⁻¹θ, C = S Sᵀ"
    verdicts = [exact(what, change_of_variable_error(setting), 1e-10)]
    setting.advance(0.04)
    left, middle, right = (list[fig.Mark]() for _ in range(3))
    samples, colours = dict[str, Array](), (fig.BLUE, fig.ORANGE, fig.GREEN)
    for (name, C, gamma, rate), colour in zip(PRECONDITIONERS, colours, strict=True):
        verdict, samples[name], paths = distances(setting, name, root(C), gamma, rate)
        verdicts.append(verdict)
        for marks, path in zip((middle, left), paths, strict=True):
            marks.append(fig.path(path, colour, name))
    for choice, colour in zip(learned(setting), (fig.RED, fig.PURPLE, fig.SKY), strict=True):
        verdict, samples[choice[0]], marks = _speed(setting, *choice, colour)
        verdicts.append(verdict)
        right += marks
    half: dict[str, Any] = {"mean": MEAN, "xlim": (-0.3, 3.3), "ylim": (0.8, 2.8)}
    panels = [
        gaussian.half_plane_panel(*left, title="SGD with C", **half),
        gaussian.half_plane_panel(*middle, title="TANGO with C", **half),
        fig.panel(
            *right, fig.expected([], [], "exact mean"), log="xy", xlabel="step",
            ylabel="excess loss / initial", title="Scales 1 … 100", ylim=(4e-4, 1.5),
            legend="lower left",
        ),
    ]  # fmt: skip
    layout = {"width_ratios": (1, 1, 1.25)}
    return Result(verdicts, fig.Picture(panels, (8.0, 3.8), legend=4, layout=layout), samples)
