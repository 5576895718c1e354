"""Streams come as close to maximum likelihood as they should: one pass, several, and polished."""

import numpy as np
import pytest
import scipy.sparse as sp

from tangograd.glm import engine
from tangograd.glm.engine import OnePass
from tangograd.glm.errors import DataError
from tangograd.glm.families import by_name as family
from tests.glm.simulated import FAMILIES, data, excess, fit, rows, simulate

pytestmark = pytest.mark.usefixtures("tango_path")


@pytest.fixture
def streaming(monkeypatch):
    monkeypatch.setattr(engine, "BUFFER_BYTES", 1)


@pytest.fixture
def short(monkeypatch):
    """Streams of a few thousand rows."""
    for name, value in {"BUFFER_BYTES": 1, "BLOCK_ROWS": 256, "START_ROWS": 600}.items():
        monkeypatch.setattr(engine, name, value)


CASES = [(name, "independent") for name in [*FAMILIES, "classes"]]
CASES += [
    (name, kind)
    for name in ("logit", "poisson", "classes")
    for kind in ("correlated", "unscaled", "heavy", "sparse")
]


@pytest.mark.parametrize(("name", "kind"), CASES, ids=str)
def test_one_pass_comes_close_to_maximum_likelihood(name, kind, monkeypatch):
    n, d = 40_000, 10
    X, y = data(name, n, d, kind=kind, seed=11)
    best = fit(name, X, y)
    monkeypatch.setattr(engine, "BUFFER_BYTES", 1)
    model = fit(name, X, y)
    assert model.streaming
    assert not best.streaming
    assert excess(name, X, y, model.coefficients(), best.coefficients()) < 1.3


@pytest.mark.parametrize("closeness", [0.1, 0.01, 1e-4])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_nearly_equal_columns_slow_nothing(form, closeness, monkeypatch):
    rng = np.random.default_rng(3)
    X, y = data("logit", 40_000, 5, seed=31)
    X = np.c_[X, X[:, 0] + closeness * rng.normal(size=40_000)]
    best = fit("logit", X, y).coefficients()
    monkeypatch.setattr(engine, "BUFFER_BYTES", 1)
    assert excess("logit", X, y, fit("logit", form(X), y).coefficients(), best) < 1.1


def test_skewed_columns(monkeypatch):
    """Log-normal, as amounts of money are: their few large rows do not decide the start."""
    rng = np.random.default_rng(4)
    X = np.exp(1.2 * rng.normal(size=(40_000, 4)))
    y = (rng.random(40_000) < 1 / (1 + np.exp(-np.log(X) @ [0.5, -0.5, 0.3, 0.0]))) * 1.0
    best = fit("logit", X, y).coefficients()
    monkeypatch.setattr(engine, "BUFFER_BYTES", 1)
    assert excess("logit", X, y, fit("logit", X, y).coefficients(), best) < 1.3


@pytest.mark.parametrize("kind", ["independent", "correlated"])
@pytest.mark.parametrize("unit", [1e-6, 1e3])
@pytest.mark.parametrize("name", ["gaussian", "gamma", "tweedie", "poisson", "logit"])
def test_units_do_not_matter(name, unit, kind, streaming):
    """Of columns, of weights, and of y where it has one: the same stream in other units."""
    X, y = data(name, 15_000, 3, kind=kind, seed=32)
    usual = fit(name, X, y).fitted()
    units = np.array([unit, 1 / unit, 1.0])
    other = fit(name, X * units, y, w=np.full(15_000, unit)).fitted()
    assert np.allclose(other.estimates[1:] * units, usual.estimates[1:], rtol=1e-6)
    assert other.estimates[0] == pytest.approx(usual.estimates[0], rel=1e-6)
    scaled = other.standard_errors[1:] * units
    if usual.dispersion == 1:
        scaled = scaled * np.sqrt(unit)
        assert np.allclose(scaled, usual.standard_errors[1:], rtol=1e-6)
    if name in ("gaussian", "gamma", "tweedie"):
        other = fit(name, X, y * unit).fitted()
        expected = usual.estimates.copy()
        if name == "gaussian":
            expected *= unit
        else:
            expected[0] += np.log(unit)
        errors = usual.standard_errors * (unit if name == "gaussian" else 1.0)
        # the tiny ridge is one of the loss, which has the unit of φ
        assert (np.abs(other.estimates - expected) < 0.01 * errors).all()
        assert np.allclose(other.standard_errors, errors, rtol=1e-4)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_one_pass_with_everything_at_once(form, monkeypatch):
    """Weights, offset, penalty, pseudo-samples, no intercept."""
    n, rng = 40_000, np.random.default_rng(12)
    w, offset = rng.uniform(0.2, 3, n), 0.5 * rng.normal(size=n)
    X, y = simulate("poisson", n, 8, kind="sparse", offset=offset, intercept=0.0)
    options = {"w": w, "offset": offset, "alpha": 0.01, "intercept": False}
    best = fit("poisson", X, y, **options)
    monkeypatch.setattr(engine, "BUFFER_BYTES", 1)
    model = fit("poisson", form(X), y, fisher="sampled", **options)
    assert model.streaming
    theta = model.coefficients()
    assert theta[0, -1] == 0
    found = excess("poisson", X, y, theta, best.coefficients(), alpha=0.01, intercept=False, w=w)
    assert found < 1.5


@pytest.mark.parametrize("name", ["gaussian", "logit", "poisson", "classes"])
def test_pseudo_samples_do_as_well_in_the_end(name, monkeypatch):
    X, y = data(name, 40_000, 6, seed=13)
    best = fit(name, X, y).coefficients()
    monkeypatch.setattr(engine, "BUFFER_BYTES", 1)
    model = fit(name, X, y, fisher="sampled")
    assert excess(name, X, y, model.coefficients(), best) < 1.5


def test_pseudo_samples_come_from_the_seed(short):
    X, y = data("logit", 3000, 4)
    one, same = (fit("logit", X, y, fisher="sampled").coefficients() for _ in range(2))
    other = OnePass(family("binomial"), 4, fisher="sampled", seed=2)
    other.feed(X, y)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other.coefficients())


@pytest.mark.parametrize("name", ["gaussian", "logit", "poisson", "gamma", "classes"])
@pytest.mark.parametrize("alpha", [0.05, 1.0])
def test_penalties_in_the_stream_are_those_of_the_objective(name, alpha, monkeypatch):
    """Within the accuracy of the stream, where the penalty moves estimates by many errors."""
    X, y = data(name, 40_000, 6, seed=14)
    free = fit(name, X, y).coefficients()
    best = fit(name, X, y, alpha=alpha).coefficients()
    monkeypatch.setattr(engine, "BUFFER_BYTES", 1)
    theta = fit(name, X, y, alpha=alpha).coefficients()
    assert excess(name, X, y, free, best, alpha) > 5
    assert excess(name, X, y, theta, best, alpha) < 1.5


def two_passes(name, X, y):
    model = fit(name, X, y)
    first = model.coefficients()
    model.rewind()
    model.feed(X, y)
    return first, model


def test_two_passes_are_better_than_one(monkeypatch):
    found = []
    for name in ("gaussian", "logit", "poisson", "classes"):
        monkeypatch.setattr(engine, "BUFFER_BYTES", 64_000_000)
        X, y = data(name, 30_000, 8, kind="correlated", seed=15)
        best = fit(name, X, y).coefficients()
        monkeypatch.setattr(engine, "BUFFER_BYTES", 1)
        one, model = two_passes(name, X, y)
        found.append([excess(name, X, y, t, best) - 1 for t in (one, model.coefficients())])
        fitted = model.fitted()
        assert fitted.passes == 2
        assert fitted.rows == 30_000
        assert fitted.progressive
    one, two = np.mean(found, axis=0)
    assert two < 0.75 * one
    assert two < 0.03


@pytest.mark.parametrize("name", [*FAMILIES, "classes"])
def test_polishing_agrees_with_maximum_likelihood(name, monkeypatch):
    """To a hundredth of a standard error, in any chunks."""
    X, y = data(name, 25_000, 5, kind="correlated", seed=16)
    w = np.random.default_rng(0).integers(0, 3, 25_000).astype(np.float64)
    best = fit(name, X, y, w=w).fitted()
    monkeypatch.setattr(engine, "BUFFER_BYTES", 1)
    model = fit(name, X, y, w=w)
    cut = [slice(0, 9_999), slice(9_999, 10_000), slice(10_000, None)]
    model.polish(lambda: (rows(X[here], y[here], w[here]) for here in cut))
    fitted = model.fitted()
    assert fitted.converged
    assert not fitted.progressive
    assert fitted.excess == 1
    assert 2 <= fitted.passes <= 4
    assert np.abs((fitted.estimates - best.estimates) / best.standard_errors).max() < 0.01
    for one, other in (
        (fitted.standard_errors, best.standard_errors),
        (fitted.robust_errors, best.robust_errors),
    ):
        assert np.abs(one / other - 1).max() < 1e-2
    assert fitted.deviance == pytest.approx(best.deviance, rel=1e-5)
    assert fitted.rows == best.rows == (w > 0).sum()


def test_polishing_rows_in_memory_does_nothing():
    X, y = data("logit", 500, 3)
    model = fit("logit", X, y)
    before = model.coefficients()
    model.polish(lambda: pytest.fail("no second reading is needed"))
    assert np.array_equal(model.coefficients(), before)


def test_polishing_needs_the_rows_again(short):
    X, y = data("logit", 3000, 3)
    with pytest.raises(DataError, match="second reading of the data had no rows"):
        fit("logit", X, y).polish(list)


def test_polishing_too_many_coefficients_is_refused(short, monkeypatch):
    X, y = data("logit", 3000, 3)
    model = fit("logit", X, y)
    monkeypatch.setattr("tangograd.glm.polishing.DENSE", 2)
    with pytest.raises(DataError, match="at most 2 coefficients; there are 4: use more passes"):
        model.polish(lambda: [rows(X, y)])


def test_rows_in_memory_need_no_second_pass():
    X, y = data("logit", 500, 3)
    model = fit("logit", X, y)
    with pytest.raises(DataError, match="further passes change nothing"):
        model.rewind()
    assert model.passes == 1


def test_many_columns_stream(monkeypatch):
    """More than the Fisher matrix is formed for: a diagonal start, from L-BFGS."""
    rng = np.random.default_rng(17)
    n, d = 30_000, 300
    X = sp.random(n, d, 0.02, "csr", rng=rng)
    X.data[:] = 1.0
    truth = rng.normal(size=d) * (np.arange(d) % 3 == 0)
    y = rng.poisson(np.exp(X @ truth - 1.0)).astype(np.float64)
    best = fit("poisson", X, y)
    for name, value in (("BUFFER_BYTES", 1), ("FULL_COVARIANCE", 100)):
        monkeypatch.setattr(engine, name, value)
    monkeypatch.setattr("tangograd.glm.newton.DENSE", 100)
    model = fit("poisson", X, y)
    fitted = model.fitted()
    assert fitted.covariance_kind == "diagonal"
    found = excess("poisson", X.toarray(), y, model.coefficients(), best.coefficients())
    assert found < 1.5
    errors = best.fitted().standard_errors
    assert np.abs(fitted.standard_errors[1:] / errors[1:] - 1).mean() < 0.2
