"""After backward, ``p.grad`` is exactly ``g - (1-δt) F̂ v``."""

import pytest
import torch

from tangograd import TANGO
from tangograd.vectors import flatten

from .cases import COMBINATIONS, MODELS, dense_estimate, problem, set_velocity


@pytest.mark.parametrize(("name", "fisher"), COMBINATIONS)
@pytest.mark.parametrize("model_name", MODELS)
def test_gradient_is_the_bracket(model_name, name, fisher):
    model, x, y, likelihood = problem(model_name, name, fisher=fisher)
    parameters = list(model.parameters())
    optimizer = TANGO(parameters, gamma=0.1, preconditioner=None)
    v = set_velocity(optimizer, model)
    g, F = dense_estimate(likelihood, model(x), y, parameters)
    with optimizer.tangents(model):
        loss = likelihood(model(x), y)
    loss.backward()
    bracket = g - 0.7 * F @ v
    assert (flatten([p.grad for p in parameters]) - bracket).abs().max() < 1e-12 * max(
        1, bracket.abs().max()
    )
    assert loss.item() == pytest.approx(likelihood(model(x), y).item(), rel=1e-14)
    assert (0.7 * F @ v).abs().max() > 1e-3  # there is something to test


@pytest.mark.parametrize(("name", "fisher"), COMBINATIONS)
def test_weights_and_ignored_samples(name, fisher):
    model, x, y, likelihood = problem("mlp", name, fisher=fisher)
    w = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0])
    parameters = list(model.parameters())
    optimizer = TANGO(parameters, gamma=0.1, preconditioner=None)
    v = set_velocity(optimizer, model)
    g, F = dense_estimate(likelihood, model(x), y, parameters, w)
    with optimizer.tangents(model):
        loss = likelihood(model(x), y, w)
    loss.backward()
    bracket = g - 0.7 * F @ v
    assert (flatten([p.grad for p in parameters]) - bracket).abs().max() < 1e-12 * max(
        1, bracket.abs().max()
    )


@pytest.mark.parametrize("fisher", ["expected", "empirical"])
@pytest.mark.parametrize("name", ["categorical", "gaussian", "poisson"])
def test_micro_batches_equal_one_large_batch(name, fisher):
    model, x, y, likelihood = problem("mlp", name, fisher=fisher)
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    set_velocity(optimizer, model)
    with optimizer.tangents(model):
        loss = likelihood(model(x), y)
    loss.backward()
    large = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    for part in (slice(0, 2), slice(2, 5)):
        with optimizer.tangents(model):
            loss = likelihood(model(x[part]), y[part]) * len(x[part]) / len(x)
        loss.backward()
    for p, g in zip(model.parameters(), large, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-13, atol=1e-14)


def test_micro_batches_of_sampled_given_the_same_pseudo_samples(monkeypatch):
    model, x, y, likelihood = problem("mlp", "categorical", fisher="sampled")
    drawn = torch.tensor([0, 3, 1, 2, 2])
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    set_velocity(optimizer, model)

    def gradient(parts):
        optimizer.zero_grad()
        for part in parts:
            monkeypatch.setattr(likelihood, "sample", lambda _, part=part: drawn[part])
            with optimizer.tangents(model):
                loss = likelihood(model(x[part]), y[part]) * len(x[part]) / len(x)
            loss.backward()
        return flatten([p.grad for p in model.parameters()])

    torch.testing.assert_close(
        gradient([slice(0, 5)]), gradient([slice(0, 1), slice(1, 5)]), rtol=1e-13, atol=1e-14
    )


def test_two_losses_in_one_block_add_their_fisher_matrices():
    model, x, y, likelihood = problem("mlp", "categorical")
    parameters = list(model.parameters())
    optimizer = TANGO(parameters, gamma=0.1, preconditioner=None)
    v = set_velocity(optimizer, model)
    _, _, y2, second = problem("mlp", "gaussian")
    g1, F1 = dense_estimate(likelihood, model(x), y, parameters)
    g2, F2 = dense_estimate(second, model(x), y2, parameters)

    def losses():
        z = model(x)
        return likelihood(z, y) + second(z, y2)

    optimizer.evaluate(model, losses).backward()
    bracket = g1 + g2 - 0.7 * (F1 + F2) @ v
    torch.testing.assert_close(
        flatten([p.grad for p in parameters]), bracket, rtol=1e-12, atol=1e-13
    )


def test_groups_decay_their_velocities_by_their_own_rates():
    model, x, y, likelihood = problem("mlp", "categorical")
    parameters = list(model.parameters())
    optimizer = TANGO(
        [{"params": parameters[:2]}, {"params": parameters[2:]}], gamma=0.1, preconditioner=None
    )
    set_velocity(optimizer, model)
    optimizer.param_groups[0]["previous_lr"] = 0.9
    optimizer.param_groups[1]["previous_lr"] = 0.2
    factors = [0.1, 0.1, 0.8, 0.8]
    v = [f * optimizer.state[p]["velocity"] for f, p in zip(factors, parameters, strict=True)]
    g, F = dense_estimate(likelihood, model(x), y, parameters)
    with optimizer.tangents(model):
        loss = likelihood(model(x), y)
    loss.backward()
    torch.testing.assert_close(
        flatten([p.grad for p in parameters]), g - F @ flatten(v), rtol=1e-12, atol=1e-13
    )
