"""Each sampled estimate averages to the dense Fisher matrix, with ỹ enumerated."""

from itertools import product

import pytest
import torch

from tangograd import TANGO, Bernoulli, Categorical
from tangograd.reference import fisher_matrix
from tangograd.vectors import flatten

from .cases import MODELS, OUTPUTS, set_velocity


def all_samples(likelihood, z):
    """Every ỹ of a small batch, with its probability."""
    if isinstance(likelihood, Categorical):
        p = z.softmax(-1)
        for y in product(range(z.shape[-1]), repeat=len(z)):
            y = torch.tensor(y)
            yield y, p.gather(-1, y[:, None]).prod()
    else:
        p = z.sigmoid()
        for y in product((0.0, 1.0), repeat=z.numel()):
            y = torch.tensor(y).reshape(z.shape)
            yield y, torch.where(y == 1, p, 1 - p).prod()


@pytest.mark.parametrize("fisher", ["sampled", "minibatch"])
@pytest.mark.parametrize("family", [Categorical, Bernoulli])
@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 1.0)])
def test_estimates_average_to_the_dense_fisher(monkeypatch, family, fisher, weights):
    make, _ = MODELS["mlp"]
    rows = 3 if family is Categorical else 2
    model, x = make(), torch.randn(rows, 3)
    likelihood = family(fisher=fisher)
    w = None if weights is None else torch.tensor(weights[:rows])
    z = model(x)
    targets = next(all_samples(likelihood, z.detach()))[0]
    parameters = list(model.parameters())
    optimizer = TANGO(parameters, gamma=1e-3, preconditioner=None)
    v = set_velocity(optimizer, model)
    g = torch.autograd.grad(likelihood(z, targets, w), parameters, retain_graph=True)
    mean = torch.zeros_like(v)
    total, spread = 0.0, 0.0
    for y_tilde, probability in all_samples(likelihood, z.detach()):
        monkeypatch.setattr(likelihood, "sample", lambda _, y=y_tilde: y)
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), targets, w)
        loss.backward()
        bracket = flatten([p.grad for p in parameters])
        mean += probability * bracket
        spread = max(spread, (bracket - mean).abs().max().item())
        total += probability
    F = fisher_matrix(likelihood, z, parameters, w)
    assert float(total) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(mean, flatten(g) - 0.7 * F @ v, rtol=1e-11, atol=1e-12)
    assert spread > 1e-3  # the estimates themselves do vary


def test_the_rank_one_estimate_has_rank_one_and_the_batchs_factor():
    """F̂ = B g̃g̃ᵀ with g̃ the mean over the batch: without the factor B, E F̂ would be F/B."""
    torch.manual_seed(1)
    model, x = MODELS["mlp"][0](), torch.randn(6, 3)
    parameters = list(model.parameters())
    likelihood = Categorical(fisher="minibatch")
    y, y_tilde = torch.arange(6) % OUTPUTS, torch.arange(6).flip(0) % OUTPUTS
    likelihood.sample = lambda _: y_tilde
    optimizer = TANGO(parameters, gamma=1e-3, preconditioner=None)
    v = set_velocity(optimizer, model)
    with optimizer.tangents(model):
        loss = likelihood(model(x), y)
    loss.backward()
    plain = Categorical()
    g = flatten(torch.autograd.grad(plain(model(x), y), parameters))
    g_tilde = flatten(torch.autograd.grad(plain(model(x), y_tilde), parameters))
    expected = g - 6 * 0.7 * (g_tilde @ v) * g_tilde
    torch.testing.assert_close(
        flatten([p.grad for p in parameters]), expected, rtol=1e-12, atol=1e-13
    )


def test_accumulated_minibatches_are_unbiased(monkeypatch):
    """Two micro-batches of "minibatch": averaged over all ỹ, the bracket is g - (1-δt) F v."""
    make, _ = MODELS["mlp"]
    model, x, y = make(), torch.randn(3, 3), torch.tensor([0, 2, 1])
    likelihood = Categorical(fisher="minibatch")
    parameters = list(model.parameters())
    optimizer = TANGO(parameters, gamma=1e-3, preconditioner=None)
    v = set_velocity(optimizer, model)
    z = model(x).detach()
    mean = torch.zeros_like(v)
    for y_tilde, probability in all_samples(likelihood, z):
        optimizer.zero_grad()
        for part in (slice(0, 1), slice(1, 3)):
            monkeypatch.setattr(likelihood, "sample", lambda _, t=y_tilde[part]: t)
            with optimizer.tangents(model):
                loss = likelihood(model(x[part]), y[part]) * len(x[part]) / 3
            loss.backward()
        mean += probability * flatten([p.grad for p in parameters])
    g = flatten(torch.autograd.grad(Categorical()(model(x), y), parameters))
    F = fisher_matrix(likelihood, model(x), parameters)
    torch.testing.assert_close(mean, g - 0.7 * F @ v, rtol=1e-11, atol=1e-12)
