"""Means and intervals of new rows, beside definitions and simulation."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
import statsmodels.api as sm

from tangograd.glm.commands.predicting import Model, family_of, intervals, means, predictors
from tangograd.glm.engine import OnePass
from tangograd.glm.errors import DataError
from tangograd.glm.families import Multinomial
from tangograd.glm.families import by_name as family
from tangograd.glm.saved import fitted_to_dict, save


def fitted(of, X, y, labels=None, **options):
    model = OnePass(of, X.shape[1], **options)
    model.feed(X, y)
    return model.fitted(tuple(f"x{i}" for i in range(X.shape[1])), labels)


@pytest.fixture(name="X")
def features():
    return np.random.default_rng(0).normal(size=(400, 3))


@pytest.mark.parametrize("intercept", [True, False])
def test_intervals_are_statsmodels(X, intercept):
    y = np.random.default_rng(1).poisson(np.exp(X @ [0.3, 0, -0.2])).astype(float)
    found = fitted(family("poisson"), X, y, intercept=intercept)
    design = sm.add_constant(X) if intercept else X
    right = sm.GLM(y, design, sm.families.Poisson()).fit().get_prediction(design).summary_frame(0.1)
    eta = predictors(found, X)
    low, high = intervals(found, X, eta, 0.9)
    np.testing.assert_allclose(means(found, eta), right["mean"], rtol=1e-6)
    np.testing.assert_allclose(low, right["mean_ci_lower"], rtol=1e-5)
    np.testing.assert_allclose(high, right["mean_ci_upper"], rtol=1e-5)
    sparse = sp.csr_array(X)
    np.testing.assert_allclose(predictors(found, sparse), eta)
    np.testing.assert_allclose(intervals(found, sparse, eta, 0.9)[0], low)


def test_an_offset_is_added(X):
    found = fitted(family("poisson"), X, np.ones(len(X)))
    shift = np.linspace(0, 1, len(X))
    np.testing.assert_allclose(
        predictors(found, X, shift)[:, 0] - predictors(found, X)[:, 0], shift
    )


def test_intervals_of_two_classes_are_the_same_by_either_family(X):
    y = (np.random.default_rng(1).random(len(X)) < 1 / (1 + np.exp(-X[:, 0]))).astype(float)
    two = fitted(family("binomial"), X, y, ("no", "yes"))
    several = fitted(Multinomial(2), X, y, ("no", "yes"))
    eta = predictors(two, X)
    np.testing.assert_allclose(means(two, eta), means(several, predictors(several, X)), rtol=1e-6)
    for one, other in zip(
        intervals(two, X, eta, 0.95),
        intervals(several, X, predictors(several, X), 0.95),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_intervals_of_classes_do_not_depend_on_the_baseline(X):
    rng = np.random.default_rng(1)
    y = rng.integers(3, size=len(X)).astype(float)
    one = fitted(Multinomial(3), X, y, ("a", "b", "c"))
    turned = fitted(Multinomial(3), X, (y + 1) % 3, ("c", "a", "b"))
    for kind in (0, 1):
        here = intervals(one, X, predictors(one, X), 0.95)[kind]
        there = intervals(turned, X, predictors(turned, X), 0.95)[kind]
        np.testing.assert_allclose(here, there[:, [1, 2, 0]], rtol=1e-5)


def test_columns_without_a_standard_error_do_not_spoil_intervals(X):
    X[:, 1] = 2.0
    found = fitted(family("gaussian"), X, X[:, 0] + np.random.default_rng(1).normal(size=len(X)))
    low, high = intervals(found, X, predictors(found, X), 0.95)
    assert (low < high).all()


def test_models_that_cannot_be_used(X, tmp_path):
    found = fitted(family("gaussian"), X, X[:, 0])
    plain = fitted_to_dict(found)
    for payload, text in (
        ({"fitted": plain}, "has not the parts of a model"),
        ({"fitted": [], "design": None}, "has not the parts of a model"),
        ({"fitted": plain | {"family": "cauchy"}, "design": None}, "the families are"),
        ({"fitted": plain, "design": {}}, "the model's design is damaged"),
    ):
        save(tmp_path / "m.json", payload)
        with pytest.raises(DataError, match=text):
            Model.load(tmp_path / "m.json")
    assert (
        family_of(replace(found, family="tweedie", link="log", parameters={"power": 1.2})).power
        == 1.2
    )


def test_a_model_without_a_design(X):
    found = fitted(family("gaussian"), X, X @ [1, 2, 3] + 4)
    batch = pa.record_batch(
        {"x2": [1.0, None, 0.0], "other": ["a", "b", "c"], "x0": [0, 1, 1], "x1": [0.0] * 3}
    )
    result = Model(found).predict(batch, interval=0.9)
    assert result.kept.tolist() == [0, 2]
    np.testing.assert_allclose(result.mean, [7, 5], atol=1e-6)
    assert result.dropped == {"x2": 1}
    with pytest.raises(DataError, match="column 'x1' is not in the data"):
        Model(found).predict(batch.select(["x0", "x2"]))
    with pytest.raises(DataError, match="row 2: column 'x0' is infinite"):
        Model(found).predict(batch.set_column(2, "x0", pa.array([0, np.inf, 1])))
