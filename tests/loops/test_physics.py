"""`optimizer.evaluate` for losses with derivatives of the network inside."""

import pytest
import torch
from torch import nn
from torch.func import jacrev

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


def functional_residual(model):
    """The same by ``torch.func``, sample by sample."""

    def u(x):
        return model(x).squeeze()

    d2u = torch.vmap(jacrev(jacrev(u)))(INTERIOR).reshape(-1, 1)
    return d2u + torch.vmap(u)(INTERIOR)[:, None].square() - FORCE


class Problem:
    def __init__(self, residual=residual):
        self.model, self.residual = network(), residual
        self.equation, self.ends = Gaussian(0.5), Gaussian(0.1)

    def loss(self):
        """The equation, and u = 0 at both ends, as two likelihoods."""
        equation = self.equation(self.residual(self.model), torch.zeros_like(INTERIOR))
        return equation + 3 * self.ends(self.model(BOUNDARY), torch.zeros_like(BOUNDARY))

    def dense(self):
        """g and F of that loss, from the residuals as a model of their own."""
        parameters = list(self.model.parameters())
        pieces = torch.autograd.grad(self.loss(), parameters)
        F = fisher_matrix(self.equation, residual(self.model), parameters)
        F += 3 * fisher_matrix(self.ends, self.model(BOUNDARY), parameters)
        return flatten(pieces), F


@pytest.mark.parametrize("residual", [residual, functional_residual])
def test_the_bracket_is_that_of_the_dense_fisher_matrix(residual):
    problem = Problem(residual)
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


@pytest.mark.parametrize("residual", [residual, functional_residual])
@pytest.mark.parametrize("engine", ["auto", "finite-difference"])
def test_learned_gamma_and_preconditioner(engine, residual):
    """Replays without a graph cannot take derivatives inside: then they have one."""
    problem, losses = Problem(residual), []
    optimizer = TANGO(problem.model.parameters(), engine=engine)
    for _ in range(12):
        optimizer.zero_grad()
        loss = optimizer.evaluate(problem.model, problem.loss)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("engine", ["auto", "dual"])
def test_the_users_own_error_is_raised(engine):
    """Also in the first evaluation, after which all engines have been tried."""
    problem = Problem()
    optimizer = TANGO(problem.model.parameters(), engine=engine)

    def wrong():
        raise KeyError("boundary")

    for _ in range(2):
        with pytest.raises(KeyError, match="boundary"):
            optimizer.evaluate(problem.model, wrong)
        optimizer.evaluate(problem.model, problem.loss).backward()
        optimizer.step()
        optimizer.zero_grad()
