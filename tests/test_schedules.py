"""δt stays, then averages."""

import warnings

import pytest
import torch

from tangograd import TANGO, Gaussian
from tangograd.schedules import constant_then_average


def rates(lr, constant, steps):
    theta = torch.zeros(1, requires_grad=True)
    optimizer, likelihood = TANGO([theta], lr=lr, gamma=0.5, preconditioner=None), Gaussian()
    schedule = constant_then_average(optimizer, constant)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        optimizer.evaluate(
            None, lambda: likelihood(theta.expand(4, 1), torch.ones(4, 1))
        ).backward()
        optimizer.step()
        schedule.step()
    return found


def test_the_inverse_grows_by_one_a_step():
    found = rates(0.25, 3, 7)
    torch.testing.assert_close(
        torch.tensor(found), 1 / torch.tensor([4.0, 4.0, 4.0, 4.0, 5.0, 6.0, 7.0])
    )


def test_the_default_waits_for_ten_time_constants():
    found = rates(0.5, None, 23)
    assert found[20] == 0.5
    assert found[21] == pytest.approx(1 / 3)


def test_averaging_is_that_of_the_rest_of_the_path():
    """γ = F = 1: δt = 1 at first, so that θ is the mean of the targets from there on."""
    y = torch.randn(50)
    theta = torch.zeros(1, requires_grad=True)
    optimizer, likelihood = TANGO([theta], lr=1.0, gamma=1.0, preconditioner=None), Gaussian()
    schedule = constant_then_average(optimizer, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # γ is at the bound exactly
        for target in y:
            optimizer.zero_grad()
            optimizer.evaluate(
                None, lambda t=target: likelihood(theta[None], t[None, None])
            ).backward()
            optimizer.step()
            schedule.step()
    torch.testing.assert_close(theta.detach()[0], y[5:].mean())


@pytest.mark.parametrize("lr", [0.0])
def test_it_needs_a_rate_to_start_from(lr):
    with pytest.raises(ValueError, match="0 < lr <= 1; got 0.0"):
        constant_then_average(TANGO([torch.zeros(1, requires_grad=True)], lr=lr))
