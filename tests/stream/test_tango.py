"""The compiled kernels against the optimizer's own update."""

import math

import numpy as np
import pytest
import torch
from numba import njit

from tangograd import TANGO, MeanScaleGaussian
from tangograd.curvature.planning import Plan
from tangograd.optimizer import tango_update
from tangograd.stream import averaged_sgd, tango
from tangograd.stream.models import gaussian

DATA = [2.0, 0.5]


@njit
def regression(theta, rng, constants, g, g_tilde):
    """Least squares in d = 3, with an ill-conditioned x."""
    x = np.empty(3)
    residual = rng.standard_normal()
    for i in range(3):
        x[i] = rng.standard_normal() * (1 + i)
        residual += x[i] * (theta[i] - constants[i])
    z = rng.standard_normal()
    for i in range(3):
        g[i], g_tilde[i] = residual * x[i], z * x[i]


def by_hand(
    gradients,
    theta,
    *,
    gamma,
    dt,
    steps,
    rng,
    constants,
    C=None,
    batch=1,
    rank_one=False,
    accelerated=False,
):
    """The same steps through `tango_update`."""
    theta, v = torch.tensor(theta), torch.zeros(len(theta))
    for k in range(1, steps + 1):
        g, g_tilde = np.empty((batch, len(theta))), np.empty((batch, len(theta)))
        for b in range(batch):
            gradients(theta.numpy(), rng, np.array(constants), g[b], g_tilde[b])
        if rank_one:
            F = batch * np.outer(g_tilde.mean(0), g_tilde.mean(0))
        else:
            F = g_tilde.T @ g_tilde / batch
        bracket = torch.tensor(g.mean(0)) - (1 - dt[k - 1]) * torch.tensor(F) @ v
        if C is not None:
            bracket = torch.tensor(C) * bracket
        tango_update(
            [theta],
            [v],
            [bracket],
            Plan(gamma, keep=1 - dt[k - 1], move=1.0 if accelerated else dt[k]),
        )
    return theta, v


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"C": [0.5, 2.0, 0.1]},
        {"batch": 4},
        {"batch": 4, "rank_one": True},
        {"accelerated": True},
    ],
    ids=str,
)
def test_kernel_is_the_optimizers_update(options):
    dt = 0.5 / np.arange(1, 202) ** 0.5
    common = {"gamma": 0.01, "dt": dt, "steps": 200, "constants": [1.0, -1.0, 2.0], **options}
    run = tango(regression, [0.3, 0.0, -0.2], rng=np.random.default_rng(5), **common)
    theta, v = by_hand(regression, [0.3, 0.0, -0.2], rng=np.random.default_rng(5), **common)
    assert np.abs(run.theta[-1] - theta.numpy()).max() < 1e-12
    assert np.abs(run.v[-1] - v.numpy()).max() < 1e-12


@pytest.mark.filterwarnings("ignore:at this point of training:RuntimeWarning")  # γ, deliberately
def test_kernel_is_the_optimizer_itself():
    """`TANGO` on the Gaussian of Figure 1, with the pseudo-samples that the kernel draws."""

    class Scripted(MeanScaleGaussian):
        def sample(self, outputs):
            mean, log_scale = outputs.chunk(2, -1)
            return mean + log_scale.exp() * pseudo

    theta = torch.tensor([0.0, 0.0], requires_grad=True)
    likelihood = Scripted(fisher="sampled")
    optimizer = TANGO([theta], lr=0.05, gamma=0.01, preconditioner=None)
    rng = np.random.default_rng(3)
    for _ in range(100):
        y = DATA[0] + DATA[1] * rng.standard_normal()
        pseudo = rng.standard_normal()
        optimizer.zero_grad()
        with optimizer.tangents():
            loss = likelihood(theta[None], torch.tensor([[y]]))
        loss.backward()
        optimizer.step()
    run = tango(
        gaussian,
        [0, 0],
        gamma=0.01,
        dt=0.05,
        steps=100,
        constants=DATA,
        rng=np.random.default_rng(3),
    )
    assert np.abs(run.theta[-1] - theta.detach().numpy()).max() < 1e-12


def test_records_and_the_largest_velocity():
    common = {"gamma": 0.01, "dt": 0.01, "constants": DATA}
    every = tango(gaussian, [0, 0], steps=60, records=60, rng=np.random.default_rng(0), **common)
    some = tango(gaussian, [0, 0], steps=60, records=3, rng=np.random.default_rng(0), **common)
    assert np.array_equal(some.theta, every.theta[::20])
    assert np.array_equal(some.v, every.v[::20])
    assert math.isclose(every.largest, np.linalg.norm(every.v, axis=1).max(), rel_tol=1e-14)
    with pytest.raises(ValueError, match="multiple of records"):
        tango(gaussian, [0, 0], steps=10, records=3, rng=np.random.default_rng(0), **common)


def test_frozen_parameters_stay():
    run = tango(
        gaussian,
        [1.0, 0.5],
        gamma=0.01,
        dt=0.01,
        steps=50,
        frozen=True,
        constants=DATA,
        rng=np.random.default_rng(0),
    )
    assert np.array_equal(run.theta[-1], [1.0, 0.5])
    assert np.abs(run.v[-1]).max() > 0


def test_averaged_sgd_is_its_two_equations():
    rng = np.random.default_rng(1)
    fast, average, dt = np.zeros(2), np.zeros(2), 1 / np.arange(1, 52)
    g, unused = np.empty(2), np.empty(2)
    for k in range(1, 51):
        gaussian(fast, rng, np.array(DATA), g, unused)
        fast = fast - 0.03 * g
        average = (1 - dt[k]) * average + dt[k] * fast
    run = averaged_sgd(
        gaussian, [0, 0], gamma=0.03, dt=dt, steps=50, constants=DATA, rng=np.random.default_rng(1)
    )
    assert np.abs(run.theta[-1] - average).max() < 1e-13
    assert np.abs(run.v[-1] - fast).max() < 1e-13


def test_sgd_is_tango_at_dt_one():
    rng, theta, g, unused = np.random.default_rng(2), np.zeros(2), np.empty(2), np.empty(2)
    for _ in range(50):
        gaussian(theta, rng, np.array(DATA), g, unused)
        theta = theta - 0.01 * g
    run = tango(
        gaussian, [0, 0], gamma=0.01, dt=1.0, steps=50, constants=DATA, rng=np.random.default_rng(2)
    )
    assert np.abs(run.theta[-1] - theta).max() < 1e-13
