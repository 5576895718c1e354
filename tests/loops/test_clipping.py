"""What clipping does to the velocity: of gradients, and of the move."""

import math
from copy import deepcopy

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from tangograd import TANGO, Categorical, Gaussian, clip_move_

from ..cases import mlp
from ..test_optimizer import batches, train

#: Skewed data: the quantiles of an exponential distribution.
QUANTILES = -torch.log1p(-(torch.arange(50, dtype=torch.float64) + 0.5) / 50)


def settled_velocity(lr, gamma=0.05, clip_gradient=None, clip_move=None):
    """The mean of v with θ kept at 0, on single samples: F = 1 and E g = -mean of the data."""
    theta = torch.zeros(1, requires_grad=True)
    optimizer, likelihood = TANGO([theta], lr=lr, gamma=gamma, preconditioner=None), Gaussian()
    seen = []
    for _ in range(30):
        for y in QUANTILES[torch.randperm(len(QUANTILES))]:
            optimizer.zero_grad()
            with optimizer.tangents():
                loss = likelihood(theta[None], y[None, None])
            loss.backward()
            if clip_gradient is not None:
                clip_grad_norm_([theta], clip_gradient)
            optimizer.step()
            if clip_move is not None:
                clip_move_(optimizer, clip_move)
            seen.append(optimizer.state[theta]["velocity"].item())
            with torch.no_grad():
                theta.zero_()
    return sum(seen[500:]) / len(seen[500:])


def test_without_clipping_v_settles_at_the_damped_natural_gradient():
    mean = QUANTILES.mean().item()
    assert settled_velocity(0.0) == pytest.approx(-mean, abs=0.01)
    assert settled_velocity(0.05) == pytest.approx(-mean / (0.95 + 0.05 / 0.05), abs=0.01)


def test_clipping_the_move_keeps_the_fixed_point():
    """δt falls to M/‖v‖, which leaves of the damping M (1-γ)/γ = 0.002 at most."""
    mean = QUANTILES.mean().item()
    assert settled_velocity(0.05, clip_move=1e-4) == pytest.approx(-mean, abs=0.01)


def test_clipping_the_gradient_makes_a_median_of_the_mean():
    """It solves mean(clip(y + v)) = 0, Huber's estimate of location, not the natural gradient."""
    limit, low, high = 0.1, 0.0, 2.0
    for _ in range(50):
        middle = (low + high) / 2
        above = (QUANTILES - middle).clamp(-limit, limit).mean() > 0
        low, high = (middle, high) if above else (low, middle)
    assert abs(low - QUANTILES.median().item()) < 0.05  # near the median, ln 2
    settled = settled_velocity(0.0, clip_gradient=limit)
    assert settled == pytest.approx(-low, abs=0.02)
    assert abs(settled + QUANTILES.mean().item()) > 0.2  # and far from the mean


@pytest.mark.parametrize(("gamma", "limit"), [(0.3, 0.12), ("max", 0.15)])
def test_a_clipped_move_is_a_step_with_a_smaller_rate(gamma, limit):
    data = batches(12)
    torch.manual_seed(1)
    model = mlp()
    twin = deepcopy(model)
    options = {"gamma": gamma, "preconditioner": None, "weight_decay": 0.1}
    optimizer = TANGO(model.parameters(), lr=0.5, **options)
    other = TANGO(twin.parameters(), lr=0.5, **options)
    likelihood = Categorical(generator=torch.Generator().manual_seed(0))
    same = Categorical(generator=torch.Generator().manual_seed(0))
    lengths = []
    for batch in data:
        before = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        train(model, optimizer, likelihood, [batch])
        lengths.append(clip_move_(optimizer, limit))
        after = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        moved = min(lengths[-1], limit)
        assert (after - before).norm().item() == pytest.approx(moved, rel=1e-10)
        other.param_groups[0]["lr"] = 0.5 * moved / lengths[-1]
        train(twin, other, same, [batch])
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-13)
    assert max(lengths) > limit > min(lengths)  # it acted, and not always
    assert clip_move_(optimizer, limit) <= limit * (1 + 1e-12)  # twice is once
    assert optimizer.diagnostics()["damping"] == pytest.approx(other.diagnostics()["damping"])


def test_groups_are_shortened_alike():
    a, b = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = TANGO(
        [{"params": [a], "lr": 0.3}, {"params": [b], "lr": 0.4}], gamma=1.0, preconditioner=None
    )
    with optimizer.tangents():
        loss = Gaussian()(torch.stack([a, b], 1), torch.full((1, 2), 10.0))
    loss.backward()
    optimizer.step()
    assert clip_move_(optimizer, 0.5) == pytest.approx(5.0)
    assert (a.item(), b.item()) == pytest.approx((0.3, 0.4))
    assert [group["previous_lr"] for group in optimizer.param_groups] == pytest.approx([0.03, 0.04])


def test_as_a_hook():
    """In loops that others run, once: `register_step_post_hook`."""
    theta = torch.zeros(1, requires_grad=True)
    optimizer = TANGO([theta], lr=1.0, gamma=1.0, preconditioner=None)
    optimizer.register_step_post_hook(lambda optimizer, *_: clip_move_(optimizer, 0.25))
    loss = optimizer.evaluate(None, lambda: Gaussian()(theta[None], torch.ones(1, 1)))
    loss.backward()
    optimizer.step()
    assert theta.item() == 0.25


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan])
def test_bad_limits(limit):
    optimizer = TANGO([torch.zeros(1, requires_grad=True)], gamma=0.1, preconditioner=None)
    assert clip_move_(optimizer, 1.0) == 0.0  # no step yet
    with pytest.raises(ValueError, match="length of a step and must be positive"):
        clip_move_(optimizer, limit)


def test_accelerated_steps_are_refused():
    optimizer = TANGO([torch.zeros(1, requires_grad=True)], gamma=0.1, accelerated=True)
    with pytest.raises(ValueError, match="moves by v whatever δt is"):
        clip_move_(optimizer, 1.0)
