"""What is exactly invariant and what is not; SGD's limits; refuted alternatives."""

import numpy as np
import pytest
from numba import njit

from tangograd.reproduction import gaussian, preconditioning
from tangograd.reproduction import invariance as claim
from tangograd.reproduction.base import Setting
from tangograd.reproduction.models import gaussian_in_coordinates


@njit
def outer_product(theta, rng, constants, g, g_tilde):
    """The data's own gradient in place of a pseudo-sample's."""
    gaussian_in_coordinates(theta, rng, constants, g, g_tilde)
    g_tilde[0], g_tilde[1] = g[0], g[1]


@pytest.fixture(scope="module")
def quick():
    return Setting("invariance", quick=True)


@pytest.mark.parametrize("index", range(4))
def test_gradient_flow_by_small_steps(index):
    """Gradient descent in φ itself, with the mean gradient by quadrature over y."""
    system, *_ = claim.COORDINATES[index]
    path = gaussian.gradient_flow(0.3, claim.MEAN, system.jacobian)
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    y, weights = claim.MEAN + nodes, weights / weights.sum()

    def loss(phi):
        mu, log_sigma = system.decode(phi[None])[0]
        return log_sigma + weights @ (y - mu) ** 2 / (2 * np.exp(2 * log_sigma))

    phi, rate = np.array(system.start), 1e-4
    for _ in range(round(0.3 / rate)):
        steps = 1e-5 * np.eye(2)
        phi = phi - rate * np.array([(loss(phi + s) - loss(phi - s)) / 2e-5 for s in steps])
    assert np.allclose(system.decode(phi[None])[0], path[-1, 1:3], atol=5e-3)


def test_peaks_differ():
    peaks = [
        claim.peak(gaussian.gradient_flow(t, claim.MEAN, c.jacobian))[1]
        for c, _, _, t in claim.COORDINATES
    ]
    assert np.allclose(peaks, [6.485, 5.445, 4.311, 7.864], atol=2e-3)
    assert min(np.abs(np.subtract.outer(peaks, peaks))[~np.eye(4, dtype=bool)]) > 0.9


def test_linear_invariance_needs_the_preconditioner(quick, monkeypatch):
    assert claim.linear_error(quick) < 1e-12
    right = preconditioning.tango
    monkeypatch.setattr(
        preconditioning, "tango", lambda *args, **options: right(*args, **options | {"C": None})
    )
    assert claim.linear_error(quick) > 1e-3


def test_the_outer_product_is_refuted(quick, monkeypatch):
    """It is not the Fisher matrix unless the data follow the model."""
    monkeypatch.setattr(preconditioning, "LONG_TIME", 0.3)
    monkeypatch.setattr(preconditioning, "gaussian_in_coordinates", outer_product)
    system, gamma, *_ = claim.COORDINATES[0]  # its gradients are larger
    verdict, *_ = claim.distances(quick, system.name, system, gamma / 10, 6e-5, 0.3)
    assert not verdict.holds
