"""The relative residual of the damped equation, against dense algebra."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from tangograd import TANGO, Bernoulli, Categorical, Gaussian
from tangograd.preconditioners import Dense, Diagonal
from tangograd.reference import fisher_matrix
from tangograd.vectors import flatten

from .cases import mlp
from .test_optimizer import batches, train
from .test_session import same, snapshot


@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize("kind", ["none", "diagonal", "dense"])
def test_against_the_dense_equation(kind, decay):
    model = mlp()
    d = sum(p.numel() for p in model.parameters())
    A = torch.randn(d, d)
    C = {
        "none": torch.eye(d),
        "diagonal": torch.diag(torch.rand(d) + 0.5),
        "dense": A @ A.T / d + torch.eye(d),
    }[kind]
    shapes = [p.shape for p in model.parameters()]
    pieces = C.diagonal().split([s.numel() for s in shapes])
    preconditioner = {
        "none": lambda: None,
        "diagonal": lambda: Diagonal([c.reshape(s) for c, s in zip(pieces, shapes, strict=True)]),
        "dense": lambda: Dense(C),
    }[kind]()
    optimizer = TANGO(
        model.parameters(), lr=0.2, gamma=0.1, preconditioner=preconditioner, weight_decay=decay
    )
    likelihood = Categorical()
    train(model, optimizer, likelihood, batches(4))
    data = [*batches(2, rows=5, seed=1), *batches(1, rows=3, seed=2)]
    x, y = torch.cat([a for a, _ in data]), torch.cat([b for _, b in data])
    theta = flatten(list(model.parameters())).detach()
    v = flatten([optimizer.state[p]["velocity"] for p in model.parameters()])
    g = (
        flatten(torch.autograd.grad(likelihood(model(x), y), list(model.parameters())))
        + decay * theta
    )
    F = fisher_matrix(likelihood, model(x), model.parameters()) + decay * torch.eye(d)
    r = g - 0.8 * F @ v - 2.0 * torch.linalg.solve(C, v)
    expected = ((r @ C @ r) / (g @ C @ g)).sqrt().item()
    assert optimizer.residual(model, likelihood, data) == pytest.approx(expected, rel=1e-10)


def test_groups_and_weights():
    model = mlp()
    optimizer = TANGO(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}],
        gamma=0.1,
        preconditioner=None,
    )
    likelihood = Categorical()
    train(model, optimizer, likelihood, batches(4))
    ((x, y),) = batches(1, rows=6, seed=3)
    w = torch.rand(6)
    parts = [(x[:2], y[:2], w[:2]), (x[2:], y[2:], w[2:])]
    whole = optimizer.residual(model, likelihood, [(x, y, w)])
    assert optimizer.residual(model, likelihood, parts) == pytest.approx(whole, rel=1e-12)


def test_it_falls_as_the_velocity_settles():
    model = nn.Linear(3, 1)
    data = [(torch.randn(20, 3), torch.randint(2, (20, 1)).double()) for _ in range(5)]
    optimizer, likelihood = (
        TANGO(model.parameters(), lr=0.01, gamma=0.5, preconditioner=None),
        Bernoulli(),
    )
    train(model, optimizer, likelihood, data[:1])
    early = optimizer.residual(model, likelihood, data)
    train(model, optimizer, likelihood, data * 10)
    assert optimizer.residual(model, likelihood, data) < 0.3 * early


def test_nothing_is_changed():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    likelihood = Gaussian("tracked", fisher="sampled")
    optimizer = TANGO(model.parameters(), gamma=0.01, preconditioner=None)
    data = [(torch.randn(5, 3), torch.randn(5, 2)) for _ in range(3)]
    train(model, optimizer, likelihood, data)
    before = snapshot(model, optimizer), deepcopy(likelihood.state_dict()), torch.get_rng_state()
    optimizer.residual(model, likelihood, data)
    after = snapshot(model, optimizer), likelihood.state_dict(), torch.get_rng_state()
    assert same(before, after)
    with pytest.raises(RuntimeError, match="tangents"):
        optimizer.step()


def test_errors():
    model = mlp()
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    with pytest.raises(RuntimeError, match="take a step first"):
        optimizer.residual(model, Categorical(), batches(1))
    train(model, optimizer, Categorical(), batches(1))
    with pytest.raises(ValueError, match="at least one batch"):
        optimizer.residual(model, Categorical(), [])


def test_it_works_where_gradients_are_off():
    model, data = mlp(), batches(2)
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    train(model, optimizer, Categorical(), data)
    with torch.no_grad():
        inside = optimizer.residual(model, Categorical(), data)
    assert inside == optimizer.residual(model, Categorical(), data)


def test_frozen_parameters_are_constants():
    """At the fixed point of the trainable ones the residual is 0, whatever the frozen ones are."""
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    with torch.no_grad():
        model.bias.fill_(5.0)
    optimizer = TANGO(model.parameters(), lr=0.0, gamma=0.3, weight_decay=0.1, preconditioner=None)
    data = [(torch.randn(6, 2), torch.randn(6, 1))]
    train(model, optimizer, Gaussian(), data * 600)
    assert optimizer.residual(model, Gaussian(), data) < 1e-8
