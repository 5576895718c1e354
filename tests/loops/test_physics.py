"""`optimizer.evaluate` for losses with derivatives of the network inside."""

import pytest
import torch
from torch import nn

from tangograd import TANGO, Gaussian
from tangograd.reference import fisher_matrix
from tangograd.vectors import flatten

from ..cases import set_velocity

INTERIOR = torch.linspace(0, 1, 7, dtype=torch.float64)[:, None]
BOUNDARY = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
FORCE = torch.sin(3 * INTERIOR)


def network():
    return nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


def residual(model):
    """``u'' + u² - f`` in the interior."""
    x = INTERIOR.clone().requires_grad_()
    u = model(x)
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (d2u,) = torch.autograd.grad(du.sum(), x, create_graph=True)
    return d2u + u.square() - FORCE


class Problem:
    def __init__(self):
        self.model = network()
        self.equation, self.ends = Gaussian(0.5), Gaussian(0.1)

    def loss(self):
        """The equation, and u = 0 at both ends, as two likelihoods."""
        equation = self.equation(residual(self.model), torch.zeros_like(INTERIOR))
        return equation + 3 * self.ends(self.model(BOUNDARY), torch.zeros_like(BOUNDARY))

    def dense(self):
        """g and F of that loss, from the residuals as a model of their own."""
        parameters = list(self.model.parameters())
        pieces = torch.autograd.grad(self.loss(), parameters)
        F = fisher_matrix(self.equation, residual(self.model), parameters)
        F += 3 * fisher_matrix(self.ends, self.model(BOUNDARY), parameters)
        return flatten(pieces), F


def test_the_bracket_is_that_of_the_dense_fisher_matrix():
    problem = Problem()
    parameters = list(problem.model.parameters())
    optimizer = TANGO(parameters, gamma=0.1, preconditioner=None)
    v = set_velocity(optimizer, problem.model)
    g, F = problem.dense()
    loss = optimizer.evaluate(problem.model, problem.loss)
    loss.backward()
    bracket = g - 0.7 * F @ v
    found = flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])
    assert (found - bracket).abs().max() < 1e-12 * bracket.abs().max()
    assert (0.7 * F @ v).abs().max() > 1e-2
    assert loss.item() == pytest.approx(problem.loss().item(), rel=1e-13)


@pytest.mark.parametrize(("gamma", "preconditioner"), [("max", None), ("auto", "auto")])
def test_training(gamma, preconditioner):
    """The closure is run again, derivatives included: "auto" does not warn that it is blind."""
    problem = Problem()
    optimizer = TANGO(
        problem.model.parameters(), lr=0.2, gamma=gamma, preconditioner=preconditioner
    )
    before = problem.loss().item()
    for _ in range(60):
        optimizer.zero_grad()
        loss = optimizer.evaluate(problem.model, problem.loss)
        loss.backward()
        optimizer.step()
    assert problem.loss().item() < (0.05 if gamma == "auto" else 0.9) * before
