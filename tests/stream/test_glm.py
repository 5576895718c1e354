"""The compiled rows of generalised linear models against the paper's two equations, written densely."""

import functools
import math

import numpy as np
import pytest
import scipy.sparse as sp
from numba import njit
from scipy.special import softmax

from tangograd.stream import families, glm_sparse, tango
from tangograd.stream import glm as kernel
from tangograd.stream.glm_sparse import sparse_rows
from tangograd.stream.vectors import padded

FAMILIES = {
    "gaussian": (families.GAUSSIAN, 0.0),
    "logit": (families.LOGIT, 0.0),
    "probit": (families.PROBIT, 0.0),
    "cloglog": (families.CLOGLOG, 0.0),
    "poisson": (families.POISSON, 0.0),
    "gamma": (families.GAMMA, 0.0),
    "negative binomial": (families.NEGATIVE_BINOMIAL, 0.5),
    "tweedie": (families.TWEEDIE, 1.5),
    "classes": (kernel.MULTINOMIAL, 0.0),
}
FREE = (families.GAUSSIAN, families.GAMMA, families.TWEEDIE)


class Problem:
    """Rows, and the state of a stream that has already seen ``before`` others."""

    def __init__(
        self,
        family="logit",
        n=1,
        d=4,
        *,
        seed=0,
        weighted=False,
        shifted=False,
        centred=True,
        intercept=True,
        alpha=0.0,
        sampled=False,
        before=40,
        gamma=0.02,
        density=0.6,
        dtype=np.float64,
    ):
        rng = np.random.default_rng(seed)
        self.family, self.parameter = FAMILIES[family]
        self.outputs = 3 if family == "classes" else 1
        self.alpha, self.sampled, self.seed = alpha, sampled, seed
        X = rng.normal(size=(n, d)) + (0.7 if centred else 0.0)
        self.X = (X * (rng.random((n, d)) < density)).astype(dtype)
        self.w = rng.uniform(0.3, 2.0, n) if weighted else np.ones(n)
        self.offset = rng.normal(size=n) * 0.3 if shifted else np.zeros(n)
        self.m = rng.normal(size=d) if centred else np.zeros(d)
        truth = rng.normal(size=(self.outputs, d)) / math.sqrt(d)
        self.y = self._responses(truth, rng)
        size = d + 1
        self.theta = rng.normal(size=(self.outputs, size)) * 0.2
        self.v = rng.normal(size=(self.outputs, size)) * 0.3
        self.S = rng.uniform(0.2, 1.0, (self.outputs, size)) * before
        self.C = np.zeros((self.outputs, size))
        self.scalars = np.zeros(kernel.SCALARS)
        self.scalars[kernel.ROWS] = before
        self.scalars[kernel.DT] = 1 / before
        self.scalars[kernel.CONSTANT] = gamma * math.sqrt(before * size)
        self.scalars[kernel.Q] = size * before
        self.scalars[kernel.Q2] = 2 * size**2 * before
        self.scalars[kernel.WEIGHT] = before * 1.1
        self.scalars[kernel.PEARSON] = before * 0.9
        self.scalars[kernel.SCALE] = 1.0
        self.scalars[kernel.INTERCEPT] = float(intercept)
        if not intercept:
            self.theta[:, -1] = self.v[:, -1] = 0.0
        kernel.renew(self.scalars, self.S, self.C, alpha)
        self.size = size

    def _responses(self, truth, rng):
        eta = (self.X - self.m) @ truth.T + self.offset[:, None]
        if self.family == kernel.MULTINOMIAL:
            p = softmax(np.c_[np.zeros(len(eta)), eta], axis=1)
            return np.array([rng.choice(4, p=row) for row in p], dtype=np.float64)
        return np.array(
            [families.draw(self.family, self.parameter, e, 0.8, rng) for e in eta[:, 0]]
        )

    def state(self):
        return [a.copy() for a in (self.theta, self.v, self.C, self.S, self.scalars)]

    def run(self, how="dense", keep=False):
        """The state after all rows, by one of the kernels; and ``products`` of what it kept."""
        theta, v, C, S, scalars = self.state()
        n = len(self.y) if keep else 0
        scores, fishers = (
            np.full((n, self.outputs), np.nan),
            np.full((n, self.outputs, self.outputs), np.nan),
        )
        rng, order = np.random.default_rng(self.seed + 1), np.arange(len(self.y))
        before = (self.y, self.w, self.offset, order, self.m)
        after = (self.alpha, self.sampled, rng, scores, fishers)
        family = (self.family, self.parameter)
        if how == "dense":
            kernel.dense_rows(*family, self.X, *before, theta, v, C, S, scalars, *after)
        elif how == "single":
            parts = (theta[0], v[0], C[0], S[0])
            z, weights = np.full((n, padded(self.size)), np.nan), np.full((2, n), np.nan)
            after = (self.alpha, self.sampled, rng, z, weights)
            kernel.single_rows(*family, self.X, *before, *parts, scalars, *after)
            assert not z[:, self.size :].any()
            z = z[:, : self.size]
            kept = weights[1][:, None, None] * z[:, None] ** 2, weights[0][:, None, None, None]
            return (theta, v, C, S, scalars), kept[0], kept[1] * z[:, None, None] ** 2
        else:
            X = sp.csr_matrix(self.X)
            X = (X.data, X.indices, X.indptr)
            sparse_rows(*family, *X, *before, theta, v, C, S, scalars, *after)
        return (theta, v, C, S, scalars), *self.products(scores, fishers)

    def products(self, scores, fishers):
        """``(s x)²`` and ``F x²``, with x of every row."""
        ones = np.full(len(scores), self.scalars[kernel.INTERCEPT])
        x = np.c_[self.X[: len(scores)] - self.m, ones]
        squares = (scores[..., None] * x[:, None]) ** 2
        return squares, fishers[..., None] * x[:, None, None] ** 2

    def respond(self, eta, y):
        """Loss, gradient and Fisher matrix in the space of the outputs."""
        if self.family != kernel.MULTINOMIAL:
            loss, s, f = families.point(self.family, self.parameter, eta[0], y)
            return loss, np.array([s]), np.array([[f]])
        p = softmax(np.r_[0.0, eta])
        s = p[1:] - (np.arange(1, 4) == y)
        return -math.log(p[int(y)]), s, np.diag(p[1:]) - np.outer(p[1:], p[1:])

    def pseudo(self, eta, y, dispersion, rng):
        """A pseudo-sample of the model."""
        if self.family != kernel.MULTINOMIAL:
            return families.draw(self.family, self.parameter, eta[0], dispersion, rng)
        return float(np.searchsorted(np.cumsum(softmax(np.r_[0.0, eta])), rng.random()))


def by_hand(problem):
    """Definition 1 with dense matrices: all coefficients flat, F̂ the matrix of all of them."""
    theta, v, C, S, scalars = problem.state()
    shape, rng = theta.shape, np.random.default_rng(problem.seed + 1)
    all_scores, all_fishers = [], []
    for i, y in enumerate(problem.y):
        x, w = np.r_[problem.X[i].astype(np.float64) - problem.m, 1.0], problem.w[i]
        scalars[kernel.ROWS] += 1
        k = scalars[kernel.ROWS]
        eta = theta @ x + problem.offset[i]
        loss, s, F = problem.respond(eta, y)
        F_hat = F
        if problem.sampled:
            free = problem.family in FREE
            phi = scalars[kernel.PEARSON] / scalars[kernel.WEIGHT] if free else 1.0
            g = problem.respond(eta, problem.pseudo(eta, y, phi, rng))[1]
            F_hat = np.outer(g, g) / phi
        gradient, fisher = w * np.kron(s, x), w * np.kron(F_hat, np.outer(x, x))
        keeping = 1 - scalars[kernel.DT]
        step = gradient - fisher @ (keeping * v.ravel())
        root = np.sqrt(C.ravel())
        preconditioned = fisher * root[:, None] * root
        q, q2 = np.trace(preconditioned), np.sum(preconditioned**2)
        moved = np.abs((C * step.reshape(shape)) @ x).max()
        moved *= problem.family != families.GAUSSIAN
        gamma = scalars[kernel.GAMMA]
        row_gamma = gamma / max(1.0, gamma * q, gamma * moved / kernel.BOUND)
        v = keeping * v + row_gamma * C * step.reshape(shape)
        theta = theta - v / k
        S += np.outer(w * np.diag(F), x * x)
        scalars[kernel.DT] = 1 / k
        scalars[kernel.Q] += q
        scalars[kernel.Q2] += q2 / max(1.0, gamma * q)
        scalars[kernel.NOISE] += row_gamma * q2
        scalars[kernel.WEIGHT] += w
        scalars[kernel.LOSS] += w * loss
        scalars[kernel.MISTAKES] += loss > math.log(2)
        if problem.family in FREE:
            scalars[kernel.PEARSON] += w * s[0] ** 2 / F[0, 0]
        scalars[kernel.LEVERAGE] += row_gamma < gamma
        if problem.alpha > 0 and k >= scalars[kernel.PENALTY]:
            pull = theta - v
            if problem.family == kernel.MULTINOMIAL:
                pull = pull - pull.sum(axis=0) / 4
            pull[:, -1] = 0.0
            strength = problem.alpha * scalars[kernel.WEIGHT] / k * scalars[kernel.PENALTY_ROWS]
            v = v + gamma * strength * C * pull
            scalars[kernel.PENALTY_ROWS] = max(1, math.floor(kernel.STRIDE / gamma))
            scalars[kernel.PENALTY] = k + scalars[kernel.PENALTY_ROWS]
        if k >= scalars[kernel.RENEWAL]:
            ridge = np.r_[np.full(shape[1] - 1, problem.alpha), 0.0]
            C = 1 / (S / k + ridge * scalars[kernel.WEIGHT] / k)
            C[:, -1] *= scalars[kernel.INTERCEPT]
            scalars[kernel.RENEWAL] = math.ceil(1.05 * k)
            A = scalars[kernel.Q2] / scalars[kernel.Q] / 2
            scalars[kernel.GAMMA] = min(0.5 / A, scalars[kernel.CONSTANT] / math.sqrt(A * k))
        all_scores.append(w * s)
        all_fishers.append(w * F)
    return (theta, v, C, S, scalars), *problem.products(np.array(all_scores), np.array(all_fishers))


def largest_difference(one, other):
    """Over the arrays of two states, relative to their sizes."""
    scratch = [kernel.SCALE, kernel.LAG]  # of the lazy rows
    one, other = ([*state[:4], np.delete(state[4], scratch)] for state in (one, other))
    return max(
        np.abs((a - b) / np.maximum(np.abs(a), 1.0)).max() for a, b in zip(one, other, strict=True)
    )


VARIANTS = {
    "plain": {"centred": False},
    "centred": {},
    "weights": {"weighted": True},
    "offset": {"shifted": True},
    "no intercept": {"intercept": False, "centred": False},
    "penalty": {"alpha": 0.1, "weighted": True},
    "sampled": {"sampled": True},
    "sampled, weights": {"sampled": True, "weighted": True, "shifted": True, "alpha": 0.03},
}
every_family = pytest.mark.parametrize("family", FAMILIES)
every_variant = pytest.mark.parametrize("variant", VARIANTS)
KERNELS = [(name, how) for name in FAMILIES for how in ("single", "dense", "sparse")]
KERNELS.remove(("classes", "single"))
every_kernel = pytest.mark.parametrize(("family", "how"), KERNELS)


@functools.cache
def expectation(family, variant, n, seed):
    """A problem, and what becomes of it by hand."""
    problem = Problem(family, n=n, seed=seed, **VARIANTS[variant])
    return problem, *by_hand(problem)


@every_variant
@every_kernel
def test_one_row_is_the_papers_two_equations(family, how, variant):
    problem, expected, expected_scores, expected_fishers = expectation(family, variant, 1, 0)
    found, scores, fishers = problem.run(how, keep=True)
    assert largest_difference(found, expected) < 1e-13
    assert np.abs(scores - expected_scores).max() < 1e-13
    assert np.abs(fishers - expected_fishers).max() < 1e-13


@every_variant
@every_kernel
def test_many_rows_are_the_papers_two_equations(family, how, variant):
    """With renewals of C and γ, and the penalty now and then."""
    problem, expected, expected_scores, expected_fishers = expectation(family, variant, 200, 3)
    found, scores, fishers = problem.run(how, keep=True)
    assert found[4][kernel.RENEWAL] > problem.scalars[kernel.RENEWAL]
    assert largest_difference(found, expected) < 1e-11
    assert np.abs(scores - expected_scores).max() < 1e-10 * max(1, np.abs(scores).max())
    assert np.abs(fishers - expected_fishers).max() < 1e-10 * max(1, np.abs(fishers).max())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@every_variant
@pytest.mark.parametrize("family", ["logit", "poisson", "classes"])
def test_the_kernels_agree_over_thousands_of_rows(family, variant, dtype):
    problem = Problem(
        family, n=5000, d=12, seed=5, before=200, density=0.2, dtype=dtype, **VARIANTS[variant]
    )
    dense, scores, fishers = problem.run("dense", keep=True)
    others = ["sparse"] if family == "classes" else ["sparse", "single"]
    for how in others:
        found, its_scores, its_fishers = problem.run(how, keep=True)
        assert largest_difference(found, dense) < 1e-12
        assert np.abs(its_scores - scores).max() < 1e-12 * np.abs(scores).max()
        assert np.abs(its_fishers - fishers).max() < 1e-12 * np.abs(fishers).max()


@every_kernel
def test_rows_cut_in_two_or_reordered_are_the_same_rows(family, how):
    """`order` names the row of X; sparse and dense calls may alternate."""
    problem = Problem(family, n=200, seed=6, weighted=True, shifted=True, alpha=0.05)
    expected, _, _ = problem.run(how)
    state = problem.state()
    rng, shuffle = np.random.default_rng(0), np.random.default_rng(1).permutation(200)
    where = np.argsort(shuffle)  # row i of the data is row where[i] of the shuffled X
    X = problem.X[shuffle]
    family_code = (problem.family, problem.parameter)
    none = (np.empty((0, problem.outputs)), np.empty((0, problem.outputs, problem.outputs)))
    for i, here in enumerate((slice(0, 77), slice(77, 200))):
        rest = (problem.y[here], problem.w[here], problem.offset[here], where[here], problem.m)
        end = (problem.alpha, False, rng, *none)
        theta, v, C, S, scalars = state
        if i == 0:
            csr = sp.csr_matrix(X)
            parts = (csr.data, csr.indices, csr.indptr)
            sparse_rows(*family_code, *parts, *rest, theta, v, C, S, scalars, *end)
        else:
            kernel.dense_rows(*family_code, X, *rest, theta, v, C, S, scalars, *end)
    assert largest_difference(state, expected) < 1e-11


def test_rows_are_kept_in_padded_places_alone():
    problem = Problem("logit")
    theta, v, C, S, scalars = (a.ravel() for a in problem.state())
    given = (problem.y, problem.w, problem.offset, np.arange(1), problem.m)
    for columns in (problem.size, 2 * padded(problem.size)):
        z = np.zeros((1, columns))
        end = (0.0, False, np.random.default_rng(0), z, np.empty((2, 1)))
        with pytest.raises(ValueError, match="as many columns as padded"):
            kernel.single_rows(
                problem.family, 0.0, problem.X, *given, theta, v, C, S, scalars, *end
            )


def test_the_place_of_arrays_in_memory_does_not_change_a_bit():
    """Vector loops that store and add up at once must not fall back for close neighbours."""
    problem, allocations = Problem("logit", n=50, d=5, before=100), np.random.default_rng(0)
    seen = set()
    for _ in range(3000):
        others = [np.empty(size) for size in allocations.integers(4, 24, size=200)]
        theta, v, C, S, scalars = problem.state()
        for i in allocations.permutation(200)[:100]:
            others[i] = None
        kernel.single_rows(
            problem.family,
            problem.parameter,
            problem.X,
            *(problem.y, problem.w, problem.offset, np.arange(50), problem.m.copy()),
            *(theta[0], v[0], C[0], S[0], scalars),
            *(0.0, False, np.random.default_rng(0), np.empty((0, 8)), np.empty((2, 0))),
        )
        seen.add(theta.tobytes())
    assert len(seen) == 1


# --- the tie with the one-sample reference


@njit
def one_row(theta, rng, constants, g, g_tilde):
    """Logistic regression on the rows in ``constants``, one after another.

    They are: the number of the row, whether to sample, and then x and y of each.
    """
    d = len(theta)
    start = 2 + int(constants[0]) * (d + 1)
    constants[0] += 1
    eta = 0.0
    for j in range(d):
        eta += theta[j] * constants[start + j]
    p = 1 / (1 + math.exp(-eta))
    spread = p - (1.0 if rng.random() < p else 0.0) if constants[1] else math.sqrt(p * (1 - p))
    for j in range(d):
        g[j] = (p - constants[start + d]) * constants[start + j]
        g_tilde[j] = spread * constants[start + j]


@pytest.mark.parametrize("sampled", [True, False], ids=["sampled", "expected"])
def test_the_kernel_is_the_one_sample_tango(sampled):
    problem = Problem("logit", n=400, d=3, centred=False, sampled=sampled, before=30, gamma=1e-3)
    problem.scalars[kernel.RENEWAL] = np.inf  # γ and C stay
    gamma = problem.scalars[kernel.GAMMA]
    found, _, _ = problem.run("single")
    rows = np.c_[problem.X, np.ones(400), problem.y]
    run = tango(
        one_row,
        problem.theta[0],
        v=problem.v[0],
        C=problem.C[0],
        gamma=gamma,
        dt=1 / np.arange(30.0, 431.0),
        steps=400,
        constants=np.r_[0.0, float(sampled), rows.ravel()],
        rng=np.random.default_rng(problem.seed + 1),
    )
    assert found[4][kernel.LEVERAGE] == 0
    assert np.abs(found[0][0] - run.theta[-1]).max() < 1e-12
    assert np.abs(found[1][0] - run.v[-1]).max() < 1e-12


# --- γ and C


def scalars_with(**values):
    scalars = np.zeros(kernel.SCALARS)
    for name, value in values.items():
        scalars[getattr(kernel, name)] = value
    return scalars


@pytest.mark.parametrize(
    ("gamma", "q", "moved", "expected"),
    [
        (0.1, 5.0, 1.0, 0.1),  # free
        (0.1, 20.0, 1.0, 1 / 20),  # γ q ≤ 1
        (0.1, 5.0, 60.0, kernel.BOUND / 60),  # γ moved ≤ BOUND
        (0.1, 20.0, 90.0, kernel.BOUND / 90),  # both
        (0.1, 0.0, 0.0, 0.1),  # a row of weightless Fisher information
    ],
)
def test_a_rows_gamma_is_bounded(gamma, q, moved, expected):
    scalars = scalars_with(GAMMA=gamma)
    found = kernel.rate(scalars, 2.0, 0.5, True, q, q * q, 3.0, moved)
    assert math.isclose(found, expected, rel_tol=1e-15)
    assert scalars[kernel.GAMMA] == gamma
    assert scalars[kernel.LEVERAGE] == (expected < gamma)
    assert scalars[kernel.Q] == q
    assert math.isclose(scalars[kernel.Q2], q * min(q, 1 / gamma), rel_tol=1e-15)
    assert math.isclose(scalars[kernel.NOISE], expected * q * q, rel_tol=1e-15)
    assert (scalars[kernel.WEIGHT], scalars[kernel.LOSS], scalars[kernel.PEARSON]) == (2, 1, 6)
    assert scalars[kernel.MISTAKES] == 1


def test_factors_of_the_likelihood_share_logarithms():
    """Of one weight, until it changes or their product would be no number; 1 says nothing."""
    rng = np.random.default_rng(0)
    for weights in (np.ones(3000), rng.choice([0.5, 2.0], 3000), rng.uniform(0.1, 3, 3000)):
        factors = rng.choice([2.0, 1.7, 1.0, 1 + rng.random()], 3000)
        scalars, product, common = scalars_with(LOSS=7.0), 1.0, 1.0
        for w, factor in zip(weights, factors, strict=True):
            product, common = kernel.factored(scalars, w, factor, product, common)
            assert product < 2 * kernel.LARGEST_PRODUCT
        loss = scalars[kernel.LOSS] + common * math.log(product)
        assert math.isclose(loss, 7 + weights @ np.log(factors), rel_tol=1e-13)


@pytest.mark.parametrize("how", ["single", "dense", "sparse"])
def test_an_outlier_moves_eta_by_the_bound_at_most(how):
    """A Poisson count of 10⁶ where one is expected."""
    problem = Problem("poisson", n=1, centred=False)
    problem.y[:] = 1e6
    (theta, v, _, _, scalars), _, _ = problem.run(how)
    x = np.r_[problem.X[0], 1.0]
    kept = (1 - problem.scalars[kernel.DT]) * problem.v
    assert math.isclose(abs(x @ (v - kept)[0]), kernel.BOUND, rel_tol=1e-12)
    k = problem.scalars[kernel.ROWS] + 1
    assert np.abs(theta - (problem.theta - v / k)).max() < 1e-15
    assert scalars[kernel.LEVERAGE] == 1


@pytest.mark.parametrize("how", ["single", "dense", "sparse"])
def test_a_row_of_high_leverage_is_fitted_at_most(how):
    """With γ q = 1 a gaussian row's tangent is cancelled: x·(θ - v) becomes y."""
    problem = Problem("gaussian", n=1, centred=False)
    problem.scalars[kernel.GAMMA] = 1.0
    (_, v, _, _, scalars), _, _ = problem.run(how)
    x = np.r_[problem.X[0], 1.0]
    assert math.isclose(x @ (problem.theta - v)[0], problem.y[0], rel_tol=1e-12)
    assert scalars[kernel.LEVERAGE] == 1


@pytest.mark.parametrize(
    ("constant", "expected"), [(0.01, 0.01 / math.sqrt(3 * 100)), (1e9, 0.5 / 3)]
)
def test_renewal(constant, expected):
    """A = Q2/2Q = 3, k = 100, Σw/k = 2."""
    scalars = scalars_with(
        ROWS=100, Q=50.0, Q2=300.0, WEIGHT=200.0, CONSTANT=constant, INTERCEPT=1.0
    )
    S, C = np.array([[50.0, 0.0, 10.0]]), np.full((1, 3), np.nan)
    kernel.renew(scalars, S, C, 0.25)
    assert np.allclose(C, [[1 / (0.5 + 0.5), 0.0, 1 / 0.1]], rtol=1e-15, atol=0)
    assert math.isclose(scalars[kernel.GAMMA], expected, rel_tol=1e-14)
    assert scalars[kernel.RENEWAL] == 105


def test_penalties_miss_no_rows():
    """The rows that each is applied for are those since the last, renewals in between or not."""
    problem = Problem("logit", n=1000, d=2, alpha=0.1, before=100, gamma=2e-3)
    _, _, _, _, scalars = state = problem.state()
    applied, last = 0.0, scalars[kernel.ROWS]
    renewals, none = set(), (np.empty((0, 1)), np.empty((0, 1, 1)))
    for i in range(1000):
        here = slice(i, i + 1)
        due, rows = scalars[kernel.PENALTY], scalars[kernel.PENALTY_ROWS]
        kernel.dense_rows(
            problem.family,
            0.0,
            problem.X[here],
            problem.y[here],
            problem.w[here],
            problem.offset[here],
            np.zeros(1, np.int64),
            problem.m,
            *state,
            problem.alpha,
            False,
            np.random.default_rng(0),
            *none,
        )
        renewals.add(scalars[kernel.RENEWAL])
        if scalars[kernel.PENALTY] > due:
            applied, last = applied + rows, scalars[kernel.ROWS]
    assert len(renewals) > 20
    assert applied == last - 100 > 900


@pytest.mark.parametrize("how", ["single", "dense", "sparse"])
def test_columns_without_curvature_stay(how):
    problem = Problem("logit", n=100, centred=False)
    problem.X[:, 2] = 0.0
    problem.S[:, 2] = problem.v[:, 2] = 0.0
    kernel.renew(problem.scalars, problem.S, problem.C, 0.0)
    (theta, v, C, _, _), _, _ = problem.run(how)
    assert theta[0, 2] == problem.theta[0, 2]
    assert v[0, 2] == C[0, 2] == 0


# --- cost


class Counted(np.ndarray):
    """An array that counts its uses."""

    uses = 0

    def __getitem__(self, key):
        Counted.uses += 1
        return super().__getitem__(key)

    def __setitem__(self, key, value):
        Counted.uses += 1
        super().__setitem__(key, value)


def uncounted(function):
    """The same, on arrays whose uses by it do not count."""

    def call(*arguments):
        before = Counted.uses
        function(*(np.asarray(a) if isinstance(a, Counted) else a for a in arguments))
        Counted.uses = before

    return call


@pytest.mark.parametrize("centred", [False, True])
def test_a_sparse_row_costs_its_non_zeros(monkeypatch, centred):
    """The same rows in ten columns and among a thousand others read and write as often."""
    for name in ("fold", "centre"):  # between renewals of C, and at both ends
        monkeypatch.setattr(glm_sparse, name, uncounted(getattr(glm_sparse, name)))
    uses = []
    for extra in (0, 1000):
        problem = Problem("logit", n=30, d=10, seed=2, before=10_000, centred=centred)
        X = sp.csr_matrix(np.pad(problem.X, ((0, 0), (0, extra))))
        arrays = [
            np.insert(a, [10] * extra, 0.5, axis=1)
            for a in (problem.theta, problem.v, problem.C, problem.S)
        ]
        m = np.r_[problem.m, np.full(extra, 0.1 if centred else 0.0)]
        Counted.uses = 0
        sparse_rows.py_func(
            problem.family,
            problem.parameter,
            X.data,
            X.indices,
            X.indptr,
            problem.y,
            problem.w,
            problem.offset,
            np.arange(30),
            m.view(Counted),
            *(a.view(Counted) for a in arrays),
            problem.scalars.copy(),
            0.0,
            False,
            np.random.default_rng(0),
            np.empty((0, 1)),
            np.empty((0, 1, 1)),
        )
        uses.append(Counted.uses)
    assert uses[0] == uses[1]
    assert uses[0] < 30 * X.nnz
