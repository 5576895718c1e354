"""The closed forms of the Gaussian model against quadrature, iteration and simulation."""

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss

from tangograd.reproduction import gaussian as model
from tangograd.reproduction.exact import gaussian_law
from tangograd.reproduction.models import AFFINE, NATURAL, STANDARD, gaussian_in_coordinates
from tangograd.stream import tango

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
    W = gaussian_law(model.M, THETA).covariance(GAMMA)
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


def test_moments_against_simulation():
    dt, steps, runs = 1e-4, 300, 5000
    mean, P = model.moments(GAMMA, dt, steps)
    theta = simulate(dt, steps, runs)
    se = theta.std(0) / np.sqrt(runs)
    assert (np.abs(theta.mean(0) - mean) < 5 * se).all()
    # the squares of ln σ have a kurtosis of 3 to 4, hence a standard error of 2%
    np.testing.assert_allclose(np.diag(np.cov(theta.T)), np.diag(P), rtol=0.12)
    assert abs(np.corrcoef(theta.T)[0, 1] - P[0, 1] / np.sqrt(P[0, 0] * P[1, 1])) < 0.05


def test_first_step_is_exact():
    dt = 0.1
    mean, P = model.moments(GAMMA, dt, 1)
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
        mean, P = model.moments(GAMMA, h, round(time / h))
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
    mean, P = model.moments(GAMMA, dt, steps, noisy=False, damped=damped)
    np.testing.assert_allclose(mean, theta, rtol=1e-9)
    assert not P.any()


def test_mean_without_curvature_is_noise_free():
    exact, _ = model.moments(GAMMA, 1e-4, 5000, noisy=False)
    mean, _ = model.moments(GAMMA, 1e-4, 5000, curvature=False)
    np.testing.assert_array_equal(mean, exact)


SYSTEMS = (
    model.Coordinates("linear", AFFINE, ((1.0, 0.7), (-0.2, 0.5))),
    model.Coordinates("standard", STANDARD),
    model.Coordinates("natural", NATURAL),
)
OTHER, MEAN = np.array([0.6, 0.3]), 2.0


def encode(system, theta):
    """φ of θ: affine coordinates are linear, and the others are found where they are defined."""
    mu, sigma = theta[0], np.exp(theta[1])
    other = {STANDARD: (mu, sigma), NATURAL: (mu / sigma**2, -0.5 / sigma**2)}
    return np.array(other.get(system.kind, np.linalg.solve(system.S, theta)))


each_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)


def differences(f, x, h=1e-6):
    """Columns: the derivative of f with respect to each coordinate of x."""
    return np.stack([(f(x + s) - f(x - s)) / (2 * h) for s in h * np.eye(len(x))], axis=-1)


@each_system
def test_coordinates(system):
    phi = encode(system, OTHER)
    assert np.allclose(system.decode(phi[None])[0], OTHER, atol=1e-14)
    assert np.allclose(encode(system, np.zeros(2)), system.start)
    jacobian = differences(lambda p: system.decode(p[None])[0], phi)
    assert np.allclose(system.jacobian(OTHER), jacobian, atol=1e-8)


@each_system
def test_gradients_are_those_of_the_loss(system):
    def loss(phi, y):
        mu, log_sigma = system.decode(phi[None])[0]
        return log_sigma + (y - mu) ** 2 / (2 * np.exp(2 * log_sigma))

    rng, g, g_tilde = np.random.default_rng(3), np.empty(2), np.empty(2)
    phi = encode(system, OTHER)
    gaussian_in_coordinates(phi, rng, system.constants(MEAN), g, g_tilde)
    draws = np.random.default_rng(3).standard_normal(2)
    for gradient, y in ((g, MEAN + draws[0]), (g_tilde, OTHER[0] + np.exp(OTHER[1]) * draws[1])):
        assert np.allclose(gradient, differences(lambda p, y=y: loss(p, y), phi), atol=1e-7)


def test_flow_to_another_mean():
    t, h = 0.8, 1e-6
    velocity = (model.flow(t + h, MEAN) - model.flow(t - h, MEAN)) / (2 * h)
    theta = model.flow(t, MEAN)
    assert np.allclose(velocity, -model.natural_gradient(theta, MEAN), atol=1e-8)
    derivative = differences(lambda x: model.natural_gradient(x, MEAN), theta)
    assert np.allclose(model.derivative(theta, MEAN), derivative, atol=1e-8)
    assert np.allclose(model.flow(0, MEAN), 0)
    assert np.allclose(model.flow(40.0, MEAN), [MEAN, 0])


def test_law_at_any_theta():
    law = gaussian_law(MEAN, OTHER)
    assert np.allclose(law.fisher, np.diag(model.fisher(OTHER)))
    assert np.allclose(law.limit(0.1), model.natural_gradient(OTHER, MEAN))
    nodes, weights = hermegauss(20)
    g = gradients(OTHER, (MEAN + nodes - OTHER[0]) * np.exp(-OTHER[1]))
    second = (weights[:, None] * g).T @ g / weights.sum()
    assert np.allclose((law.weights[:, None] * law.g).T @ law.g, second)


def test_diffusion_is_the_variance_of_sums_of_the_velocity():
    """Sums of v over long blocks at frozen θ, by simulation."""
    system, gamma, blocks, length = SYSTEMS[0], 0.05, 1000, 500
    run = tango(
        gaussian_in_coordinates,
        encode(system, OTHER),
        gamma=gamma,
        dt=0.0,
        steps=blocks * length,
        records=blocks * length,
        frozen=True,
        constants=system.constants(MEAN),
        rng=np.random.default_rng(0),
    )
    P = system.jacobian(OTHER)
    sums = (run.v[1:] @ P.T).reshape(blocks, length, 2).sum(1)
    expected = P @ gaussian_law(MEAN, OTHER).changed(P).diffusion(gamma) @ P.T
    # a variance of 1000 blocks has the relative error √(2/1000); blocks end after 50 delays of v
    assert np.allclose(sums.var(0) / length, np.diag(expected), rtol=5 * np.sqrt(2 / blocks) + 0.05)
    average = model.natural_gradient(OTHER, MEAN)
    assert (np.abs(sums.mean(0) / length - average) < 5 * sums.std(0) / length / blocks**0.5).all()


def test_diffusion_for_small_gamma_is_the_noise_of_the_gradient():
    """v is then constant, and g̃g̃ᵀ multiplies it."""
    law = gaussian_law(MEAN, OTHER)
    inverse, first = np.linalg.inv(law.fisher), law.gradient
    products = law.g_tilde * (law.g_tilde @ inverse @ first)[:, None]
    second = (law.weights[:, None] * law.g).T @ law.g
    noise = second - 2 * np.outer(first, first) + (law.weights[:, None] * products).T @ products
    assert np.allclose(law.diffusion(1e-5), inverse @ noise @ inverse, rtol=1e-3)
    with pytest.raises(ValueError, match="second moment"):
        law.diffusion(1.0)


@each_system
def test_lag_is_that_of_the_recursion_without_noise(system):
    time, gamma, dt = 0.5, 0.01, 4e-5
    phi, v = np.array(system.start), np.zeros(2)
    for _ in range(round(time / dt)):
        theta = system.decode(phi[None])[0]
        P = system.jacobian(theta)
        F = P.T @ np.diag(model.fisher(theta)) @ P
        gradient = P.T @ (model.fisher(theta) * model.natural_gradient(theta, MEAN))
        v = (1 - dt) * v + gamma * (gradient - (1 - dt) * F @ v)
        phi = phi - dt * v
    error = (system.decode(phi[None])[0] - model.flow(time, MEAN)) / dt
    expected = model.lag(time, MEAN, gamma, system.jacobian)
    # terms without 1/γ, and δt/(γ λ_min) of the lag itself, are left out
    assert np.allclose(error, expected, rtol=0.1, atol=0.03 * np.abs(expected).max())


def test_median_distance_of_a_round_gaussian(monkeypatch):
    time, dt = 1.0, 1e-4
    inverse = np.linalg.inv(np.diag(model.fisher(model.flow(time, MEAN))))
    monkeypatch.setattr(model, "spread", lambda *_: inverse)
    monkeypatch.setattr(model, "lag", lambda *_: np.zeros(2))
    median = model.median_distance(time, MEAN, 0.01, SYSTEMS[1].jacobian, dt)
    assert np.isclose(median, np.sqrt(dt * 2 * np.log(2)), rtol=1e-3)


def test_averaged_gradient_flow_by_steps():
    steps, gamma, dt = 2000, 0.01, 1e-4
    fast, theta = np.zeros(2), np.zeros(2)
    for _ in range(steps):
        fast = fast - gamma * model.fisher(fast) * model.natural_gradient(fast)
        theta = theta + dt * (fast - theta)
    # steps of SGD are not small at the start, where gradients are 100
    np.testing.assert_allclose(
        model.gradient_flow(steps * dt, rate=gamma / dt)[-1, 3:], theta, rtol=2e-3
    )
