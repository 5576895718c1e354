"""Each family against its definition: scipy's distributions, statsmodels, central differences."""

import copy
import math
import pickle
from typing import NamedTuple

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from scipy.special import expit, softmax
from sklearn.base import clone
from sklearn.metrics import mean_tweedie_deviance

from tangograd.glm import TangoRegressor
from tangograd.glm.errors import DataError
from tangograd.glm.families import (
    Cloglog,
    Family,
    Gamma,
    Gaussian,
    Logit,
    Multinomial,
    NegativeBinomial,
    Poisson,
    Probit,
    Tweedie,
    by_name,
    evaluate,
    expansion_points,
    means,
    names,
    samples,
)
from tangograd.glm.families.base import REAL_NUMBERS, REGISTRY

PHI = 0.7
ETAS = np.array([-3.1, -1.0, -0.2, 0.0, 0.4, 1.3, 2.2])
FAR = np.array([-1e4, -700, -300, -100, -60, -50, -40, -20, -8, 8, 20, 40, 50, 60, 100, 700, 1e4])
links = sm.families.links


class Case(NamedTuple):
    """A family with what it should be.

    Attributes:
        family: ours.
        theirs: of statsmodels.
        distribution: of scipy, from a mean; None where there is none.
        targets: some, those on the border of the support among them.
        dispersion: φ.
    """

    family: Family
    theirs: object
    distribution: object
    targets: tuple
    dispersion: float = 1.0


BINARY, COUNTS = (0.0, 1.0, 0.3), (0.0, 1.0, 2.0, 9.0)
CASES = {
    "gaussian": Case(
        Gaussian(),
        sm.families.Gaussian(),
        lambda mu: stats.norm(mu, math.sqrt(PHI)),
        (-2.0, 0.0, 1.7),
        PHI,
    ),
    "logit": Case(Logit(), sm.families.Binomial(), stats.bernoulli, BINARY),
    "probit": Case(Probit(), sm.families.Binomial(links.Probit()), stats.bernoulli, BINARY),
    "cloglog": Case(Cloglog(), sm.families.Binomial(links.CLogLog()), stats.bernoulli, BINARY),
    "poisson": Case(Poisson(), sm.families.Poisson(), stats.poisson, COUNTS),
    "gamma": Case(
        Gamma(),
        sm.families.Gamma(links.Log()),
        lambda mu: stats.gamma(1 / PHI, scale=mu * PHI),
        (0.1, 1.0, 4.0),
        PHI,
    ),
    "negative binomial": Case(
        NegativeBinomial(0.4),
        sm.families.NegativeBinomial(links.Log(), alpha=0.4),
        lambda mu: stats.nbinom(1 / 0.4, 1 / (1 + 0.4 * mu)),
        COUNTS,
    ),
    "tweedie": Case(
        Tweedie(1.6),
        sm.families.Tweedie(links.Log(), var_power=1.6, eql=True),
        None,
        (0.0, 0.3, 5.0),
        PHI,
    ),
}
every_family = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def grid(case, etas=ETAS):
    """η and y of all pairs."""
    eta, y = np.meshgrid(etas, case.targets, indexing="ij")
    return eta.ravel(), y.ravel()


def variance(case, mu):
    if case.distribution is None:
        return case.dispersion * mu**case.family.power
    return case.distribution(mu).var()


@every_family
def test_compiled_and_plain_methods_agree(case):
    eta, y = grid(case)
    found = np.array(evaluate(case.family, eta, y))
    plain = np.array([case.family.point(*row) for row in zip(eta, y, strict=True)]).T
    np.testing.assert_allclose(found, plain, rtol=1e-14, atol=1e-15)
    for compiled, name in ((means, "mean"), (expansion_points, "expansion_point")):
        given = (eta,) if name == "mean" else (eta, y)
        rows = [getattr(case.family, name)(*row) for row in zip(*given, strict=True)]
        np.testing.assert_allclose(compiled(case.family, *given), rows, rtol=1e-15)


@every_family
def test_means_and_linear_predictors_are_those_of_the_link(case):
    found = means(case.family, ETAS)
    np.testing.assert_allclose(found, case.theirs.link.inverse(ETAS), rtol=1e-13)
    np.testing.assert_allclose(case.family.linear_predictor(found), ETAS, atol=1e-12)
    assert np.isfinite(case.family.linear_predictor(np.array([0.0, 1.0]))).all()
    assert means(case.family, ETAS[:, None]).shape == (len(ETAS), 1)


@every_family
def test_score_and_observed_information_are_derivatives(case):
    eta, y = grid(case)
    h = 1e-5
    above, here, below = (evaluate(case.family, eta + step, y) for step in (h, 0.0, -h))
    slope = (above.loss - below.loss) / (2 * h)
    np.testing.assert_allclose(here.score, slope, rtol=1e-8, atol=1e-8)
    curvature = (above.score - below.score) / (2 * h)
    np.testing.assert_allclose(here.observed, curvature, rtol=1e-7, atol=1e-8)


@every_family
def test_fisher_information_is_both_expectations(case):
    """E[h] and E[s²]/φ; s and h are affine in y, so mean and variance of y give both."""
    mu = means(case.family, ETAS)
    at_mean, zero, one = (
        evaluate(case.family, ETAS, y) for y in (mu, np.zeros(len(mu)), np.ones(len(mu)))
    )
    slope = one.score - zero.score
    np.testing.assert_allclose(at_mean.score, 0.0, atol=1e-12)
    np.testing.assert_allclose(at_mean.fisher, at_mean.observed, rtol=1e-11)
    expected = slope**2 * variance(case, mu) / case.dispersion
    np.testing.assert_allclose(at_mean.fisher, expected, rtol=1e-11)
    five = evaluate(case.family, ETAS, np.full(len(mu), 5.0))
    for part in ("score", "observed"):
        a, b, c = (getattr(each, part) for each in (zero, one, five))
        np.testing.assert_allclose(c, a + 5 * (b - a), rtol=1e-10, atol=1e-11)
    assert case.family.canonical == (np.abs(one.observed - one.fisher).max() < 1e-13)
    assert (at_mean.observed is at_mean.fisher) == case.family.canonical
    np.testing.assert_allclose(
        case.family.variance(mu) * case.dispersion, variance(case, mu), rtol=1e-12
    )


@every_family
def test_loss_is_minus_the_log_likelihood_times_the_dispersion(case):
    """Up to a function of y, so differences in η are compared."""
    mu = means(case.family, ETAS)
    for y in case.targets:
        if y % 1 and case.distribution is stats.bernoulli:
            continue
        loss = evaluate(case.family, ETAS, np.full(len(ETAS), y)).loss
        if case.distribution is None:  # twice the loss is the deviance
            expected = [mean_tweedie_deviance([y], [m], power=1.6) / 2 for m in mu]
        else:
            log = "logpdf" if case.family.name in ("gaussian", "gamma") else "logpmf"
            expected = [-case.dispersion * getattr(case.distribution(m), log)(y) for m in mu]
        np.testing.assert_allclose(np.diff(loss), np.diff(expected), rtol=1e-10, atol=1e-11)


@every_family
def test_extreme_predictors_stay_finite_and_cost_no_less(case):
    """The loss rises, or stays, on the way out from its minimum: line searches rely on it."""
    for target in case.targets:
        y = np.full(len(FAR), target)
        found = evaluate(case.family, FAR, y)
        assert np.isfinite(found).all()
        assert (found.fisher >= 0).all()
        assert (found.observed >= 0).all()
        loss, s = found.loss, found.score
        slack = 1e-12 * (1 + np.abs(loss).max())
        left, right = FAR < 0, FAR > 0
        assert (np.diff(loss[left])[s[left][:-1] < 0] <= slack).all()
        assert (np.diff(loss[right])[s[right][1:] > 0] >= -slack).all()
        points = expansion_points(case.family, FAR, y)
        assert ((points == FAR) | (np.sign(FAR - points) == np.sign(s))).all()


@pytest.mark.parametrize(
    ("family", "y", "eta", "expected"),
    [
        (Logit(), 1.0, [-20, -8, 20], [-8, -8, 20]),
        (Logit(), 0.0, [-20, 8, 20], [-20, 8, 8]),
        (Logit(), 0.5, [-20, 3, 20], [-8, 3, 8]),
        (Cloglog(), 1.0, [-20, 0, 20], [-8, 0, 20]),
        (Cloglog(), 0.0, [-20, 0, 20], [-20, 0, 4]),
        (Poisson(), 0.0, [-20, 20], [-20, math.log(0.5) + 5]),
        (Poisson(), 9.0, [-20, 20], [-20, math.log(9) + 5]),
        (NegativeBinomial(1.0), 9.0, [-20, 20], [-20, math.log(9) + 5]),
        (Gamma(), 4.0, [-20, 20], [math.log(4) - 5, 20]),
        (Tweedie(1.5), 4.0, [-20, 20], [math.log(4) - 10, math.log(4) + 10]),
        (Tweedie(1.5), 0.0, [-20, 20], [-20, 20]),
        (Gaussian(), 4.0, [-20, 20], [-20, 20]),
        (Probit(), 1.0, [-20, 20], [-20, 20]),
    ],
    ids=str,
)
def test_expansion_points_are_limited_on_the_side_that_contradicts_the_target(
    family, y, eta, expected
):
    found = expansion_points(family, eta, np.full(len(eta), y))
    np.testing.assert_allclose(found, expected, rtol=1e-15)


@pytest.mark.parametrize("eta", [-1.5, 0.8])
@every_family
def test_samples_have_the_mean_the_variance_and_the_fisher_information(case, eta):
    """Within five standard errors."""
    rng, n = np.random.default_rng(7), 20_000
    at = np.full(n, eta)
    y = samples(case.family, at, case.dispersion, rng)
    mu = means(case.family, [eta])[0]
    found = evaluate(case.family, at, y)
    for sample, expected in (
        (y, mu),
        ((y - mu) ** 2, variance(case, mu)),
        (found.score, 0.0),
        (found.score**2 / case.dispersion, found.fisher[0]),
    ):
        assert abs(sample.mean() - expected) < 5 * sample.std() / math.sqrt(n)


def test_tweedie_samples_are_zero_as_often_as_they_should():
    n = 20_000
    y = samples(Tweedie(1.6), np.full(n, 0.5), PHI, np.random.default_rng(8))
    expected = math.exp(-math.exp(0.5 * (2 - 1.6)) / (PHI * (2 - 1.6)))
    assert abs(np.mean(y == 0) - expected) < 5 * math.sqrt(expected / n)


@every_family
def test_extreme_samples_are_in_the_support(case):
    eta = np.array([-700.0, -40.0, 40.0, 45.0, 700.0])
    y = samples(case.family, eta, case.dispersion, np.random.default_rng(9))
    closed = case.family.support._replace(closed=True)  # a tiny amount may round to 0
    assert closed.contains(y).all()


@every_family
def test_deviance_and_log_likelihood_are_statsmodels(case):
    rng, n = np.random.default_rng(1), 200
    ours, eta, w = case.family, rng.normal(size=n), rng.integers(1, 4, n).astype(float)
    y = samples(ours, eta, case.dispersion, rng)
    mu = case.theirs.link.inverse(eta)
    deviance = float(w @ ours.unit_deviance(y, eta))
    if ours.name == "tweedie":
        theirs = w.sum() * mean_tweedie_deviance(y, mu, sample_weight=w, power=1.6)
        assert deviance == pytest.approx(theirs, rel=1e-12)
        assert math.isnan(ours.log_likelihood(1.0, 0.0, 0.0, 10.0, 1.0))
        return
    assert deviance == pytest.approx(case.theirs.deviance(y, mu, freq_weights=w), rel=1e-12)
    parts = (evaluate(ours, eta, y).loss, ours.saturated_loss(y), ours.log_normalizer(y))
    # for gaussian models the dispersion is that of the likelihood's maximum
    scale = deviance / w.sum() if ours.name == "gaussian" else case.dispersion
    found = ours.log_likelihood(*(float(w @ part) for part in parts), float(w.sum()), scale)
    expected = case.theirs.loglike(y, mu, freq_weights=w, scale=scale)
    assert found == pytest.approx(expected, rel=1e-12)


@every_family
def test_saturated_loss_is_the_least(case):
    y = np.array([0.2, 0.5, 0.9]) if case.family.classes else np.array([0.1, 1.0, 7.0])
    own, least = case.family.linear_predictor(y), case.family.saturated_loss(y)
    np.testing.assert_allclose(evaluate(case.family, own, y).loss, least, atol=1e-12, rtol=1e-12)
    for other in (own + 0.1, own - 0.1):
        assert (evaluate(case.family, other, y).loss > least).all()
    border = np.array([0.0, 1.0])
    if case.family.support.contains(border).all():
        assert np.isfinite(case.family.saturated_loss(border)).all()


@every_family
def test_constant_loss_is_that_of_the_mean(case):
    rng = np.random.default_rng(2)
    y, w = samples(case.family, np.full(50, 0.3), case.dispersion, rng), rng.random(50)
    mean = float(w @ y / w.sum())
    found = case.family.constant_loss(mean, float(w.sum()), float(w @ (y - mean) ** 2))
    eta = np.full(50, case.family.linear_predictor(np.array([mean]))[0])
    assert found == pytest.approx(float(w @ evaluate(case.family, eta, y).loss), rel=1e-12)


def test_gaussian_deviance_keeps_its_digits_far_from_zero():
    y = 1e8 + np.array([0.25, -0.5, 1.0])
    assert np.array_equal(Gaussian().unit_deviance(y, np.full(3, 1e8)), [0.0625, 0.25, 1.0])
    assert Gaussian().log_likelihood(0.0, 0.0, 0.0, 3.0, 0.0) == np.inf


def test_probit_keeps_its_digits_far_out():
    eta = np.array([-29.0, -15.0, -6.0, -1.0, 3.0, 8.0])
    found = evaluate(Probit(), eta, np.ones(6))
    np.testing.assert_allclose(-found.loss, stats.norm.logcdf(eta), rtol=1e-12, atol=1e-16)
    ratio = np.exp(stats.norm.logpdf(eta) - stats.norm.logcdf(eta))
    np.testing.assert_allclose(-found.score, ratio, rtol=1e-11)


def test_cloglog_keeps_its_digits_for_small_rates():
    """Around the change to a series, and far below: h of a success is λ/2 to first order."""
    rate = np.array([1e-20, 1e-9, 0.0099999, 0.0100001])
    h = evaluate(Cloglog(), np.log(rate), np.ones(4)).observed
    slope = [0.5, 0.5, 0.50166664444, 0.50166667778]  # 1/2 + λ/6 - λ³/180
    np.testing.assert_allclose(h, rate * (1 - np.array(slope)), rtol=1e-9)


class TestMultinomial:
    """Against the softmax of all classes."""

    family, n = Multinomial(4), 300
    rng = np.random.default_rng(3)
    eta = rng.normal(size=(n, 3)) * 3
    y = rng.integers(0, 4, n).astype(float)
    p = softmax(np.column_stack([np.zeros(n), eta]), axis=1)

    def test_derivatives(self):
        loss, score, fisher, observed = evaluate(self.family, self.eta, self.y)
        own = self.y.astype(int)
        np.testing.assert_allclose(loss, -np.log(self.p[range(self.n), own]), rtol=1e-12)
        np.testing.assert_allclose(score, (self.p - np.eye(4)[own])[:, 1:], atol=1e-14)
        q = self.p[:, 1:]
        expected = np.einsum("nk,kl->nkl", q, np.eye(3)) - q[:, :, None] * q[:, None, :]
        np.testing.assert_allclose(fisher, expected, atol=1e-14)
        assert observed is fisher
        np.testing.assert_allclose(self.family.probabilities(self.eta), self.p, rtol=1e-12)
        np.testing.assert_allclose(self.family.linear_predictor(self.p), self.eta, atol=1e-12)
        assert np.array_equal(expansion_points(self.family, self.eta, self.y), self.eta)

    def test_two_classes_are_a_logistic_regression(self):
        eta, y = ETAS, (ETAS > 0.3).astype(float)
        found = evaluate(Multinomial(2), eta[:, None], y)
        for one, other in zip(found, evaluate(Logit(), eta, y), strict=True):
            np.testing.assert_allclose(one.ravel(), other, rtol=1e-13)

    def test_samples(self):
        n = 20_000
        y = samples(self.family, np.tile(self.eta[0], (n, 1)), 1.0, np.random.default_rng(4))
        share = np.bincount(y.astype(int), minlength=4) / n
        assert (np.abs(share - self.p[0]) < 5 * np.sqrt(self.p[0] * (1 - self.p[0]) / n)).all()

    def test_extreme_predictors_stay_finite(self):
        eta = np.array([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4], [700.0, 700.0, -700.0]])
        for y in range(4):
            found = evaluate(self.family, eta, np.full(3, float(y)))
            assert all(np.isfinite(part).all() for part in found)


def test_one_output_may_have_an_axis_of_its_own():
    eta, y = ETAS, expit(ETAS)
    for one, other in zip(
        evaluate(Probit(), eta[:, None], y), evaluate(Probit(), eta, y), strict=True
    ):
        assert np.array_equal(one.ravel(), other)
    with pytest.raises(ValueError, match="eta has shape"):
        evaluate(Probit(), eta, y[:3])


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("gaussian", [-1e9, 0.0, 3.0], [np.nan, np.inf]),
        ("binomial", [0.0, 0.3, 1.0], [-0.1, 1.1, 2.0, np.nan]),
        ("poisson", [0.0, 7.0], [-1.0, np.inf]),
        ("negative_binomial", [0.0, 7.0], [-1.0, np.nan]),
        ("gamma", [1e-9, 4.0], [0.0, -1.0, np.inf]),
        ("tweedie", [0.0, 4.0], [-1e-9, np.nan]),
    ],
)
def test_the_support_is_checked(name, good, bad):
    ours = by_name(name)
    ours.check(np.array(good))
    for value in bad:
        y = np.array([good[-1], good[-1], value, value])
        message = f"the target of a {name} model must be .* it is {value:g} in row 2 .and 1 more"
        with pytest.raises(DataError, match=message):
            ours.check(y)
        with pytest.raises(DataError, match="line 12"):
            ours.check(y, lambda i: f"line {i + 10}")


def test_supports_know_their_boundary():
    boundary = {case.family.name for case in CASES.values() if case.family.support.has_boundary}
    assert boundary == {"binomial", "poisson", "negative_binomial", "tweedie"}
    assert [Gaussian.support.is_interior(x) for x in (-1.0, 0.0, 1.0)] == [True, True, True]
    assert [Logit.support.is_interior(x) for x in (0.0, 0.5, 1.0)] == [False, True, False]
    assert [Gamma.support.is_interior(x) for x in (0.0, 0.5)] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "parameters", "message"),
    [
        (("weibull",), {}, "the families are binomial, gamma, .*; got 'weibull'"),
        (("poisson", "identity"), {}, "the links of poisson are log; got 'identity'"),
        (("poisson",), {"power": 1.5}, "poisson has no power"),
        (("tweedie",), {"power": 2.0}, "power must be between 1 .* and 2 .*; got 2"),
        (("tweedie",), {"power": 1.0}, "power must be between"),
        (("tweedie",), {"power": np.nan}, "power must be between"),
        (("negative_binomial",), {"dispersion": 0.0}, "dispersion must be positive"),
        (("negative_binomial",), {"dispersion": np.inf}, "dispersion must be positive"),
        (("multinomial",), {"count": 1}, "two classes or more; got 1"),
        ((Poisson(),), {"power": 1.5}, "has its link and parameters already"),
        ((Logit(), "probit"), {}, "has its link and parameters already"),
    ],
)
def test_wrong_families_are_refused(arguments, parameters, message):
    with pytest.raises(ValueError, match=message):
        by_name(*arguments, **parameters)


def test_families_by_name():
    assert names() == (
        "binomial",
        "gamma",
        "gaussian",
        "multinomial",
        "negative_binomial",
        "poisson",
        "tweedie",
    )
    assert by_name("binomial") == Logit()
    assert by_name("binomial", "cloglog") == Cloglog()
    assert by_name("negative_binomial", dispersion=2).parameters == {"dispersion": 2.0}
    assert by_name("tweedie") == Tweedie(1.5)
    assert by_name("tweedie").parameters == {"power": 1.5}
    assert by_name("gaussian").parameters == {}
    assert by_name("multinomial", count=4).outputs == 3
    for case in CASES.values():
        ours = case.family
        assert by_name(ours) is ours
        assert by_name(ours.name, ours.link, **ours.parameters) == ours
        assert pickle.loads(pickle.dumps(ours)) == copy.deepcopy(ours) == ours
        model = clone(TangoRegressor(ours))
        assert model.family == ours
    assert len({case.family for case in CASES.values()}) == len(CASES)


def test_a_family_may_be_defined_elsewhere():
    class Laplace(Family, NamedTuple("LaplaceFields", [("width", float)])):
        name, link, support = "laplace", "identity", REAL_NUMBERS

        def point(self, eta, y):
            r = math.hypot(eta - y, self.width)
            return r, (eta - y) / r, 1 / self.width, self.width**2 / r**3

    try:
        found = evaluate(by_name("laplace", width=2.0), [0.0, 3.0], [0.0, 0.0])
        np.testing.assert_allclose(found.loss, [2.0, math.sqrt(13)])
        np.testing.assert_allclose(found.observed, [0.5, 4 / 13**1.5])
    finally:
        del REGISTRY["laplace", "identity"]
