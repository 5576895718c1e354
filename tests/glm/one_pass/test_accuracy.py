"""One look is at maximum likelihood in any order of rows, or says that it is not."""

import numpy as np
import pytest
import statsmodels.api as sm

from tangograd.glm.one_pass.diagnostics import describe, diagnose
from tangograd.glm.one_pass.solution import solution
from tests.glm.one_pass.streams import (
    FAMILIES,
    coefficients,
    feed,
    fitted_state,
    maximum_likelihood,
    ratio,
    simulate,
)

ORDERS = ["independent", "sorted by x", "by day", "heavy"]


def fit(name, X, y, **options):
    state = fitted_state(name, X, y, **options)
    found = state.finish()
    return state, found, coefficients(state, found)


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_at_maximum_likelihood_in_every_order(name, kind):
    X, y = simulate(name, kind=kind, seed=len(name))
    _, found, theta = fit(name, X, y)
    best, information = maximum_likelihood(name, X, y)
    actual = ratio(theta, best, information)
    assert actual < 1.05
    assert found.excess < 0.1
    # the claim is honest
    assert actual - 1 < 3 * found.excess + 0.005


@pytest.mark.parametrize("name", ["logit", "poisson", "multinomial"])
def test_rows_sorted_by_the_target_are_claimed_and_repaired_by_reading_again(name):
    X, y = simulate(name, n=20_000, kind="sorted by y", seed=1)
    state, found, theta = fit(name, X, y)
    best, information = maximum_likelihood(name, X, y)
    assert ratio(theta, best, information) > 1.1
    assert found.excess > 0.1
    kinds = [each.kind for each in diagnose(state, found)]
    assert kinds[:2] == ["excess", "ordering"]
    again = state.again(found)
    feed(again, X, y)
    second = again.finish()
    assert again.readings == 2
    assert second.excess < 0.05
    assert ratio(coefficients(again, second), best, information) < 1.05
    assert not any(each.serious for each in diagnose(again, second))


@pytest.mark.parametrize("name", ["gaussian", "gamma", "poisson", "logit"])
def test_everything_that_is_reported_is_that_of_statsmodels(name):
    X, y = simulate(name, seed=3, kind="by day")
    rng = np.random.default_rng(0)
    w, offset = rng.integers(1, 4, len(y)).astype(float), rng.normal(size=len(y)) / 5
    state = fitted_state(name, X, y, w=w, offset=offset)
    said = solution(state, state.finish())
    family = {
        "gaussian": sm.families.Gaussian(),
        "gamma": sm.families.Gamma(sm.families.links.Log()),
        "poisson": sm.families.Poisson(),
        "logit": sm.families.Binomial(),
    }[name]
    Z = np.c_[np.ones(len(y)), X]
    exact = sm.GLM(y, Z, family, freq_weights=w, offset=offset).fit(tol=1e-14)
    flat = np.append(said.coefficients[0, -1], said.coefficients[0, :-1])
    np.testing.assert_allclose(flat / exact.bse, exact.params / exact.bse, atol=0.1)
    np.testing.assert_allclose(said.dispersion, exact.scale, rtol=5e-3)
    np.testing.assert_allclose(np.sqrt(np.diag(said.covariance)), exact.bse, rtol=0.02)
    np.testing.assert_allclose(said.deviance, exact.deviance, atol=4 * said.loss_error + 1e-6)
    np.testing.assert_allclose(said.null_deviance, exact.null_deviance, rtol=5e-3)
    np.testing.assert_allclose(said.loss_error, 0, atol=1)
    sandwich = sm.GLM(y, Z, family, var_weights=w, offset=offset).fit(tol=1e-14, cov_type="HC0")
    np.testing.assert_allclose(np.sqrt(np.diag(said.robust)), sandwich.bse, rtol=0.1)
    if name != "gamma":  # statsmodels takes another dispersion there
        tolerance = 4 * said.loss_error / said.dispersion + 0.02
        np.testing.assert_allclose(said.log_likelihood, exact.llf, atol=tolerance)


def test_gaussian_sums_are_exact():
    X, y = simulate("gaussian", seed=4, kind="sorted by y")
    state, found, theta = fit("gaussian", X, y)
    exact = sm.OLS(y, np.c_[X, np.ones(len(y))]).fit()
    np.testing.assert_allclose(theta[0], exact.params, rtol=1e-9, atol=1e-9)
    unit = state.start.coordinates.target_unit
    np.testing.assert_allclose(found.pearson * unit**2, exact.ssr, rtol=1e-10)
    assert found.excess < 1e-15


@pytest.mark.parametrize("name", ["gaussian", "poisson", "multinomial"])
def test_penalty_without_intercept(name):
    X, y = simulate(name, seed=5, n=8000)
    state, _, theta = fit(name, X, y, penalty=0.3, intercept=False)
    best, information = maximum_likelihood(name, X, y, alpha=0.3, intercept=False)
    assert ratio(theta, best, information) < 1.02
    assert state.penalty.alpha == 0.3


def test_offsets_and_weights():
    X, y = simulate("poisson", seed=6)
    rng = np.random.default_rng(1)
    offset, w = rng.normal(size=len(y)), rng.gamma(1.0, size=len(y)) + 1e-3
    y = rng.poisson(np.exp(offset + X[:, 1] / 3)).astype(float)
    _, found, theta = fit("poisson", X, y, w=w, offset=offset)
    best, information = maximum_likelihood("poisson", X, y, w=w, offset=offset)
    assert ratio(theta, best, information) < 1.01
    assert found.excess < 0.01


@pytest.mark.parametrize("unit", [1e-300, 1e-20, 1e20, 1e300])
def test_weights_matter_only_relatively(unit):
    X, y = simulate("logit", seed=7, n=5000)
    w = np.random.default_rng(1).integers(1, 3, len(y)).astype(float)
    _, plain, theta = fit("logit", X, y, w=w)
    _, scaled, other = fit("logit", X, y, w=w * unit)
    np.testing.assert_allclose(other, theta, rtol=1e-6)
    np.testing.assert_allclose(scaled.excess, plain.excess, atol=1e-4)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_gaussian_targets_of_any_scale(unit):
    X, y = simulate("gaussian", seed=8, n=5000)
    _, _, theta = fit("gaussian", X, y * unit)
    exact = sm.OLS(y, np.c_[X, np.ones(len(y))]).fit()
    np.testing.assert_allclose(theta[0] / unit, exact.params, rtol=1e-9)


def test_log_links_without_an_intercept_start_near_large_means():
    rng = np.random.default_rng(9)
    X = 1 + rng.random((6000, 2))
    y = rng.poisson(np.exp(X @ [9.0, 6.0])).astype(float)
    _, found, theta = fit("poisson", X, y, intercept=False)
    exact = sm.GLM(y, X, sm.families.Poisson()).fit(start_params=[9.0, 6.0], tol=1e-14)
    np.testing.assert_allclose(theta[0], exact.params, atol=0.05 * exact.bse.min())
    assert found.excess < 0.01


# --- columns


def test_aliased_columns_are_dropped_as_r_does():
    X, y = simulate("poisson", seed=10)
    X = np.c_[X, X[:, 0] - 2 * X[:, 1], np.full(len(y), 7.0), X[:, 2] ** 2]
    state, found, theta = fit("poisson", X, y)
    np.testing.assert_array_equal(found.columns, [0, 1, 2, 3, 6, 7])
    assert theta[0, 4] == theta[0, 5] == 0
    best, _ = maximum_likelihood("poisson", X[:, [0, 1, 2, 3, 6]], y)
    np.testing.assert_allclose(theta[0, [0, 1, 2, 3]], best[0, :4], rtol=0.02)
    said = solution(state, found)
    assert said.parameters == 6
    np.testing.assert_array_equal(np.isnan(np.diag(said.covariance)), np.isin(range(8), [5, 6]))
    aliased = next(each for each in diagnose(state, found) if each.kind == "aliased")
    assert aliased.columns == (4, 5)
    assert "x4, x5" in describe(aliased, [f"x{j}" for j in range(7)])


def test_nearly_dependent_columns_are_kept_and_estimated():
    rng = np.random.default_rng(11)
    a = rng.normal(size=20_000)
    X = np.c_[a, a + 1e-4 * rng.normal(size=len(a))]
    y = X @ [-4999.0, 5004.0] + rng.normal(size=len(a))
    _, found, theta = fit("gaussian", X, y)
    assert len(found.columns) == 3
    exact = sm.OLS(y, np.c_[X, np.ones(len(y))]).fit()
    np.testing.assert_allclose(theta[0], exact.params, rtol=1e-6)


def test_a_polynomial_in_the_year_is_estimated():
    rng = np.random.default_rng(12)
    year = np.sort(1990 + 30 * rng.random(20_000))
    X = np.c_[year, year**2, year**3]
    t = (year - 2005) / 15
    y = rng.poisson(np.exp(t - t**2 + t**3)).astype(float)
    state, found, theta = fit("poisson", X, y)
    best, information = maximum_likelihood("poisson", np.c_[t, t**2, t**3], y)
    assert len(found.columns) == 4
    eta = X @ theta[0, :3] + theta[0, 3]
    design = np.c_[t, t**2, t**3, np.ones(len(t))]
    own = np.linalg.lstsq(design, eta, rcond=None)[0]
    assert ratio(own[None], best, information) < 1.05
    assert state.totals.rows == len(y)


# --- what is said


def test_a_row_that_decides_is_named():
    X, y = simulate("poisson", n=20_000, seed=13)
    y[15_000] = 1e7
    state, found, _ = fit("poisson", X, y)
    moving = next(each for each in diagnose(state, found) if each.rows)
    assert moving.rows[0] == 15_000
    assert moving.serious
    assert "row 15,000" in describe(moving, [])


def test_levels_without_events_are_named():
    rng = np.random.default_rng(14)
    X, y = simulate("poisson", n=20_000, seed=14)
    level = (rng.random(len(y)) < 0.005) * 1.0
    y[level > 0] = 0
    state, found, _ = fit("poisson", np.c_[X, level, X[:, 0] > 1], y)
    silent = next(each for each in diagnose(state, found) if each.kind == "no_events")
    assert silent.columns == (4,)
    assert silent.serious


def test_separated_classes_are_noticed():
    X, _ = simulate("logit", n=10_000, seed=15)
    y = (X[:, 1] > 1) * 1.0
    state, found, _ = fit("logit", X, y)
    kinds = [each.kind for each in diagnose(state, found)]
    assert "separation" in kinds


def test_a_drifting_relation_is_noticed():
    rng = np.random.default_rng(16)
    n = 40_000
    X = rng.normal(size=(n, 3))
    season = 2 * np.sin(2 * np.pi * 2 * np.arange(n) / n)
    y = rng.poisson(np.exp(X @ [0.5, -0.5, 0.2] + season)).astype(float)
    state, found, _ = fit("poisson", X, y, kept_rows=2000)
    best, information = maximum_likelihood("poisson", X, y)
    assert ratio(coefficients(state, found), best, information) > 1.1
    assert found.excess > 0.1
    kinds = [each.kind for each in diagnose(state, found)]
    assert kinds[0] == "excess"
    assert {"drift", "ordering"} & set(kinds)
