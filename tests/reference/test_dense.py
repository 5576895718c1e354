"""The oracle itself, against textbook values and finite differences."""

import pytest
import torch

from tangograd import Bernoulli, Categorical, Gaussian, MeanScaleGaussian
from tangograd.reference import fisher_matrix, natural_gradient
from tangograd.vectors import flatten, unflatten

from ..cases import LIKELIHOODS, MODELS, problem


def test_linear_regression():
    x, theta = torch.randn(9, 3), torch.zeros(3, requires_grad=True)
    F = fisher_matrix(Gaussian(2.0), x @ theta, [theta])
    torch.testing.assert_close(F, x.T @ x / 18, rtol=1e-13, atol=1e-14)


def test_logistic_regression_with_weights():
    x, theta, w = torch.randn(9, 3), torch.randn(3, requires_grad=True), torch.rand(9)
    p = (x @ theta).sigmoid().detach()
    F = fisher_matrix(Bernoulli(), x @ theta, [theta], w)
    torch.testing.assert_close(F, x.T @ torch.diag(w * p * (1 - p)) @ x / w.sum())


def test_the_hyperbolic_plane():
    """N(μ, σ²) in (μ, ln σ): F = diag(1/σ², 2)."""
    theta = torch.tensor([3.0, 0.7], requires_grad=True)
    F = fisher_matrix(MeanScaleGaussian(), theta.expand(4, 2), [theta])
    torch.testing.assert_close(F, torch.diag(torch.tensor([torch.tensor(-1.4).exp(), 2.0])))


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("name", [n for n in LIKELIHOODS if n != "student-t"])
def test_fisher_times_a_vector_by_finite_differences(model_name, name):
    """F v = (1/B) Σ J_iᵀ H_i (z_i(θ+εv) - z_i(θ-εv))/2ε: no Jacobian of the oracle's."""
    model, x, _, likelihood = problem(model_name, name)
    parameters = list(model.parameters())
    F = fisher_matrix(likelihood, model(x), parameters)
    v = torch.randn(len(F))
    eps = 1e-5

    def moved(sign):
        with torch.no_grad():
            torch._foreach_add_(parameters, unflatten(sign * eps * v, parameters))
            shifted = model(x)
            torch._foreach_add_(parameters, unflatten(-sign * eps * v, parameters))
        return shifted

    t = (moved(1) - moved(-1)) / (2 * eps)
    z = model(x)
    u = likelihood.fisher_product(z.detach(), t) / z[..., 0].numel()
    Fv = flatten(torch.autograd.grad(z, parameters, u))
    torch.testing.assert_close(F @ v, Fv, rtol=1e-6, atol=1e-7)


def test_natural_gradient_solves_the_damped_equation():
    model, x, y, likelihood = problem("mlp", "categorical")
    parameters = list(model.parameters())
    g = flatten(torch.autograd.grad(likelihood(model(x), y), parameters))
    F = fisher_matrix(likelihood, model(x), parameters)
    direction = natural_gradient(likelihood, model(x), y, parameters, damping=0.1)
    assert [d.shape for d in direction] == [p.shape for p in parameters]
    torch.testing.assert_close((F + 0.1 * torch.eye(len(F))) @ flatten(direction), g)


def test_a_singular_fisher_matrix_is_said():
    theta = torch.zeros(2, requires_grad=True)
    outputs = theta.sum().expand(3, 1)  # one output of two parameters: redundant
    with pytest.raises(ValueError, match="singular.*damping > 0"):
        natural_gradient(Gaussian(), outputs, torch.ones(3, 1), [theta])


def test_unused_parameters_have_no_information():
    theta, idle = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    F = fisher_matrix(Categorical(), torch.cat([theta, -theta]).expand(2, 2), [theta, idle])
    torch.testing.assert_close(F, torch.diag(torch.tensor([1.0, 0.0])))
