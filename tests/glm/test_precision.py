"""Standard errors and likelihoods: of converged fits statsmodels', of streams what simulations show."""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.stats import norm

from tangograd.glm import engine
from tangograd.glm.engine import OnePass
from tangograd.glm.families import evaluate
from tangograd.glm.precision import Precision, _late, _start
from tests.glm.simulated import (
    CLASSES,
    FAMILIES,
    excess,
    features,
    fit,
    responses,
    rows,
    simulate,
    simulate_classes,
)

pytestmark = pytest.mark.usefixtures("tango_path")

every_family = pytest.mark.parametrize("name", FAMILIES)


def statsmodels_fit(
    theirs, X, y, intercept=True, cov_type="nonrobust", start_params=None, **options
):
    Z = np.c_[np.ones(len(X)), X] if intercept else X
    model = sm.GLM(y, Z, family=theirs, **options)
    return model.fit(
        start_params, tol=1e-14, tol_criterion="params", maxiter=200, cov_type=cov_type
    )


@pytest.mark.parametrize("intercept", [True, False], ids=["", "no intercept"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights and offset"])
@every_family
def test_converged_fits_are_statsmodels(name, weighted, intercept):
    of, theirs = FAMILIES[name]
    rng = np.random.default_rng(1)
    n = 600
    offset = 0.3 * rng.normal(size=n) if weighted else np.zeros(n)
    w = rng.integers(1, 4, n).astype(np.float64) if weighted else np.ones(n)
    X, y = simulate(name, n, 3, seed=2, kind="unscaled", offset=offset)
    X /= [1e-3, 1.0, 1e3] if not intercept else 1.0
    found = fit(name, X, y, w=w, offset=offset, intercept=intercept).fitted()
    expected = statsmodels_fit(
        theirs, X, y, intercept, freq_weights=w, offset=offset if weighted else None
    )
    assert found.names == (("intercept",) if intercept else ()) + ("x0", "x1", "x2")
    assert found.covariance_kind == "full"
    assert np.abs((found.estimates - expected.params) / expected.bse).max() < 1e-5
    assert np.allclose(found.standard_errors, expected.bse, rtol=1e-5)
    correlation = found.covariance / np.outer(found.standard_errors, found.standard_errors)
    theirs_too = expected.cov_params() / np.outer(expected.bse, expected.bse)
    assert np.abs(correlation - theirs_too).max() < 1e-5
    assert found.dispersion == pytest.approx(expected.scale, rel=1e-7)
    assert found.deviance == pytest.approx(expected.deviance, rel=1e-9)
    assert found.null_deviance == pytest.approx(expected.null_deviance, rel=1e-7)
    assert (found.rows, found.weight) == (n, w.sum())
    assert (found.converged, found.progressive) == (True, False)
    assert (found.excess, found.passes, found.notes) == (1.0, 1, ())
    if name == "tweedie":  # whose density has no closed form
        assert np.isnan(found.log_likelihood)
    else:
        # our criterion counts the dispersion among the parameters where it is estimated
        assert found.log_likelihood == pytest.approx(expected.llf, rel=1e-7)
        assert found.aic == pytest.approx(expected.aic + 2 * of.estimates_dispersion, rel=1e-7)


@every_family
def test_robust_errors_are_the_sandwich_of_statsmodels(name):
    """Where the model is wrong: of another dispersion, and with a curved effect."""
    of, theirs = FAMILIES[name]
    rng = np.random.default_rng(3)
    X = rng.normal(size=(800, 2))
    y = responses(of, 0.5 * X[:, 0] - 0.5 + 0.1 * X[:, 1] ** 2, rng, phi=0.8)
    found = fit(name, X, y).fitted()
    # its own steps are not halved, and would overflow
    expected = statsmodels_fit(theirs, X, y, start_params=found.estimates)
    bread = expected.normalized_cov_params  # of the expected information
    g = expected.model.score_obs(expected.params, scale=1.0)
    sandwich = np.sqrt(np.diag(bread @ g.T @ g @ bread))
    assert found.converged
    assert np.allclose(found.robust_errors, sandwich, rtol=1e-4)
    if of.name != "binomial":
        assert not np.allclose(found.robust_errors, found.standard_errors, rtol=0.03)


@pytest.mark.parametrize("name", ["gaussian", "logit", "poisson"])
def test_robust_errors_are_statsmodels(name):
    """HC0; of canonical links, for which the expected information is the observed."""
    X, y = simulate(name, 500, 3, seed=3)
    expected = statsmodels_fit(FAMILIES[name][1], X, y, cov_type="HC0")
    assert np.allclose(fit(name, X, y).fitted().robust_errors, expected.bse, rtol=1e-5)


def test_robust_errors_with_weights_are_the_sandwich():
    X, y = simulate("poisson", 500, 2, seed=4)
    w = np.random.default_rng(0).uniform(0.2, 3, 500)
    found = fit("poisson", X, y, w=w).fitted()
    Z = np.c_[np.ones(500), X]
    mu = np.exp(Z @ found.estimates)
    bread = np.linalg.inv(Z.T @ (Z * (w * mu)[:, None]))
    g = Z * (w * (mu - y))[:, None]
    sandwich = bread @ g.T @ g @ bread
    assert np.allclose(found.robust_errors, np.sqrt(np.diag(sandwich)), rtol=1e-6)


@pytest.mark.parametrize("intercept", [True, False])
def test_several_classes_are_statsmodels(intercept):
    X, y = simulate_classes(900, 3, 3, seed=5)
    found = fit("classes", X, y, intercept=intercept).fitted()
    Z = np.c_[np.ones(900), X] if intercept else X
    expected = sm.MNLogit(y, Z).fit(disp=0, tol=1e-14)
    assert np.allclose(found.estimates, expected.params.T.ravel(), atol=1e-6)
    assert np.allclose(found.standard_errors, expected.bse.T.ravel(), rtol=1e-5)
    assert np.allclose(found.covariance, expected.cov_params(), rtol=1e-4, atol=1e-9)
    robust = sm.MNLogit(y, Z).fit(disp=0, tol=1e-14, cov_type="HC0").bse
    assert np.allclose(found.robust_errors, robust.T.ravel(), rtol=1e-5)
    assert found.log_likelihood == pytest.approx(expected.llf, rel=1e-9)
    assert found.deviance == pytest.approx(-2 * expected.llf, rel=1e-9)
    shares = np.bincount(y.astype(int)) / 900
    assert found.null_deviance == pytest.approx(-2 * np.log(shares)[y.astype(int)].sum(), rel=1e-9)


@pytest.mark.parametrize("alpha", [0.1, 2.0])
@pytest.mark.parametrize("name", ["gamma", "classes"])
def test_penalised_errors_have_the_penalty_in_the_curvature(name, alpha):
    """Of centred columns; several classes share it as in the objective."""
    n = 500
    X, y = simulate_classes(n, 2) if name == "classes" else simulate(name, n, 2)
    found = fit(name, X, y, alpha=alpha).fitted()
    outputs = 2 if name == "classes" else 1
    of = CLASSES if name == "classes" else FAMILIES[name][0]
    Z = np.c_[np.ones(n), X]
    theta = found.estimates.reshape(outputs, 3)
    _, s, f, _ = evaluate(of, Z @ theta.T, y)
    H = sum(np.kron(f[i], np.outer(Z[i], Z[i])) for i in range(n))
    mixing = np.eye(2) - 1 / 3 if name == "classes" else np.eye(1)
    H += n * alpha * np.kron(mixing, np.diag([0.0, 1.0, 1.0]))
    V = np.linalg.inv(H)
    g = (s[:, :, None] * Z[:, None, :]).reshape(n, -1)
    assert np.allclose(found.covariance, found.dispersion * V, rtol=1e-6)
    assert np.allclose(found.robust_errors, np.sqrt(np.diag(V @ g.T @ g @ V)), rtol=1e-6)


def test_far_from_zero_nothing_is_lost():
    """Columns and a target whose means are a million times their deviations."""
    X, y = simulate("gaussian", 500, 2, seed=6)
    near = fit("gaussian", X, y).fitted()
    far = fit("gaussian", X + 1e6, y + 1e6).fitted()
    assert np.allclose(far.estimates[1:], near.estimates[1:], rtol=1e-6)
    assert np.allclose(far.standard_errors[1:], near.standard_errors[1:], rtol=1e-6)
    for name in ("deviance", "null_deviance", "log_likelihood", "dispersion"):
        assert getattr(far, name) == pytest.approx(getattr(near, name), rel=1e-6)


# --- kinds of covariance


def test_without_covariance():
    X, y = simulate("poisson", 400, 3)
    found = fit("poisson", X, y, covariance=None).fitted()
    assert found.covariance_kind == "none"
    assert found.covariance is found.standard_errors is found.robust_errors is None
    assert found.estimates.shape == (4,)


@pytest.fixture
def streaming(monkeypatch):
    monkeypatch.setattr(engine, "BUFFER_BYTES", 1)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("name", ["gamma", "classes"])
def test_the_diagonal_alone(name, alpha, streaming):
    """That of the full matrix before it is inverted; the intercept is that of the data's zero."""
    n = 12_000
    options = {"seed": 7}
    X, y = (simulate_classes if name == "classes" else lambda *a, **k: simulate(name, *a, **k))(
        n, 3, **options
    )
    X += [1.0, -2.0, 0.0]
    diagonal = fit(name, X, y, covariance="diagonal", alpha=alpha)
    full = fit(name, X, y, covariance="full", alpha=alpha)
    found = diagonal.fitted()
    assert found.covariance_kind == "diagonal"
    assert found.covariance is None
    assert np.array_equal(found.estimates, full.fitted().estimates)
    sums, m = full.settled().sums, full.at.m
    curvature = np.diag(sums.fisher).reshape(-1, 4).copy()
    curvature[:, :3] += alpha * n
    raw = found.excess * found.dispersion / curvature
    errors = np.sqrt(np.c_[raw[:, 3] + raw[:, :3] @ m**2, raw[:, :3]])
    assert np.allclose(found.standard_errors, errors.ravel(), rtol=1e-9)
    assert any("the covariance is diagonal" in note for note in found.notes)


def test_rows_in_memory_have_the_whole_matrix():
    """Fisher scoring formed it: no use to ignore the correlations."""
    X, y = simulate("poisson", 400, 3, kind="correlated")
    asked = fit("poisson", X, y, covariance="diagonal").fitted()
    full = fit("poisson", X, y, covariance="full").fitted()
    assert asked.covariance_kind == "full"
    assert np.array_equal(asked.standard_errors, full.standard_errors)
    assert asked.notes == ()


def test_many_coefficients_in_memory(monkeypatch):
    """Where Fisher scoring did not form it, it is formed if it was asked for."""
    X, y = simulate("poisson", 800, 5)
    expected = fit("poisson", X, y).fitted()
    monkeypatch.setattr("tangograd.glm.newton.DENSE", 3)
    monkeypatch.setattr(engine, "FULL_COVARIANCE", 3)
    found = fit("poisson", X, y, covariance="full").fitted()
    assert found.covariance_kind == "full"
    assert np.allclose(found.covariance, expected.covariance, rtol=1e-2, atol=1e-6)
    assert fit("poisson", X, y).fitted().covariance_kind == "diagonal"


@pytest.mark.parametrize("value", [-1.0, 2.5])
def test_a_constant_column_has_no_error_and_the_others_keep_theirs(value):
    X, y = simulate("poisson", 400, 2)
    expected = fit("poisson", X, y).fitted()
    found = fit("poisson", np.insert(X, 1, value, axis=1), y).fitted()
    kept = [0, 1, 3]
    assert np.isnan(found.standard_errors[2])
    assert np.isnan(found.robust_errors[2])
    assert np.isnan(found.covariance[2]).all()
    assert np.allclose(found.standard_errors[kept], expected.standard_errors, rtol=1e-9)
    assert np.allclose(found.robust_errors[kept], expected.robust_errors, rtol=1e-9)
    assert np.allclose(found.covariance[np.ix_(kept, kept)], expected.covariance, rtol=1e-8)


def test_nothing_but_zeros_and_no_intercept():
    found = fit("poisson", np.zeros((50, 2)), np.ones(50), intercept=False).fitted()
    assert np.array_equal(found.estimates, [0, 0])
    assert np.isnan(found.standard_errors).all()


# --- streams


@pytest.fixture
def short(monkeypatch):
    """Streams of thousands of rows that start from hundreds."""
    for name, value in {
        "BUFFER_BYTES": 1,
        "BLOCK_ROWS": 512,
        "START_ROWS": 500,
        "START_ROWS_EACH": 0,
    }.items():
        monkeypatch.setattr(engine, name, value)


def many_streams(name, kind, runs=150, n=3000, d=4, passes=1):
    """z of each estimate, and the mean excess of some with what it was said to be."""
    rng = np.random.default_rng(8)
    of = FAMILIES[name][0]
    X = features(kind, 100_000, d, rng)
    truth = rng.normal(size=d)
    truth *= 0.7 / np.std(X @ truth)
    z, seen, said = [], [], []
    for run in range(runs):
        X = features(kind, n, d, rng)
        y = responses(of, X @ truth + 0.2, rng)
        model = OnePass(of, d)
        model.feed(X, y)
        for _ in range(passes - 1):
            model.rewind()
            model.feed(X, y)
        found = model.fitted()
        assert found.progressive
        z.append((found.estimates - np.r_[0.2, truth]) / found.standard_errors)
        if run < 50:
            best = model_in_memory(of, X, y)
            seen.append(excess(name, X, y, model.coefficients(), best))
            said.append(found.excess)
    return np.concatenate(z), np.mean(seen), np.mean(said)


def model_in_memory(of, X, y):
    model = OnePass(of, X.shape[1], covariance=None)
    model.pending = [rows(X, y)]
    buffer, engine.BUFFER_BYTES = engine.BUFFER_BYTES, 10**9
    try:
        return model.coefficients()
    finally:
        engine.BUFFER_BYTES = buffer


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gaussian", "independent"),
        ("logit", "correlated"),
        ("poisson", "correlated"),
        ("gamma", "sparse"),
    ],
)
def test_one_pass_errors_are_those_seen(name, kind, short):
    """Over 150 streams: the variance of z is 1, and 95% intervals cover."""
    z, seen, said = many_streams(name, kind)
    assert 0.85 < np.mean(z**2) < 1.2
    assert 0.93 < np.mean(np.abs(z) < norm.ppf(0.975)) < 0.97
    assert 0.45 < (said - 1) / (seen - 1) < 1.5


def test_two_pass_errors_are_those_seen(short):
    z, seen, said = many_streams("poisson", "independent", passes=2)
    assert 0.85 < np.mean(z**2) < 1.2
    assert 0.93 < np.mean(np.abs(z) < norm.ppf(0.975)) < 0.97
    assert 0.4 < (said - 1) / (seen - 1) < 1.5


def test_progressive_numbers_are_close_to_the_final(streaming):
    """Rows are judged before they are learned from, so a little worse."""
    X, y = simulate("gamma", 30_000, 4, seed=9)
    model = fit("gamma", X, y, path="tango")
    said = model.fitted()
    model.polish(lambda: [rows(X, y)])
    final = model.fitted()
    assert said.progressive
    assert not final.progressive
    assert said.deviance == pytest.approx(final.deviance, rel=0.01)
    assert said.null_deviance == pytest.approx(final.null_deviance, rel=1e-9)
    assert said.dispersion == pytest.approx(final.dispersion, rel=0.02)
    assert said.log_likelihood == pytest.approx(final.log_likelihood, rel=0.01)
    assert (said.rows, said.weight) == (30_000, 30_000)
    assert np.allclose(said.standard_errors, final.standard_errors, rtol=0.1)
    assert (said.standard_errors > 0.99 * final.standard_errors).all()


def averaged(lam, g, m, K):
    """The variance, over maximum likelihood's, of the mean of SGD's iterates about the latter.

    ``w ← w - γ (λ w + ξ)`` at γ = g/√k, each ξ of variance λ, from row m on, where w has 1/(mλ).
    """
    gamma = g / np.sqrt(np.arange(m + 1, K + 1))
    following = np.zeros(K - m + 1)  # the sum of what is left of a change, row after row
    for i in range(K - m - 1, -1, -1):
        following[i] = 1 + (1 - g / np.sqrt(m + 2 + i) * lam) * following[i + 1]
    noise = np.sum((1 / lam - gamma * following[:-1]) ** 2) * lam
    start = ((1 - gamma[0] * lam) * following[0]) ** 2 / (m * lam)
    return noise * lam / K, start * lam / K


@pytest.mark.parametrize("lam", [1e-3, 0.02, 0.1, 1.0])
@pytest.mark.parametrize("K", [1100, 4000, 40_000])
def test_the_excess_is_that_of_averaged_iterates(lam, K):
    m, g = 1000, 0.15
    late, start = averaged(lam, g, m, K)
    a = np.array([2 * g * lam])
    assert _late(a, m, K)[0] == pytest.approx(late, rel=0.01)
    assert _start(a, m, K)[0] == pytest.approx(start, rel=0.02)


def test_without_curvature_the_start_is_all_there_is():
    for a in (0.0, 1e-12, 1e-7):
        both = _late(np.array([a]), 1000, 9000) + _start(np.array([a]), 1000, 9000)
        assert both[0] == pytest.approx(8, rel=1e-3)


def test_the_excess_is_that_of_the_formula(short):
    """With λ = 1: the noise of F̂, the rows not yet learned, and the start."""
    X, y = simulate("logit", 6000, 3)
    model = fit("logit", X, y)
    precision = Precision(model.settled(), model.solution())
    state = model.settled().working_path.state
    n, m, gamma = 6000, model.start_rows, state.gamma
    assert state.k == n
    noise = state.noise / state.q / 2
    late = averaged(1.0, gamma * np.sqrt(n), m, n)[0]
    start = averaged(1.0, model.start_gamma * np.sqrt(m), m, n)[1]
    assert precision.excess(np.ones(1))[0] == pytest.approx(noise + late + start, rel=0.01)
    worst = precision.excess(np.array([1e-9]))[0]
    assert worst == pytest.approx(noise + n / m - 1, rel=1e-3)


def test_a_stream_too_short_for_its_columns_is_said(short):
    """With a penalty columns are not whitened, and correlated ones are slow."""
    rng = np.random.default_rng(10)
    X = rng.normal(size=(20_000, 1)) + 0.02 * rng.normal(size=(20_000, 3))
    y = responses(FAMILIES["logit"][0], X[:, 0], rng)
    found = fit("logit", X, y, alpha=1e-9).fitted()
    assert found.excess > 1.5
    assert any("times those of maximum likelihood" in note for note in found.notes)
    easy = fit("logit", rng.normal(size=(20_000, 3)), y).fitted()
    assert easy.excess < 1.1
    assert easy.notes == ()
