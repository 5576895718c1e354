"""The closed forms of the Gaussian model against quadrature, iteration and simulation."""

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss

from tangograd.reproduction import gaussian_model as model

THETA = np.array([2.5, 0.4])
GAMMA = 0.01


def gradients(theta, z):
    """Of ``ln σ + (y-μ)²/2σ²`` at standardised residuals z."""
    return np.stack([-z * np.exp(-theta[1]), 1 - z * z], axis=-1)


def quadrature(theta):
    """Gradients on data and on pseudo-samples at nodes, exact for polynomials to degree 31."""
    nodes, weights = hermegauss(16)
    y = model.M + model.TAU * nodes
    z = (y - theta[0]) * np.exp(-theta[1])
    return gradients(theta, z), gradients(theta, nodes), weights / weights.sum()


def fisher_and_gradient(theta):
    g, g_tilde, w = quadrature(theta)
    return np.einsum("n,ni,nj->ij", w, g_tilde, g_tilde), w @ g


def test_natural_gradient_and_fisher():
    F, gradient = fisher_and_gradient(THETA)
    np.testing.assert_allclose(F, np.diag(model.fisher(THETA)), atol=1e-12)
    np.testing.assert_allclose(
        model.natural_gradient(THETA), np.linalg.solve(F, gradient), rtol=1e-12
    )


@pytest.mark.parametrize("t", [0.1, 0.7, 2.0])
def test_flow_solves_its_equation(t):
    h = 1e-5
    slope = (model.flow(t + h) - model.flow(t - h)) / (2 * h)
    np.testing.assert_allclose(slope, -model.natural_gradient(model.flow(t)), rtol=1e-7)
    np.testing.assert_allclose(model.flow(0.0), model.START, atol=1e-15)


def dense_noise(theta, V, keep):
    g, g_tilde, w = quadrature(theta)
    F, gradient = fisher_and_gradient(theta)
    xi = g - gradient
    hat = g_tilde[:, :, None] * g_tilde[:, None, :] - F
    return np.einsum("n,ni,nj->ij", w, xi, xi) + keep**2 * np.einsum("n,nij->ij", w, hat @ V @ hat)


def test_noise():
    V = np.array([[3.0, -1.2], [-1.2, 2.0]])
    expected = dense_noise(THETA, V, 0.9)
    found = model.noise(*THETA, V[0, 0], V[0, 1], V[1, 1], 0.9)
    np.testing.assert_allclose(found, expected[[0, 0, 1], [0, 1, 1]], rtol=1e-10)


def test_velocity_covariance_is_at_rest():
    W = model.velocity_covariance(THETA, GAMMA)
    F, gradient = fisher_and_gradient(THETA)
    f, P = np.linalg.solve(F, gradient), np.eye(2) - GAMMA * F
    after = P @ W @ P + GAMMA**2 * dense_noise(THETA, W + np.outer(f, f), 1.0)
    np.testing.assert_allclose(after, W, rtol=1e-10)


def simulate(dt, steps, runs):
    """TANGO from its definition, many runs at once."""
    rng = np.random.default_rng(0)
    theta, v = np.zeros((runs, 2)), np.zeros((runs, 2))
    for _ in range(steps):
        z, z_tilde = rng.standard_normal((2, runs))
        sigma = np.exp(theta[:, 1])
        z = (model.M + model.TAU * z - theta[:, 0]) / sigma
        g, g_tilde = (np.stack([-e / sigma, 1 - e * e], axis=1) for e in (z, z_tilde))
        along = (g_tilde * v).sum(1, keepdims=True)
        v = (1 - dt) * v + GAMMA * g - GAMMA * (1 - dt) * along * g_tilde
        theta = theta - dt * v
    return theta


def test_mean_and_covariance_against_simulation():
    dt, steps, runs = 1e-4, 300, 5000
    mean, P = model.mean_and_covariance(GAMMA, dt, steps)
    theta = simulate(dt, steps, runs)
    se = theta.std(0) / np.sqrt(runs)
    assert (np.abs(theta.mean(0) - mean) < 5 * se).all()
    # the squares of ln σ have a kurtosis of 3 to 4, hence a standard error of 2%
    np.testing.assert_allclose(np.diag(np.cov(theta.T)), np.diag(P), rtol=0.12)
    assert abs(np.corrcoef(theta.T)[0, 1] - P[0, 1] / np.sqrt(P[0, 0] * P[1, 1])) < 0.05


def test_first_step_is_exact():
    dt = 0.1
    mean, P = model.mean_and_covariance(GAMMA, dt, 1)
    g, _, w = quadrature(np.zeros(2))
    gradient = w @ g
    xi = g - gradient
    np.testing.assert_allclose(mean, -dt * GAMMA * gradient, rtol=1e-12)
    np.testing.assert_allclose(
        P, (dt * GAMMA) ** 2 * np.einsum("n,ni,nj->ij", w, xi, xi), rtol=1e-10
    )


def test_expansion_is_the_limit():
    """Two ways to the same figures: an ordinary differential equation, and steps at small δt."""
    time, dt = 1.0, 2e-6
    limit = model.expansion(GAMMA, time)
    errors = {}
    for h in (dt, dt / 2):
        mean, P = model.mean_and_covariance(GAMMA, h, round(time / h))
        errors[h] = (mean - model.flow(time)) / h, P / h
    for i, exact in enumerate((limit.b, limit.S)):
        np.testing.assert_allclose(2 * errors[dt / 2][i] - errors[dt][i], exact, rtol=1e-3)


@pytest.mark.parametrize("damped", [False, True])
def test_noise_free_from_its_definition(damped):
    dt, steps = 1e-3, 200
    theta, v, keep = np.zeros(2), np.zeros(2), 1 - dt if damped else 1.0
    for _ in range(steps):
        F, gradient = fisher_and_gradient(theta)
        v = keep * v + GAMMA * (gradient - keep * F @ v)
        theta = theta - dt * v
    path = np.empty((3, 2))
    model.noise_free(GAMMA, dt, steps, damped, path)
    np.testing.assert_allclose(path[-1], theta, rtol=1e-9)
    np.testing.assert_array_equal(path[0], model.START)


def test_mean_without_curvature_is_noise_free():
    path = np.empty((2, 2))
    model.noise_free(GAMMA, 1e-4, 5000, True, path)
    mean, _ = model.mean_and_covariance(GAMMA, 1e-4, 5000, curvature=False)
    np.testing.assert_allclose(mean, path[-1], rtol=1e-10)
