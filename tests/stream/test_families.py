"""Each family's loss, score, Fisher weight and pseudo-samples, against scipy's distributions."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit
from sklearn.metrics import mean_tweedie_deviance

from tangograd.stream import families as compiled

PHI = 0.7
ETAS = np.array([-3.1, -1.0, -0.2, 0.0, 0.4, 1.3, 2.2])


@dataclass(frozen=True)
class Case:
    """A family with the distribution of scipy that it should be."""

    code: int
    mean: object
    distribution: object  # of a mean
    targets: tuple
    parameter: float = 0.0
    dispersion: float = 1.0


def bernoulli(mu):
    return stats.bernoulli(mu)


BINARY = (0.0, 1.0)
COUNTS = (0.0, 1.0, 2.0, 9.0)
CASES = {
    "gaussian": Case(
        compiled.GAUSSIAN,
        lambda eta: eta,
        lambda mu: stats.norm(mu, math.sqrt(PHI)),
        (-2.0, 0.0, 1.7),
        dispersion=PHI,
    ),
    "logit": Case(compiled.LOGIT, expit, bernoulli, BINARY),
    "probit": Case(compiled.PROBIT, stats.norm.cdf, bernoulli, BINARY),
    "cloglog": Case(compiled.CLOGLOG, lambda eta: -np.expm1(-np.exp(eta)), bernoulli, BINARY),
    "poisson": Case(compiled.POISSON, np.exp, stats.poisson, COUNTS),
    "gamma": Case(
        compiled.GAMMA,
        np.exp,
        lambda mu: stats.gamma(1 / PHI, scale=mu * PHI),
        (0.1, 1.0, 4.0),
        dispersion=PHI,
    ),
    "negative binomial": Case(
        compiled.NEGATIVE_BINOMIAL,
        np.exp,
        lambda mu: stats.nbinom(1 / 0.4, 1 / (1 + 0.4 * mu)),
        COUNTS,
        parameter=0.4,
    ),
    "tweedie": Case(compiled.TWEEDIE, np.exp, None, (0.0, 0.3, 5.0), parameter=1.6, dispersion=PHI),
}
POINTS = [(name, y) for name, case in CASES.items() for y in case.targets]
every_family = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_target = pytest.mark.parametrize(
    ("case", "y"), [(CASES[name], y) for name, y in POINTS], ids=[f"{n}-{y}" for n, y in POINTS]
)


def point(case, eta, y):
    return compiled.point(case.code, case.parameter, float(eta), float(y))


def variance(case, mu):
    if case.distribution is None:
        return PHI * mu**case.parameter
    return case.distribution(mu).var()


@every_family
def test_mean_is_the_links_inverse(case):
    found = compiled.means(case.code, ETAS)
    assert np.abs(found - case.mean(ETAS)).max() < 1e-14 * np.abs(found).max()


@every_target
def test_a_factor_of_the_likelihood_apart(case, y):
    for eta in [*ETAS, 0.0, -0.0, 1e-9, 710.0, -710.0]:
        rest, factor, *others = compiled.parts(case.code, case.parameter, float(eta), float(y))
        loss, *expected = point(case, eta, y)
        assert others == expected
        assert 1 <= factor <= (2 if case.code == compiled.LOGIT else 1)
        assert np.isclose(rest + np.log(factor), loss, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("y", [0, 1])
@pytest.mark.parametrize("link", ["LOGIT", "PROBIT", "CLOGLOG"])
def test_a_mistake_is_the_less_likely_of_two(link, y):
    code = getattr(compiled, link)
    even = np.log(np.log(2)) if link == "CLOGLOG" else 0.0
    for away in [1e-9, 0.1, 0.3, 3.0, 30.0, 400.0]:
        for eta in (even + away, even - away):
            rest, factor, _, _ = compiled.parts(code, 0.0, eta, float(y))
            assert compiled.is_mistake(rest, factor) == (eta < even if y else eta > even)


@every_target
def test_score_is_the_derivative_of_the_loss(case, y):
    h = 1e-5
    for eta in ETAS:
        slope = (point(case, eta + h, y)[0] - point(case, eta - h, y)[0]) / (2 * h)
        s = point(case, eta, y)[1]
        assert abs(s - slope) < 1e-8 * (1 + abs(s))


@every_target
def test_loss_is_minus_the_log_likelihood_times_the_dispersion(case, y):
    """Up to a function of y, so differences in η are compared."""
    for eta in ETAS[1:]:
        ours = point(case, eta, y)[0] - point(case, ETAS[0], y)[0]
        mu, start = case.mean(eta), case.mean(ETAS[0])
        if case.distribution is None:  # twice the loss is the deviance
            there, here = (
                mean_tweedie_deviance([y], [m], power=case.parameter) / 2 for m in (mu, start)
            )
        else:
            log = "logpdf" if case.code in (compiled.GAUSSIAN, compiled.GAMMA) else "logpmf"
            there, here = (
                -case.dispersion * getattr(case.distribution(m), log)(y) for m in (mu, start)
            )
        assert abs(ours - (there - here)) < 1e-11 * (1 + abs(there) + abs(here))


@every_family
def test_fisher_weight_is_the_mean_of_both_its_definitions(case):
    """E[s'] and E[s²]/φ; s is affine in y, so the mean and the variance of y give both."""
    h = 1e-5
    for eta in ETAS:
        mu = case.mean(eta)
        _, at_zero, f = point(case, eta, 0.0)
        _, at_one, _ = point(case, eta, 1.0)
        slope = at_one - at_zero
        assert abs(point(case, eta, 5.0)[1] - (at_zero + 5 * slope)) < 1e-12 * (1 + abs(5 * slope))
        assert abs(at_zero + mu * slope) < 1e-12 * (1 + abs(at_zero))
        derivative = (point(case, eta + h, mu)[1] - point(case, eta - h, mu)[1]) / (2 * h)
        assert abs(f - derivative) < 1e-8 * (1 + f)
        assert abs(f - slope**2 * variance(case, mu) / case.dispersion) < 1e-11 * f


@every_family
def test_sums_over_all_counts_give_the_fisher_weight(case):
    """The same with no use of affinity, where y is discrete."""
    if case.code in (compiled.GAUSSIAN, compiled.GAMMA, compiled.TWEEDIE):
        at = np.polynomial.legendre.leggauss(400)
        if case.distribution is None:
            return  # no density; `test_draws` has its moments
        u, weights = (at[0] + 1) / 2, at[1] / 2
        quantiles, chances = lambda mu: case.distribution(mu).ppf(u), lambda mu: weights
        accuracy = 2e-3  # of the quadrature in the tails
    else:
        counts = np.arange(2.0 if case.targets == BINARY else 2000.0)
        quantiles, chances = lambda mu: counts, lambda mu: case.distribution(mu).pmf(counts)
        accuracy = 1e-11
    for eta in ETAS:
        mu = case.mean(eta)
        y, p = quantiles(mu), chances(mu)
        _, s, f = compiled.points(case.code, case.parameter, np.full(len(y), eta), y)
        assert abs(p @ s) < accuracy * (1 + np.abs(s).max() * accuracy)
        assert abs(p @ s**2 / case.dispersion - f[0]) < accuracy * f[0]


@every_target
def test_extreme_predictors_stay_finite_and_cost_no_less(case, y):
    """The loss rises, or stays, on the way out from its minimum: line searches rely on it."""
    etas = np.array(
        [-1e4, -700, -300, -100, -60, -50, -40, -20, -8, 8, 20, 40, 50, 60, 100, 700, 1e4]
    )
    loss, s, f = compiled.points(case.code, case.parameter, etas, np.full(len(etas), y))
    for part in (loss, s, f):
        assert np.isfinite(part).all()
    assert (f >= 0).all()
    slack = 1e-12 * (1 + np.abs(loss).max())
    left, right = loss[etas < 0], loss[etas > 0]
    left_rises, right_rises = s[etas < 0] < 0, s[etas > 0] > 0
    assert (np.diff(left)[left_rises[:-1]] <= slack).all()
    assert (np.diff(right)[right_rises[1:]] >= -slack).all()


@pytest.mark.parametrize("eta", [-1.5, 0.8])
@every_family
def test_draws_have_the_mean_the_variance_and_the_fisher_weight(case, eta):
    """Within five standard errors."""
    rng, n = np.random.default_rng(7), 20_000
    y = np.array(
        [compiled.draw(case.code, case.parameter, eta, case.dispersion, rng) for _ in range(n)]
    )
    mu = case.mean(eta)
    _, s, f = compiled.points(case.code, case.parameter, np.full(n, eta), y)
    for sample, expected in (
        (y, mu),
        ((y - mu) ** 2, variance(case, mu)),
        (s, 0.0),
        (s**2 / case.dispersion, f[0]),
    ):
        assert abs(sample.mean() - expected) < 5 * sample.std() / math.sqrt(n)


def test_tweedie_draws_are_zero_as_often_as_they_should():
    case, rng, n = CASES["tweedie"], np.random.default_rng(8), 20_000
    zeros = np.mean(
        [compiled.draw(case.code, case.parameter, 0.5, PHI, rng) == 0 for _ in range(n)]
    )
    expected = math.exp(-math.exp(0.5 * (2 - 1.6)) / (PHI * (2 - 1.6)))
    assert abs(zeros - expected) < 5 * math.sqrt(expected / n)


@every_family
def test_extreme_draws_are_in_the_domain(case):
    rng = np.random.default_rng(9)
    for eta in (-700.0, -40.0, 40.0, 45.0, 700.0):
        y = compiled.draw(case.code, case.parameter, eta, case.dispersion, rng)
        assert math.isfinite(y)
        assert y >= 0 or case.code == compiled.GAUSSIAN


def test_mills_ratio_of_the_probit_keeps_its_digits_far_out():
    """s of a success at η is -φ/Φ, and its logarithm is scipy's."""
    case = CASES["probit"]
    for eta in (-29.0, -15.0, -6.0, -1.0, 3.0, 8.0):
        loss, s, _ = point(case, eta, 1.0)
        assert math.isclose(-loss, stats.norm.logcdf(eta), rel_tol=1e-12, abs_tol=1e-16)
        ratio = math.exp(stats.norm.logpdf(eta) - stats.norm.logcdf(eta))
        assert math.isclose(-s, ratio, rel_tol=1e-11)


def test_a_share_is_a_mixture_of_failure_and_success():
    for name in ("logit", "probit", "cloglog"):
        both = np.array([point(CASES[name], 0.3, y)[:2] for y in BINARY])
        assert np.allclose(point(CASES[name], 0.3, 0.25)[:2], [0.75, 0.25] @ both, rtol=1e-14)
