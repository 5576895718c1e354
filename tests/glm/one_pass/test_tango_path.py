"""TANGO's path against the paper's two equations in NumPy, with dense matrices."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from tangograd.glm.families import (
    Gamma,
    Gaussian,
    Logit,
    Multinomial,
    Poisson,
    Probit,
    Tweedie,
    evaluate,
    samples,
)
from tangograd.glm.matrices import Block
from tangograd.glm.one_pass.tango_path import (
    GROWTH,
    LARGEST_MOVE,
    STABLE,
    STRIDE,
    TangoOptions,
    TangoPath,
)
from tests.glm.matrices.samples import KINDS, WIDTH

N, START = 400, 300


@dataclass
class Problem:
    """Rows, and a path that has already seen others."""

    family: object
    kind: str = "dense"
    alpha: float = 0.0
    intercept: bool = True
    sampled: bool = False
    constant: float = 1.0

    def __post_init__(self):
        rng = np.random.default_rng(3)
        X, K = KINDS[self.kind](N), self.family.outputs
        Z = X.toarray()
        self.center = Z.mean(axis=0) if self.intercept else np.zeros(WIDTH)
        spread = Z.std(axis=0) + 1e-9
        self.theta = rng.normal(size=(K, WIDTH + 1)) * 0.3 / np.r_[spread, 1.0]
        self.theta[:, -1] *= self.intercept
        offset = 0.1 * rng.normal(size=N)
        z = np.column_stack([Z - self.center, np.full(N, 1.0)])
        self.z = z
        eta = z @ self.theta.T * 0.8 + offset[:, None]
        phi = 0.7 if self.family.estimates_dispersion else 1.0
        y = samples(self.family, eta, phi, rng)
        if self.family.name == "gamma":
            y = np.maximum(y, 1e-9)
        self.block = Block(X, y, rng.random(N) + 0.5, offset)
        scale = np.r_[spread, 1.0] ** 2
        self.fisher = START * 0.4 * np.tile(scale, (K, 1))
        self.statistics = {
            "k": START,
            "constant": self.constant,
            "weight": 0.9 * START,
            "q": 2.0 * START,
            "q_squared": 7.0 * START,
            "pearson": 0.5 * START if self.family.estimates_dispersion else 0.0,
        }

    def path(self):
        rng = np.random.default_rng(11) if self.sampled else None
        options = TangoOptions(self.alpha, self.intercept)
        return TangoPath.start(
            self.family, self.theta, self.center, self.fisher, options, rng, **self.statistics
        )


def by_hand(problem):
    """Definition 1 with dense matrices: all coefficients flat, F the matrix of all of them."""
    family, block, K = problem.family, problem.block, problem.family.outputs
    rng, alpha = np.random.default_rng(11), problem.alpha
    theta, S = problem.theta.ravel().copy(), problem.fisher.ravel().copy()
    size, v, s = WIDTH + 1, np.zeros_like(theta), dict(problem.statistics)
    k, gamma, penalised, dt = START, None, None, 1 / START
    is_slope = np.tile(np.r_[np.ones(WIDTH), 0.0], K)
    mixing = np.eye(K) - (1 / (K + 1) if family.centers_penalty else 0)
    pull = alpha * np.kron(mixing, np.diag(np.r_[np.ones(WIDTH), 0.0]))
    noise = limited = loss = 0.0
    scores, fishers = [], []

    def renew():
        nonlocal C, gamma, renewal, penalised
        curvature = S / k + alpha * s["weight"] / k * is_slope
        C = np.where(S > 0, 1 / np.where(S > 0, curvature, 1.0), 0.0)
        if not problem.intercept:
            C[is_slope == 0] = 0.0
        A = s["q_squared"] / s["q"] / 2
        gamma = min(STABLE / A, s["constant"] / math.sqrt(A * k))
        renewal = math.ceil(k * GROWTH)
        if penalised is None:
            penalised = (k, max(1, math.floor(STRIDE / gamma)))

    C = renewal = None
    renew()
    for n in range(N):
        x = np.kron(np.eye(K), problem.z[n])  # (K, K size): η = x θ
        eta, w = x @ theta + block.offset[n], block.weights[n]
        k, keep, dt = k + 1, 1 - dt, 1 / (k + 1)
        row = evaluate(family, eta[None], block.y[n : n + 1])
        score, F = row.score[0], row.fisher[0]
        F_hat = F
        if problem.sampled:
            phi = s["pearson"] / s["weight"] if family.estimates_dispersion else 1.0
            pseudo = family.sample(eta, phi, rng)
            g = evaluate(family, eta[None], [pseudo]).score[0]
            F_hat = np.outer(g, g) / phi
        t = keep * (x @ v)
        q = np.array([row @ (C * row) for row in x])
        a = w * (score - F_hat @ t)
        trace, square = w * np.diag(F_hat) @ q, q @ (w * F_hat) ** 2 @ q
        row_gamma = min(gamma, 1 / trace) if trace > 0 else gamma
        s["q_squared"] += square * row_gamma / gamma
        move = np.max(np.abs(a) * q)
        if not family.quadratic and row_gamma * move > LARGEST_MOVE:
            row_gamma = LARGEST_MOVE / move
        limited += row_gamma < gamma
        noise += row_gamma * square
        s["q"] += trace
        s["weight"] += w
        loss += w * row.loss[0]
        if family.estimates_dispersion:
            s["pearson"] += w * score[0] ** 2 / F[0, 0]
        v = keep * v + row_gamma * C * (a @ x)
        theta = theta - dt * v
        S += w * np.diag(F) @ x**2
        scores.append(w * score)
        fishers.append(w * F)
        if alpha > 0 and k >= sum(penalised):
            rate = gamma * penalised[1] * s["weight"] / k
            v += rate * C * (pull @ (theta - v))
            penalised = (k, max(1, math.floor(STRIDE / gamma)))
        if k >= renewal:
            renew()
    return {
        "theta": theta.reshape(K, size),
        "v": v.reshape(K, size),
        "C": C.reshape(K, size),
        "S": S.reshape(K, size),
        "scores": np.array(scores),
        "fishers": np.array(fishers),
        "gamma": gamma,
        "noise": noise,
        "limited": limited,
        "loss": loss,
        "pearson": s["pearson"],
        "q": s["q"],
        "q_squared": s["q_squared"],
    }


def close(found, expected, name, rtol=1e-10):
    np.testing.assert_allclose(
        found, expected, rtol=rtol, atol=rtol * np.abs(expected).max(), err_msg=name
    )


CASES = [
    Problem(Gaussian()),
    Problem(Logit(), intercept=False),
    Problem(Probit(), kind="single", constant=30.0),
    Problem(Poisson(), alpha=0.02),
    Problem(Poisson(), kind="sparse", alpha=0.02),
    Problem(Poisson(), kind="categorical", alpha=0.02, constant=20.0),
    Problem(Gamma(), kind="levels_alone"),
    Problem(Multinomial(3), alpha=0.02),
    Problem(Multinomial(4), kind="sparse", constant=20.0),
    Problem(Multinomial(2), kind="categorical", alpha=0.02),
    Problem(Poisson(), sampled=True),
    Problem(Tweedie(1.5), kind="sparse", sampled=True, constant=20.0),
    Problem(Multinomial(3), kind="categorical", sampled=True, alpha=0.02),
]


@pytest.mark.parametrize("problem", CASES, ids=lambda p: f"{p.family.name}, {p.kind}")
def test_rows_are_the_papers_two_equations(problem):
    """With renewals of C and γ, limits of single rows, and the penalty now and then."""
    path, expected = problem.path(), by_hand(problem)
    scores, fishers = path.learn(problem.block)
    for name in ("theta", "v", "C", "S"):
        close(getattr(path.arrays, name), expected[name], name, 1e-9)
    close(scores, expected["scores"], "scores")
    close(fishers, expected["fishers"], "fishers")
    for name in ("gamma", "noise", "limited", "loss", "pearson", "q", "q_squared"):
        close(getattr(path.state, name), expected[name], name)
    assert path.state.k == START + N
    if problem.constant > 1:
        assert path.state.limited > 0


@pytest.mark.parametrize("kind", ["dense", "sparse", "categorical"])
def test_rows_cut_in_two_are_the_same_rows(kind):
    """To rounding: lazily scaled coefficients are made whole at the cut."""
    problem = Problem(Logit(), kind=kind)
    whole, parts = problem.path(), problem.path()
    whole.learn(problem.block, keep=False)
    for rows in (slice(0, 137), slice(137, N)):
        parts.learn(problem.block.take(rows), keep=False)
    assert parts.state.k == whole.state.k
    for name in ("theta", "v", "S"):
        close(getattr(parts.arrays, name), getattr(whole.arrays, name), name, 1e-12)
    scores, fishers = whole.learn(problem.block.take(slice(0, 3)), keep=False)
    assert scores.shape == (0, 1)
    assert fishers.shape == (0, 1, 1)


def test_an_outlier_moves_eta_by_the_bound_at_most():
    """A Poisson count of 10⁶ where one is expected."""
    problem = Problem(Poisson(), constant=100.0)
    path = problem.path()
    row = problem.block.take(slice(0, 1))._replace(y=np.array([1e6]))
    eta = problem.z[0] @ path.arrays.theta[0]
    path.learn(row)
    moved = (problem.z[0] @ path.arrays.theta[0] - eta) / path.state.dt
    assert moved == pytest.approx(LARGEST_MOVE, rel=1e-9)
    assert path.state.limited == 1


def test_a_row_of_high_leverage_is_fitted_at_most():
    """With γ q = 1 a gaussian row's tangent is cancelled: z·(θ - v) becomes y."""
    problem = Problem(Gaussian(), constant=1e6)
    problem.statistics["q_squared"] = 1e-9
    path, row = problem.path(), problem.block.take(slice(0, 1))
    path.arrays.v[:] = np.random.default_rng(0).normal(size=path.arrays.v.shape)
    theta = path.arrays.theta.copy()
    path.learn(row)
    fitted = problem.z[0] @ (theta - path.arrays.v)[0] + row.offset[0]
    assert fitted == pytest.approx(row.y[0], abs=1e-9)


def test_columns_without_curvature_stay():
    problem = Problem(Logit())
    problem.fisher[:, 2] = 0.0
    path = problem.path()
    path.learn(problem.block.take(slice(0, 5)))
    assert path.arrays.C[0, 2] == 0
    assert path.arrays.theta[0, 2] == problem.theta[0, 2]


def test_nothing_learned_keeps_gamma():
    problem = Problem(Logit())
    problem.statistics["q"] = 0.0
    assert problem.path().state.gamma == 0


def test_mistakes_are_rows_of_the_less_likely_class():
    for family in (Logit(), Multinomial(3)):
        problem = Problem(family)
        path = problem.path()
        scores, _ = path.learn(problem.block)
        p = 1 + np.minimum(scores / problem.block.weights[:, None], 0).min(axis=1)
        p = np.where(
            problem.block.y > 0, p, 1 - np.maximum(scores, 0).sum(axis=1) / problem.block.weights
        )
        assert path.state.mistakes == np.count_nonzero(p < 0.5) > 10


def test_columns_that_come_later_begin_at_zero():
    problem = Problem(Poisson(), kind="categorical")
    path, known = problem.path(), problem.path()
    path.grow(WIDTH + 2)
    assert not path.arrays.theta[:, WIDTH:-1].any()
    for each in (path, known):
        each.learn(problem.block)
    kept = np.r_[:WIDTH, WIDTH + 2]
    for name in ("theta", "v", "C", "S"):
        close(getattr(path.arrays, name)[:, kept], getattr(known.arrays, name), name, 1e-12)
    assert not path.arrays.theta[:, WIDTH:-1].any()
