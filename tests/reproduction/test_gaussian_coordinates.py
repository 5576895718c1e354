"""Coordinates, flow and fluctuations against finite differences, quadrature and simulation."""

import numpy as np
import pytest

from tangograd.reproduction import gaussian_coordinates as gc
from tangograd.reproduction.gaussian_model import flow
from tangograd.stream import tango

SYSTEMS = (
    gc.Coordinates("linear", gc.LINEAR, ((1.0, 0.7), (-0.2, 0.5))),
    gc.Coordinates("standard", gc.STANDARD),
    gc.Coordinates("natural", gc.NATURAL),
)
THETA, MEAN = np.array([0.6, 0.3]), 2.0
each_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)


def differences(f, x, h=1e-6):
    """Columns: the derivative of f with respect to each coordinate of x."""
    return np.stack([(f(x + s) - f(x - s)) / (2 * h) for s in h * np.eye(len(x))], axis=-1)


@each_system
def test_coordinates(system):
    phi = system.encode(THETA)
    assert np.allclose(system.decode(phi[None])[0], THETA, atol=1e-14)
    jacobian = differences(lambda p: system.decode(p[None])[0], phi)
    assert np.allclose(system.jacobian(THETA), jacobian, atol=1e-8)


@each_system
def test_gradients_are_those_of_the_loss(system):
    def loss(phi, y):
        mu, log_sigma = system.decode(phi[None])[0]
        return log_sigma + (y - mu) ** 2 / (2 * np.exp(2 * log_sigma))

    rng, g, g_tilde = np.random.default_rng(3), np.empty(2), np.empty(2)
    phi = system.encode(THETA)
    gc.gaussian_in(phi, rng, system.constants(MEAN), g, g_tilde)
    draws = np.random.default_rng(3).standard_normal(2)
    for gradient, y in ((g, MEAN + draws[0]), (g_tilde, THETA[0] + np.exp(THETA[1]) * draws[1])):
        assert np.allclose(gradient, differences(lambda p, y=y: loss(p, y), phi), atol=1e-7)


def test_flow_is_the_natural_gradient():
    t, h = 0.8, 1e-6
    velocity = (flow(t + h, MEAN) - flow(t - h, MEAN)) / (2 * h)
    theta = flow(t, MEAN)
    gradient, _ = gc.gradient_moments(theta, MEAN)
    assert np.allclose(velocity, -np.linalg.solve(gc.fisher(theta), gradient), atol=1e-8)
    derivative = differences(
        lambda x: -np.linalg.solve(gc.fisher(x), gc.gradient_moments(x, MEAN)[0]), theta
    )
    assert np.allclose(gc._derivative(theta, MEAN), derivative, atol=1e-8)
    assert np.allclose(flow(0, MEAN), 0)
    assert np.allclose(flow(40.0, MEAN), [MEAN, 0])


def test_moments_by_quadrature():
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    weights = weights / weights.sum()
    sigma = np.exp(THETA[1])
    z = (MEAN + nodes - THETA[0]) / sigma
    g = np.stack([-z / sigma, 1 - z**2], axis=1)
    first, second = gc.gradient_moments(THETA, MEAN)
    assert np.allclose(weights @ g, first)
    assert np.allclose((weights[:, None] * g).T @ g, second)
    pseudo_weights, g_tilde = gc.pseudo_gradients(THETA)
    assert np.allclose((pseudo_weights[:, None] * g_tilde).T @ g_tilde, gc.fisher(THETA))


def test_diffusion_is_the_variance_of_sums_of_the_velocity():
    """Sums of v over long blocks at frozen θ, by simulation."""
    system, gamma, blocks, length = SYSTEMS[0], 0.05, 1000, 500
    run = tango(
        gc.gaussian_in,
        system.encode(THETA),
        gamma=gamma,
        dt=0.0,
        steps=blocks * length,
        records=blocks * length,
        frozen=True,
        constants=system.constants(MEAN),
        rng=np.random.default_rng(0),
    )
    P = system.jacobian(THETA)
    sums = (run.v[1:] @ P.T).reshape(blocks, length, 2).sum(1)
    expected = gc.diffusion(THETA, MEAN, gamma, P @ P.T)
    # a variance of 1000 blocks has the relative error √(2/1000); blocks end after 50 delays of v
    assert np.allclose(sums.var(0) / length, np.diag(expected), rtol=5 * np.sqrt(2 / blocks) + 0.05)
    average = np.linalg.solve(gc.fisher(THETA), gc.gradient_moments(THETA, MEAN)[0])
    assert (np.abs(sums.mean(0) / length - average) < 5 * sums.std(0) / length / blocks**0.5).all()


def test_diffusion_for_small_gamma_is_the_noise_of_the_gradient():
    first, second = gc.gradient_moments(THETA, MEAN)
    inverse = np.linalg.inv(gc.fisher(THETA))
    # M is then that of a constant velocity, which g̃ g̃ᵀ multiplies
    weights, g_tilde = gc.pseudo_gradients(THETA)
    natural = inverse @ first
    products = g_tilde * (g_tilde @ natural)[:, None]
    noise = second - 2 * np.outer(first, first) + (weights[:, None] * products).T @ products
    expected = inverse @ noise @ inverse
    assert np.allclose(gc.diffusion(THETA, MEAN, 1e-7, np.eye(2)), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="no second moment"):
        gc.diffusion(THETA, MEAN, 1.0, np.eye(2))


@each_system
def test_lag_is_that_of_the_recursion_without_noise(system):
    time, gamma, dt = 0.5, 0.01, 4e-5
    phi, v = system.encode(np.zeros(2)), np.zeros(2)
    for _ in range(round(time / dt)):
        theta = system.decode(phi[None])[0]
        P = system.jacobian(theta)
        gradient, F = P.T @ gc.gradient_moments(theta, MEAN)[0], P.T @ gc.fisher(theta) @ P
        v = (1 - dt) * v + gamma * (gradient - (1 - dt) * F @ v)
        phi = phi - dt * v
    error = (system.decode(phi[None])[0] - flow(time, MEAN)) / dt
    expected = gc.lag(time, MEAN, gamma, system.jacobian)
    # terms without 1/γ, and δt/(γ λ_min) of the lag itself, are left out
    assert np.allclose(error, expected, rtol=0.1, atol=0.03 * np.abs(expected).max())


def test_median_distance_of_a_round_gaussian(monkeypatch):
    time, dt = 1.0, 1e-4
    inverse = np.linalg.inv(gc.fisher(flow(time, MEAN)))
    monkeypatch.setattr(gc, "spread", lambda *_: inverse)
    monkeypatch.setattr(gc, "lag", lambda *_: np.zeros(2))
    median = gc.median_distance(time, MEAN, 0.01, SYSTEMS[1].jacobian, dt)
    assert np.isclose(median, np.sqrt(dt * 2 * np.log(2)), rtol=1e-3)


def test_thinned_keeps_the_ends_of_long_ways():
    path = np.stack([np.linspace(0, 1, 1001), np.zeros(1001)], axis=1)
    assert np.allclose(np.diff(gc.thinned(path, 0.0995)[:, 0]), 0.1)
