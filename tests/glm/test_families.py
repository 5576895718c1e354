"""Deviance and log-likelihood of each family against statsmodels and scikit-learn, and domains."""

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn.metrics import mean_tweedie_deviance

from tangograd.glm.errors import DataError
from tangograd.glm.old_families import NAMES, Family, family, multinomial

links = sm.families.links
THEIRS = {
    "gaussian": (family("gaussian"), sm.families.Gaussian()),
    "logit": (family("binomial"), sm.families.Binomial()),
    "probit": (family("binomial", "probit"), sm.families.Binomial(links.Probit())),
    "cloglog": (family("binomial", "cloglog"), sm.families.Binomial(links.CLogLog())),
    "poisson": (family("poisson"), sm.families.Poisson()),
    "gamma": (family("gamma"), sm.families.Gamma(links.Log())),
    "negative binomial": (
        family("negative_binomial", dispersion=0.6),
        sm.families.NegativeBinomial(links.Log(), alpha=0.6),
    ),
}
ALL = {name: ours for name, (ours, _) in THEIRS.items()} | {"tweedie": family("tweedie", power=1.3)}
both = pytest.mark.parametrize(("ours", "theirs"), THEIRS.values(), ids=THEIRS)
every = pytest.mark.parametrize("ours", ALL.values(), ids=ALL)


def sample(ours, n=200, seed=0):
    """η, y and weights."""
    rng = np.random.default_rng(seed)
    eta = rng.normal(size=n)
    mu = ours.mean(eta)
    y = {
        "gaussian": lambda: rng.normal(mu),
        "binomial": lambda: rng.random(n) < mu,
        "poisson": lambda: rng.poisson(mu),
        "gamma": lambda: rng.gamma(2.0, mu / 2),
        "negative_binomial": lambda: rng.poisson(rng.gamma(2.0, mu / 2)),
        "tweedie": lambda: np.where(rng.random(n) < 0.4, 0.0, rng.gamma(2.0, mu)),
    }[ours.name]()
    return eta, y.astype(np.float64), rng.integers(1, 4, n).astype(np.float64)


@both
def test_deviance_and_log_likelihood_are_statsmodels(ours, theirs):
    eta, y, w = sample(ours)
    mu = theirs.link.inverse(eta)
    assert np.abs(ours.mean(eta) - mu).max() < 1e-13
    deviance = float(w @ ours.unit_deviance(y, eta))
    assert deviance == pytest.approx(theirs.deviance(y, mu, freq_weights=w), rel=1e-12)
    loss, saturated, base = (
        float(w @ part) for part in (ours.loss(eta, y), ours.saturated(y), ours.base(y))
    )
    # for gaussian models the dispersion is that of the likelihood's maximum
    scale = 0.7 if ours.name == "gamma" else 1.0
    scale = deviance / w.sum() if ours.name == "gaussian" else scale
    found = ours.log_likelihood(loss, saturated, base, float(w.sum()), scale)
    assert found == pytest.approx(theirs.loglike(y, mu, freq_weights=w, scale=scale), rel=1e-12)


@pytest.mark.parametrize("power", [1.1, 1.5, 1.9])
def test_deviance_of_tweedie_is_scikit_learns(power):
    ours = family("tweedie", power=power)
    eta, y, w = sample(ours)
    found = float(w @ ours.unit_deviance(y, eta) / w.sum())
    expected = mean_tweedie_deviance(y, np.exp(eta), sample_weight=w, power=power)
    assert found == pytest.approx(expected, rel=1e-12)
    assert np.isnan(ours.log_likelihood(1.0, 0.0, 0.0, 10.0, 1.0))


@every
def test_the_saturated_loss_is_the_least(ours):
    _, y, _ = sample(ours)
    inside = (y > 0) & (y < 1) if ours.name == "binomial" else np.abs(y) > 1e-9
    if ours.name == "binomial":
        y = np.random.default_rng(1).random(len(y))
        inside = np.ones(len(y), bool)
    own = np.array([ours.predictor(value) for value in y[inside]])
    least = ours.saturated(y[inside])
    assert np.abs(ours.loss(own, y[inside]) - least).max() < 1e-12 * (1 + np.abs(least).max())
    for other in (own + 0.1, own - 0.1):
        assert (ours.loss(other, y[inside]) > least).all()


@every
def test_the_predictor_undoes_the_mean(ours):
    for eta in (-2.0, 0.0, 1.5):
        assert ours.predictor(float(ours.mean(np.array([eta]))[0])) == pytest.approx(eta, abs=1e-12)


@every
def test_the_predictor_of_a_mean_on_the_border_is_finite(ours):
    for mu in (0.0, 1.0):
        assert np.isfinite(ours.predictor(mu))


@every
def test_the_null_loss_is_that_of_the_mean(ours):
    _, y, w = sample(ours)
    mean = float(w @ y / w.sum())
    variation = float(w @ (y - mean) ** 2)
    found = ours.null_loss(mean, float(w.sum()), variation)
    eta = np.full(len(y), ours.predictor(mean))
    assert found == pytest.approx(float(w @ ours.loss(eta, y)), rel=1e-12)
    assert found <= float(w @ ours.loss(eta + 1e-3, y))
    assert found <= float(w @ ours.loss(eta - 1e-3, y))


def test_gaussian_deviance_keeps_its_digits_far_from_zero():
    """Half the square, with no difference of large numbers."""
    ours = family("gaussian")
    y = 1e8 + np.array([0.25, -0.5, 1.0])
    eta = np.full(3, 1e8)
    assert np.array_equal(ours.unit_deviance(y, eta), [0.0625, 0.25, 1.0])
    assert ours.log_likelihood(0.65625, 0.0, 0.0, 3.0, 1.0) == pytest.approx(
        sm.families.Gaussian().loglike(y - 1e8, eta - 1e8, scale=1.3125 / 3), rel=1e-12
    )


def test_a_perfect_gaussian_fit_has_infinite_likelihood():
    assert family("gaussian").log_likelihood(0.0, 0.0, 0.0, 3.0, 0.0) == np.inf


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
def test_the_domain_is_checked(name, good, bad):
    ours = family(name)
    ours.check(np.array(good))
    for value in bad:
        y = np.array([good[-1], good[-1], value, value])
        with pytest.raises(
            DataError, match=f"the target of a {name} model must be .* in row 2"
        ) as e:
            ours.check(y)
        assert f"{value:g}" in str(e.value)
        with pytest.raises(DataError, match="line 12"):
            ours.check(y, lambda i: f"line {i + 10}")


@pytest.mark.parametrize(
    ("arguments", "parameters", "message"),
    [
        (("weibull",), {}, "the families are gaussian, binomial, .*; got 'weibull'"),
        (("poisson", "identity"), {}, "the links of poisson are log; got 'identity'"),
        (("poisson",), {"power": 1.5}, "poisson has no power"),
        (("tweedie",), {"power": 2.0}, "power must be between 1 .* and 2 .*; got 2"),
        (("tweedie",), {"power": 1.0}, "power must be between"),
        (("tweedie",), {"power": np.nan}, "power must be between"),
        (("negative_binomial",), {"dispersion": 0.0}, "dispersion must be positive"),
        (("negative_binomial",), {"dispersion": np.inf}, "dispersion must be positive"),
        ((family("poisson"),), {"power": 1.5}, "has its link and parameters already"),
        ((family("binomial"), "probit"), {}, "has its link and parameters already"),
    ],
)
def test_wrong_families_are_refused(arguments, parameters, message):
    with pytest.raises(ValueError, match=message):
        family(*arguments, **parameters)


def test_families_by_name():
    assert NAMES == (
        "gaussian",
        "binomial",
        "poisson",
        "gamma",
        "negative_binomial",
        "tweedie",
    )
    for name in NAMES:
        chosen = family(name)
        assert isinstance(chosen, Family)
        assert family(chosen) is chosen
        assert family(name, chosen.link) == chosen
    assert family("negative_binomial", dispersion=2).parameters == {"dispersion": 2.0}
    assert family("tweedie").parameters == {"power": 1.5}
    assert family("gaussian").parameters == {}
    assert multinomial().name == "multinomial"
