"""Linear equations of badly scaled, singular and dependent columns."""

import numpy as np
import pytest

from tangograd.glm.numerics.linear_solve import dependent_columns, solve


@pytest.mark.parametrize("scales", [np.ones(6), np.logspace(-100, 100, 6)], ids=["1", "1e±100"])
def test_solutions_of_any_scaling(scales):
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(40, 6))
    H, x = Z.T @ Z, rng.normal(size=(6, 2))
    b = H @ x
    for k in ((), (0,)):
        found = solve(H * scales[:, None] * scales, (scales * b[(slice(None), *k)].T).T)
        expected = (x[(slice(None), *k)].T / scales).T
        np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_without_curvature_there_is_no_step():
    H = np.diag([4.0, 0.0, 2.0])
    np.testing.assert_allclose(solve(H, np.array([8.0, 1.0, 2.0])), [2.0, 0.0, 1.0], rtol=1e-13)


def test_singular_matrices_have_a_solution():
    Z = np.random.default_rng(1).normal(size=(40, 4))
    Z[:, 3] = Z[:, 0] - 2 * Z[:, 1]
    H = Z.T @ Z
    b = H @ np.ones(4)
    np.testing.assert_allclose(H @ solve(H, b), b, rtol=1e-6)
    indefinite = np.array([[1.0, 1 + 1e-9], [1 + 1e-9, 1.0]])  # rounding may leave this
    np.testing.assert_allclose(solve(indefinite, np.ones(2)), [0.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-80, 1e80])
def test_dependent_columns_are_the_later_ones(scale):
    rng = np.random.default_rng(2)
    Z = rng.normal(size=(50, 7))
    Z[:, 2] = 0.0
    Z[:, 4] = Z[:, 0] + 3 * Z[:, 1]
    Z[:, 6] = Z[:, 4] - 1e-3 * Z[:, 5]
    Z[:, 5] += 1e-4 * Z[:, 3]
    Z[:, 6] += 1e-4 * rng.normal(size=50)  # nearly dependent, but of its own
    H = scale * Z.T @ Z
    assert np.flatnonzero(dependent_columns(H)).tolist() == [2, 4]
