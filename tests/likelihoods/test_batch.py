"""Samples that do not count stay in the batch, without any effect."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal

from tangograd import TANGO, Categorical, FromDistribution, Gaussian
from tangograd.estimates import ESTIMATES
from tangograd.session import current
from tangograd.vectors import flatten

from ..cases import LIKELIHOODS, problem, set_velocity

POISONS = {
    "nan": (math.nan, math.nan),
    "minus infinity": (-math.inf, math.nan),
    "infinity": (math.inf, -math.inf),
    "large": (1e300, 1e300),
}


class Poisoned(nn.Module):
    """Outputs of a model, with a number added to those of some rows."""

    def __init__(self, body, rows, number):
        super().__init__()
        self.body, self.rows, self.number = body, rows, number

    def forward(self, x):
        z = self.body(x)
        return z.masked_fill(self.rows.reshape(-1, 1), self.number)


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("fisher", ESTIMATES)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_rows_of_weight_zero_may_hold_anything(monkeypatch, name, fisher, poison):
    """The bracket is that of the other rows."""
    if (name, fisher) == ("student-t", "expected"):
        return
    body, x, y, likelihood = problem("mlp", name, fisher=fisher)
    output, target = POISONS[poison]
    w = torch.tensor([0.0, 2.0, 0.0, 1.0, 3.0])
    kept = w > 0
    spoilt = y.clone()
    spoilt[~kept] = target if y.is_floating_point() else 10**6
    with torch.no_grad():
        drawn = likelihood.sample(body(x))
    parameters = list(body.parameters())

    def bracket(model, x, y, w, drawn):
        monkeypatch.setattr(likelihood, "sample", lambda z: drawn)
        optimizer = TANGO(parameters, gamma=0.1, preconditioner=None)
        torch.manual_seed(1)
        set_velocity(optimizer, body)
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y, w)
        loss.backward()
        return loss.detach(), flatten([p.grad for p in parameters])

    loss, found = bracket(Poisoned(body, ~kept, output), x, spoilt, w, drawn)
    expected_loss, expected = bracket(body, x[kept], y[kept], w[kept], drawn[kept])
    torch.testing.assert_close(loss, expected_loss, rtol=1e-13, atol=0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_ignored_classes(shape):
    z = torch.randn(*shape, 4, requires_grad=True)
    y = torch.tensor([0, -100, 3, -100, 1, 2]).reshape(shape)
    kept = y != -100
    spoilt = z.masked_fill(~kept.unsqueeze(-1), math.nan)
    loss = Categorical()(spoilt, y)
    loss.backward()
    assert loss.item() == pytest.approx(Categorical()(z[kept], y[kept]).item(), rel=1e-14)
    assert z.grad.isfinite().all()
    assert z.grad[~kept].abs().max() == 0


def test_a_class_of_weight_zero_counts_no_more_than_an_ignored_one():
    z, y = torch.randn(3, 2), torch.tensor([0, 1, 0])
    z[1] = math.nan
    likelihood = Categorical(weight=torch.tensor([2.0, 0.0]))
    assert likelihood(z, y).item() == pytest.approx(Categorical()(z[::2], y[::2]).item())


def test_distributions_are_made_from_outputs_that_count():
    """Zeros would not do: a scale of 0 is refused by torch.distributions."""
    likelihood = FromDistribution(lambda z: Normal(z[..., 0], z[..., 1]), event_dims=1)
    z = torch.tensor([[math.nan, -1.0], [0.0, 2.0], [1.0, 3.0]])
    y, w = torch.tensor([math.nan, 1.0, 0.0]), torch.tensor([0.0, 1.0, 1.0])
    expected = likelihood(z[1:], y[1:]).item()
    assert likelihood(z, y, w).item() == pytest.approx(expected, rel=1e-14)


class TestInvalid:
    """Nothing raises before ``raise_if_invalid``, and shapes do not depend on data."""

    @pytest.mark.parametrize(
        ("targets", "weights", "message"),
        [
            ([0, 4, 1], None, r"0 to 3; got 4 at position \(1,\)"),
            ([-1, 10**9, 1], None, r"got -1 at position \(0,\)"),
            ([-100, -100, -100], None, "no sample counts"),
            ([0, 1, 2], [0.0, 0.0, 0.0], "no sample counts"),
            ([0, 4, 2], [1.0, 0.0, -1.0], "finite and not negative"),
        ],
    )
    def test_the_message_is_made_later(self, targets, weights, message):
        w = None if weights is None else torch.tensor(weights)
        batch = Categorical().batch(torch.randn(3, 4), torch.tensor(targets), w)
        assert batch.z.shape == (3, 4)
        assert batch.invalid.shape == ()
        assert batch.invalid
        Categorical().log_loss(batch.z, batch.y)  # indices are in bounds
        with pytest.raises(ValueError, match=message):
            batch.raise_if_invalid()

    def test_targets_of_weight_zero_are_not_checked(self):
        y, w = torch.tensor([0, 99, 1]), torch.tensor([1.0, 0.0, 1.0])
        assert not Categorical().batch(torch.randn(3, 4), y, w).invalid

    def test_an_empty_batch(self):
        with pytest.raises(ValueError, match="no sample counts"):
            Categorical().batch(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))

    def test_nothing_is_read_from_the_device(self):
        """Meta tensors have no values to read."""
        for likelihood, y in (
            (Categorical(), torch.zeros(3, dtype=torch.long)),
            (Categorical(weight=torch.ones(4), label_smoothing=0.1), torch.zeros(3).long()),
            (Categorical(), torch.zeros(3, 4)),
            (Gaussian(), torch.zeros(3, 4)),
        ):
            z, y = torch.zeros(3, 4, device="meta"), y.to("meta")
            batch = likelihood.to("meta").batch(z, y, torch.ones(3, device="meta"))
            assert batch.weights.shape == (3,)
            assert likelihood.log_loss(batch.z, batch.y).shape == (3,)
            assert likelihood.midpoint_product(batch.z, batch.y, batch.z).shape == (3, 4)


def test_pseudo_gradients_are_drawn_of_rows_that_count():
    theta = torch.zeros(4, 2, requires_grad=True)
    w = torch.tensor([0.0, 1.0, 0.0, 3.0])
    optimizer = TANGO([theta], gamma=0.1, preconditioner=None)
    with optimizer.tangents():
        Gaussian()(1 * theta, torch.ones(4, 2), w)
        (term,) = current.get().terms
    for position, row, weight in ((0.0, 1, 0.5), (0.49, 1, 0.5), (0.5, 3, 1.5), (0.99, 3, 1.5)):
        cotangent, found = term.draw(position)
        assert cotangent.abs().sum(1).nonzero().flatten().tolist() == [row]
        assert found.item() == pytest.approx(weight)
