"""The necessary bound on γ, exactly, on the paper's Gaussian example at σ = 1.

F = diag(1, 2), E‖g̃‖² = tr F = 3, E‖g̃‖⁴ = 3 + 2·(E ε²(1-ε²)² = 10) + 60 = 83, tr F² = 5.
"""

import numpy as np
import pytest
import torch

from tangograd.reference import necessary_gamma


def outer_products():
    """Return g̃g̃ᵀ of the pseudo-gradients (-ε, 1-ε²) in (μ, ln σ), and their probabilities."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    eps = torch.from_numpy(nodes)
    g = torch.stack([-eps, 1 - eps**2], 1)
    return g[:, :, None] * g[:, None, :], torch.from_numpy(weights / weights.sum())


@pytest.mark.parametrize(("batch", "square"), [(1.0, 83), (50.0, 83 / 50 + 0.98 * 5)])
def test_a_mean_of_outer_products(batch, square):
    fishers, weights = outer_products()
    found = necessary_gamma(fishers, weights=weights, batch=batch)
    assert found == pytest.approx(3 / square, rel=1e-10)


def test_a_closed_form():
    F = torch.diag(torch.tensor([1.0, 2.0]))
    assert necessary_gamma(F[None]) == pytest.approx(3 / 5)
