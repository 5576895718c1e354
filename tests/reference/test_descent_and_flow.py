"""Exact natural gradient descent, its flow, and averaged SGD."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tangograd import Categorical, Gaussian, MeanScaleGaussian
from tangograd.reference import AveragedSGD, NaturalGradient, natural_gradient_flow


def test_one_full_step_solves_linear_regression():
    x, y, theta = torch.randn(20, 3), torch.randn(20), torch.randn(3, requires_grad=True)
    NaturalGradient([theta], Gaussian(5.0), lr=1.0).step(x @ theta, y)
    expected = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    torch.testing.assert_close(theta.detach(), expected, rtol=1e-10, atol=1e-10)


def test_damped_descent_trains_a_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(12, 3), torch.arange(12) % 3
    optimizer = NaturalGradient(model.parameters(), Categorical(), lr=0.5, damping=1e-2)
    losses = [optimizer.step(model(x), y).item() for _ in range(40)]
    assert losses[-1] < 0.3 * losses[0]


def test_bad_arguments():
    theta = torch.zeros(1, requires_grad=True)
    with pytest.raises(ValueError, match="cannot be negative"):
        NaturalGradient([theta], Gaussian(), lr=-1)
    with pytest.raises(ValueError, match="between 0 and 1"):
        AveragedSGD([theta], lr=2.0)
    with pytest.raises(ValueError, match="gamma must be positive"):
        AveragedSGD([theta], gamma=0.0)


def test_the_papers_figure_in_closed_form():
    """From N(0,1) to N(10,1): μ = 10(1-e⁻ᵗ), σ² = 1 + 100 e⁻ᵗ(1-e⁻ᵗ), the circle of radius √26."""
    theta = torch.zeros(2, requires_grad=True)
    targets = torch.tensor([[9.0], [11.0]])  # mean 10, variance 1
    times = [0.0, 0.3, math.log(2), 1.5, 3.0]
    path = natural_gradient_flow(
        MeanScaleGaussian(), lambda: theta.expand(2, 2), targets, [theta], times
    ).numpy()
    t = np.array(times)
    mu, variance = 10 * (1 - np.exp(-t)), 1 + 100 * np.exp(-t) * (1 - np.exp(-t))
    np.testing.assert_allclose(path[:, 0], mu, atol=1e-7)
    np.testing.assert_allclose(np.exp(2 * path[:, 1]), variance, rtol=1e-7)
    np.testing.assert_allclose((path[:, 0] - 5) ** 2 + np.exp(2 * path[:, 1]), 26, rtol=1e-7)
    assert theta.detach().equal(torch.zeros(2))


def test_the_parameters_are_restored_after_an_error():
    theta = torch.ones(1, requires_grad=True)

    def forward():
        if theta.item() != 1:
            raise ValueError("mine")
        return theta.expand(2, 1)

    with pytest.raises(ValueError, match="mine"):
        natural_gradient_flow(Gaussian(), forward, torch.zeros(2, 1), [theta], [1.0])
    assert theta.item() == 1


def test_averaged_sgd_against_its_definition():
    theta = torch.tensor([1.0, -2.0], requires_grad=True)
    optimizer = AveragedSGD([theta], gamma=0.3)
    fast, average = theta.detach().clone(), theta.detach().clone()
    for k in range(20):
        dt = 1 / (k + 1)
        optimizer.param_groups[0]["lr"] = dt
        optimizer.zero_grad()
        (theta.square().sum() + theta.prod()).backward()
        optimizer.step()
        fast = fast - 0.3 * (2 * fast + fast.flip(0))
        average = (1 - dt) * average + dt * fast
        torch.testing.assert_close(theta.detach(), fast, rtol=0, atol=1e-13)
        torch.testing.assert_close(optimizer.state[theta]["average"], average, rtol=0, atol=1e-13)
    with pytest.raises(KeyError), optimizer.averaged():
        torch.testing.assert_close(theta.detach(), average, rtol=0, atol=1e-13)
        raise KeyError
    torch.testing.assert_close(theta.detach(), fast, rtol=0, atol=1e-13)
