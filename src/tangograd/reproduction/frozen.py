"""At a fixed θ the velocity solves for the damped natural gradient; how fast, and how noisily."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh, toeplitz

from tangograd.reproduction.base import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Claim,
    Result,
    Setting,
)
from tangograd.reproduction.moments import finite
from tangograd.reproduction.verdicts import mean, near_mean
from tangograd.stream import tango

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

SAMPLED, EXPECTED, EMPIRICAL = 0.0, 1.0, 2.0


@njit(cache=True)
def regression(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """Linear regression with noise of variance 1 in the model, at θ from the truth.

    The features are Gaussian, of variance 1, with correlations ``ρ^|i-j|``. The constants are the
    kind of Fisher estimate, ρ and the standard deviation of the noise in the data. For "sampled",
    ``g̃ = x z``; for "expected", ``g̃g̃ᵀ = xxᵀ``; for "empirical", ``g̃ = g``.
    """
    rho = constants[1]
    fresh = math.sqrt(1 - rho * rho)
    residual = -constants[2] * rng.standard_normal()
    for i in range(len(theta)):
        z = rng.standard_normal()
        g_tilde[i] = rho * g_tilde[i - 1] + fresh * z if i else z
        residual += g_tilde[i] * theta[i]
    factor = 1.0
    if constants[0] == 0.0:
        factor = rng.standard_normal()
    elif constants[0] == 2.0:
        factor = residual
    for i in range(len(theta)):
        g[i] = residual * g_tilde[i]
        g_tilde[i] *= factor


@dataclass(frozen=True)
class Estimate:
    """A Fisher estimate on :func:`regression`, and its exact moments.

    Below, ``Φ`` is the covariance of the features (it is F), ``δ = θ - θ*``, s the noise, and
    ``W(S) = E[xxᵀ S xxᵀ] = tr(ΦS) Φ + 2 ΦSΦ`` for symmetric S.

    Attributes:
        name: of the kind.
        kind: for the model.
        offset: δ.
        noise: s.
        rho: the correlation of neighbouring features.
        batch: B.
        rank_one: ``B ḡ̃ḡ̃ᵀ``, ḡ̃ the mean of g̃ over the batch, instead of the mean of ``g̃g̃ᵀ``.
    """

    name: str
    kind: float
    offset: Array
    noise: float = 1.0
    rho: float = 0.0
    batch: int = 1
    rank_one: bool = False

    @cached_property
    def features(self) -> Array:
        """Φ."""
        return np.asarray(toeplitz(self.rho ** np.arange(len(self.offset))), np.float64)

    @cached_property
    def gradient(self) -> Array:
        """``E g = Φδ``."""
        return self.features @ self.offset

    @cached_property
    def variance(self) -> float:
        """``τ² = E r² = δᵀΦδ + s²``, r the residual."""
        return float(self.offset @ self.gradient) + self.noise**2

    @cached_property
    def mean(self) -> Array:
        """``E F̂``: Φ, or for "empirical" ``E ggᵀ = τ²Φ + 2 Φδδᵀ Φ``."""
        if self.kind == EMPIRICAL:
            return self.variance * self.features + 2 * np.outer(self.gradient, self.gradient)
        return self.features

    @property
    def natural_gradient(self) -> Array:
        """``(E F̂)⁻¹ E g``, the mean of v at δt = 0."""
        return np.asarray(np.linalg.solve(self.mean, self.gradient), np.float64)

    def limit(self, gamma: float, dt: float, C: Array) -> Array:
        """The mean of v, ``((1-δt) E F̂ + (δt/γ) C⁻¹)⁻¹ E g``, C diagonal."""
        damped = (1 - dt) * self.mean + dt / gamma * np.diag(1 / C)
        return np.asarray(np.linalg.solve(damped, self.gradient), np.float64)

    def sandwich(self, S: Array) -> Array:
        """``E[F̂ S F̂]``.

        For a mean over the batch it is ``K(S)/B + (1-1/B) E F̂ S E F̂``, where K is 3W for "sampled"
        (``E z⁴ = 3``), W for "expected". For rank one, from the pairs of equal indices in
        ``Σ g̃_i g̃_jᵀ S g̃_k g̃_lᵀ / B²``, it is ``3W(S)/B + (1-1/B) W(S)``.
        """
        one = 1 / self.batch
        if self.kind == EMPIRICAL:
            return one * self._eighth(S) + (1 - one) * self.mean @ S @ self.mean
        if self.rank_one:
            return (3 * one + 1 - one) * self._W(S)
        factor = 3 if self.kind == SAMPLED else 1
        return one * factor * self._W(S) + (1 - one) * self.features @ S @ self.features

    @property
    def R2(self) -> float:  # noqa: N802
        """The smallest R² with ``E F̂² ≼ R² E F̂``."""
        identity = np.eye(len(self.offset))
        return float(eigh(self.sandwich(identity), self.mean, eigvals_only=True)[-1])

    @property
    def noise_covariance(self) -> Array:
        """``E nnᵀ`` of the noise ``n = ḡ - F̂m`` that v sees at its mean m, at δt = 0.

        For the three with ``E F̂ = Φ``, m = δ, and what the closed form ``F_x = xxᵀ`` would give
        cancels: ``E[F̂ mmᵀ F̂] - E[F_x mmᵀ F_x] + s²Φ/B``. For "empirical" it is
        ``E ggᵀ(1-⟨g,m⟩)²/B``.
        """
        m = self.natural_gradient
        M = np.outer(m, m)
        if self.kind == EMPIRICAL:
            terms = self.mean - 2 * self._sixth(m) + self._eighth(M)
            return np.asarray(terms / self.batch, np.float64)
        closed = replace(self, kind=EXPECTED, rank_one=False)
        data = self.noise**2 * self.features / self.batch
        return np.asarray(self.sandwich(M) - closed.sandwich(M) + data, np.float64)

    def fluctuation(self, gamma: float) -> float:
        """``E‖v-m‖²/‖m‖²`` at δt = 0.

        The covariance solves ``γ (E F̂ Σ + Σ E F̂) - γ² E[F̂ΣF̂] = γ² E nnᵀ``.
        """
        d = len(self.offset)
        units = np.eye(d * d).reshape(d * d, d, d)
        rows = [self.mean @ S + S @ self.mean - gamma * self.sandwich((S + S.T) / 2) for S in units]
        system = np.stack(rows).reshape(d * d, d * d).T
        covariance = np.linalg.solve(system, gamma * self.noise_covariance.ravel()).reshape(d, d)
        m = self.natural_gradient
        return float(np.trace(covariance) / (m @ m))

    @property
    def along(self) -> float:
        """The eigenvalue of ``E F̂`` in the direction of ``E g``, for uncorrelated features."""
        return float(self.gradient @ self.mean @ self.gradient / (self.gradient @ self.gradient))

    def _W(self, S: Array) -> Array:  # noqa: N802
        phi = self.features
        return np.asarray(np.trace(phi @ S) * phi + 2 * phi @ S @ phi, np.float64)

    def _split(self) -> tuple[Array, Array, float]:
        """``x = a r + u`` with u independent of the residual r: a, the covariance of u, and τ²."""
        a = self.gradient / self.variance
        return a, self.features - self.variance * np.outer(a, a), self.variance

    def _sixth(self, m: Array) -> Array:
        """``E[ggᵀ ⟨g,m⟩] = E[r³ xxᵀ ⟨x,m⟩]``."""
        a, U, tau2 = self._split()
        cross = np.outer(a, U @ m)
        return np.asarray(
            15 * tau2**3 * (a @ m) * np.outer(a, a) + 3 * tau2**2 * ((a @ m) * U + cross + cross.T),
            np.float64,
        )

    def _eighth(self, S: Array) -> Array:
        """``E[ggᵀ S ggᵀ] = E[r⁴ xxᵀ S xxᵀ]``."""
        a, U, tau2 = self._split()
        aa, aSa, trace = np.outer(a, a), a @ S @ a, np.trace(S @ U)
        cross = U @ S @ aa
        return np.asarray(
            105 * tau2**4 * aSa * aa
            + 15 * tau2**3 * (aSa * U + trace * aa + 2 * (cross + cross.T))
            + 3 * tau2**2 * (trace * U + 2 * U @ S @ U),
            np.float64,
        )


def kinds(offset: ArrayLike, batch: int, rho: float = 0.0, noise: float = 1.0) -> list[Estimate]:
    """The four estimates."""
    sampled = Estimate("sampled", SAMPLED, np.asarray(offset, np.float64), noise, rho, batch)
    return [
        sampled,
        replace(sampled, name="expected", kind=EXPECTED),
        replace(sampled, name="empirical", kind=EMPIRICAL),
        replace(sampled, name="rank one", rank_one=True),
    ]


def run(
    estimate: Estimate,
    steps: int,
    rng: np.random.Generator,
    *,
    gamma: float,
    dt: float = 0.0,
    C: Array | None = None,
) -> Array:
    """The velocity of TANGO at a fixed θ, from 0; a row for each step."""
    path = tango(
        regression,
        estimate.offset,
        gamma=gamma,
        dt=dt,
        steps=steps,
        rng=rng,
        constants=(estimate.kind, estimate.rho, estimate.noise),
        C=C,
        batch=estimate.batch,
        rank_one=estimate.rank_one,
        frozen=True,
        records=steps,
    )
    return finite(path.v)


# The mean: correlated features, a diagonal C, and enough damping to see each of its factors.
OFFSET, RHO, NOISE, C = (0.3, -0.2, 0.15), 0.6, 0.3, np.array([1.0, 2.0, 0.5])
GAMMA = DT = 0.03
# Speed and fluctuations: F = I, the gradient and the noise of size 1, no damping.
DIMENSIONS, DIMENSION, BATCHES = (2, 8, 32), 8, (1, 4, 16, 64)


def _averages(setting: Setting, estimate: Estimate, share: float) -> Array:
    """Averages of v over long runs that began at 0, without their first tenths; one row a run.

    v forgets by at least ``1-δt`` a step: what remains of its start then is below e⁻¹⁵.
    """
    n, steps = (40, 5_000) if setting.quick else (60, 50_000)

    def one(rng: np.random.Generator) -> Array:
        path = run(estimate, steps, rng, gamma=GAMMA, dt=DT, C=C)
        return np.asarray(path[steps // 10 :].mean(0))

    return np.stack(setting.several(one, setting.generators(n, estimate.name), share))


def _remaining(setting: Setting, estimate: Estimate, share: float) -> dict[str, Any]:
    """How much of m the mean of v lacks after k steps at ``γ = 1/R²``: ``(1-γ)^k`` for F = I."""
    n, gamma = 200 if setting.quick else 1000, 1 / estimate.R2
    steps = round(3 * estimate.R2)

    def one(rng: np.random.Generator) -> Array:
        return np.asarray(1 - run(estimate, steps, rng, gamma=gamma) @ estimate.offset)

    what = f"dimension {len(estimate.offset)}"
    paths = np.stack(setting.several(one, setting.generators(n, what), share))
    chosen = np.unique(np.geomspace(1, steps, 9).round().astype(int))
    return {
        "dimension": len(estimate.offset),
        "R2": estimate.R2,
        "exact": ((1 - gamma) ** np.arange(steps + 1)).tolist(),
        "steps": chosen.tolist(),
        "mean": paths[:, chosen].mean(0).tolist(),
        "error": (paths[:, chosen].std(0, ddof=1) / math.sqrt(n)).tolist(),
        "at_R2": paths[:, round(estimate.R2)].tolist(),
    }


def _noise(setting: Setting, estimate: Estimate, share: float) -> dict[str, Any]:
    """Speed and fluctuations at ``γ = 1/R²`` of one estimate, for one size of batches.

    The speed is from the mean of v after about one time ``1/(γλ)``, λ the eigenvalue of ``E F̂`` in
    the direction of m: it lacks ``(1-γλ)^k``. Fluctuations are averaged over hundreds of times.
    """
    n, starts, forgets = (30, 80, 100) if setting.quick else (60, 600, 400)
    forgets = min(forgets, forgets * 16 // estimate.batch)  # costs the more the larger the batch
    gamma = 1 / estimate.R2
    m = estimate.natural_gradient
    first = round(1 / (gamma * estimate.along))
    steps = round((forgets + 10) * estimate.R2 / np.linalg.eigvalsh(estimate.mean)[0])

    def early(rng: np.random.Generator) -> float:
        return float(run(estimate, first, rng, gamma=gamma)[-1] @ m / (m @ m))

    def late(rng: np.random.Generator) -> float:
        settled = run(estimate, steps, rng, gamma=gamma)[steps * 10 // (forgets + 10) :]
        return float(((settled - m) ** 2).sum(1).mean() / (m @ m))

    what = f"{estimate.name} {estimate.batch}"
    grown = setting.several(early, setting.generators(starts, f"{what} early"), 0.1 * share)
    remaining = float(np.clip(1 - np.mean(grown), 1e-3, 1 - 1e-3))
    return {
        "name": estimate.name,
        "batch": estimate.batch,
        "exact_steps": 1 / (gamma * estimate.along),
        "steps": float(1 / (1 - remaining ** (1 / first))),
        "exact_fluctuation": estimate.fluctuation(gamma),
        "fluctuations": setting.several(late, setting.generators(n, what), 0.9 * share),
    }


def _curves() -> dict[str, list[tuple[float, float]]]:
    """Exact steps to forget and fluctuations of each kind, from the first to the last batch."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for B in np.unique(np.geomspace(BATCHES[0], BATCHES[-1], 13).astype(int)):
        for estimate in kinds(np.eye(DIMENSION)[0], int(B)):
            gamma = 1 / estimate.R2
            point = (1 / (gamma * estimate.along), estimate.fluctuation(gamma))
            curves.setdefault(estimate.name, []).append(point)
    return curves


def _path(setting: Setting) -> dict[str, Any]:
    """One run: v, and its average so far."""
    steps = 20_000
    estimate = kinds(OFFSET, batch=1, rho=RHO, noise=NOISE)[0]
    v = run(estimate, steps, setting.generators(1, "path")[0], gamma=GAMMA, dt=DT, C=C)[1:]
    setting.advance(0.01)
    chosen = np.unique(np.geomspace(1, steps, 300).astype(int)) - 1
    averages = v.cumsum(0) / np.arange(1, steps + 1)[:, None]
    return {
        "steps": (chosen + 1).tolist(),
        "v": v[chosen].tolist(),
        "average": averages[chosen].tolist(),
        "limit": estimate.limit(GAMMA, DT, C).tolist(),
        "gamma": GAMMA,
        "dt": DT,
    }


def measure(setting: Setting) -> Result:
    """The mean of four estimates; then speed and noise over dimensions and batches."""
    verdicts, distances = [], []
    data: dict[str, Any] = {}
    for estimate in kinds(OFFSET, batch=1, rho=RHO, noise=NOISE):
        if estimate.rank_one:
            estimate = replace(estimate, batch=8)
        m = estimate.limit(GAMMA, DT, C)
        averages = _averages(setting, estimate, 0.1)
        lengths = averages @ m / (m @ m)
        # Errors of independent runs: their product has the square of the bias as its mean.
        halves = np.split((averages - m) / np.linalg.norm(m), 2)
        distances.append((halves[0] * halves[1]).sum(1))
        data[estimate.name] = {"m": m.tolist(), "averages": averages.tolist()}
        if estimate.kind != EXPECTED:  # in the table by the squared distance alone
            matrix = "E ggᵀ for F" if estimate.kind == EMPIRICAL else f"B = {estimate.batch}"
            what = f"length of the mean of v along its limit, {estimate.name}, {matrix}"
            verdicts.append(mean(lengths).near(what, 1.0))
    what = "squared distance of the mean of v from its limit, relative, all four kinds"
    verdicts.append(mean(np.mean(distances, axis=0)).near(what, 0.0))
    data["dimensions"] = [
        _remaining(setting, Estimate("sampled", SAMPLED, np.eye(d)[0]), 0.09 / 3)
        for d in DIMENSIONS
    ]
    data["batches"] = [
        _noise(setting, estimate, 0.5 / 16)
        for B in BATCHES
        for estimate in kinds(np.eye(DIMENSION)[0], batch=B)
    ]
    data["curves"] = _curves()
    data["path"] = _path(setting)
    large = data["dimensions"][-1]
    verdicts.append(
        mean(large["at_R2"]).near(
            f"what the mean of v lacks after R² = {large['R2']:.0f} steps, d = {DIMENSIONS[-1]}",
            large["exact"][round(large["R2"])],
        )
    )
    for case in data["batches"]:
        if (case["name"], case["batch"]) in (("sampled", 16), ("rank one", 16)):
            verdicts.append(
                near_mean(
                    case["fluctuations"],
                    f"E‖v-m‖²/‖m‖² at γ = 1/R², {case['name']}, B = {case['batch']}",
                    case["exact_fluctuation"],
                )
            )
    return Result(verdicts, data)


def draw(data: dict[str, Any], figure: Figure) -> None:
    """One run's average; how dimension slows the mean; noise against speed of each estimate."""
    one, many, trade = figure.subplots(1, 3, width_ratios=(1, 1, 1.15))
    path = data["path"]
    for i, colour in enumerate((RED, SKY, GREY)):
        one.plot(path["steps"], np.array(path["v"])[:, i], color=colour, lw=0.7, alpha=0.35)
        one.plot(path["steps"], np.array(path["average"])[:, i], color=colour, lw=2.2)
        one.axhline(path["limit"][i], color="black", ls="--", lw=1)
    one.set(title="v (thin), its average (thick)\nand limit (dashed)")
    one.set(xlabel="step", xscale="log", ylabel="three parameters")
    for case, colour in zip(data["dimensions"], ("#a0a0a0", GREY, "black"), strict=True):
        exact = case["exact"]
        many.plot(range(1, len(exact)), exact[1:], color=colour, lw=4, alpha=0.3)
        errors, label = 2 * np.array(case["error"]), f"d = {case['dimension']}"
        many.errorbar(case["steps"], case["mean"], errors, fmt="o", color=colour, ms=4, label=label)
    many.set(title="what the mean of v\nstill lacks", xlabel="step", xscale="log")
    many.legend(loc="lower left", frameon=False)
    colours = {"sampled": BLUE, "expected": GREEN, "empirical": PURPLE, "rank one": ORANGE}
    for name, colour in colours.items():
        trade.plot(*zip(*data["curves"][name], strict=True), color=colour, lw=4, alpha=0.3)
        cases = [case for case in data["batches"] if case["name"] == name]
        x, y = [case["steps"] for case in cases], [np.mean(case["fluctuations"]) for case in cases]
        trade.plot(x, y, "o", color=colour, ms=4, label=name)
        if name in ("sampled", "empirical"):
            below = name == "empirical"
            for case, where in zip(cases, zip(x, y, strict=True), strict=True):
                trade.annotate(
                    f"{case['batch']}",
                    where,
                    (4, -10) if below else (-4, 4),
                    textcoords="offset points",
                    ha="left" if below else "right",
                    color=colour,
                    fontsize=8,
                )
    trade.set(title="noise over time to\nforget, B = 1 … 64", xscale="log", yscale="log")
    trade.set(xlabel="steps to forget", ylabel="E‖v-m‖²/‖m‖²", ylim=(0.08, 1.5))
    trade.legend(loc="lower right", frameon=False)


CLAIM = Claim(
    name="frozen",
    title="At a fixed θ the velocity averages to the natural gradient",
    where="Definition 1 and the argument after it",
    sentences=(
        "While θ rests, the velocity v does stochastic gradient steps on the equation F v = g. Its "
        "mean is then exactly the natural gradient, damped: ((1-δt)F + (δt/γ)C⁻¹)⁻¹ g, for "
        "every stable γ, however noisy v is. This holds for the Fisher matrix estimated from "
        "sampled outputs, from their closed-form expectation, and by one outer product for a "
        "minibatch; with the outer products of the data's own gradients (empirical) F is "
        "replaced by E ggᵀ, and the limit is another one. Left: correlated features, C not the "
        "identity, γ = δt = 0.03.\n\n"
        "The speed depends on γ, and so on the theorem's R²: at γ = 1/R² the mean of v forgets its "
        "start in R²/λ steps, which for linear regression with F = I and sampled outputs is 3(d+2) "
        "(middle). Batches of B make that (3(d+2)+B-1)/B and in the end also reduce the noise "
        "(right, d = 8, batches of 1, 4, 16 and 64); with one outer product a batch, R² stays "
        "above d+2 and the noise remains, whatever B is. Each noise is relative to that kind's own "
        "limit m; thick lines are exact."
    ),
    measure=measure,
    draw=draw,
    size=(8.0, 3.8),
)
