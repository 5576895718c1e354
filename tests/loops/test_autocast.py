"""Models in 16 bits by autocast: the bracket is as exact as the gradient is."""

from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from torch import nn

from tangograd import TANGO, Categorical, Gaussian
from tangograd.vectors import flatten

bfloat16 = torch.autocast("cpu", torch.bfloat16)


def multilayer():
    return nn.Sequential(
        nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5)
    )


def normalised():
    return nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 5))


def convolutional():
    body = [
        nn.Unflatten(1, (1, 4, 5)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
    ]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(160, 5))


class Raw(nn.Module):
    """A bare matrix product, whose 16-bit weight autocast keeps for its whole block."""

    def __init__(self):
        super().__init__()
        self.W = nn.Parameter(torch.randn(20, 5) / 4)

    def forward(self, x):
        return x @ self.W


MODELS = [multilayer, normalised, convolutional, Raw]


def data(rows=32):
    return torch.randn(rows, 20), torch.randint(5, (rows,))


def bracket(model, x, y, velocity, autocast, likelihood_inside=True):
    """The bracket for this velocity, in double precision; and the loss."""
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    optimizer.param_groups[0]["previous_lr"] = 0.1
    for p, v in zip(model.parameters(), velocity, strict=True):
        optimizer.state[p]["velocity"] = v.to(p)
    likelihood = Categorical()
    with optimizer.tangents(model):
        with autocast:
            z = model(x)
            if likelihood_inside:
                loss = likelihood(z, y)
        if not likelihood_inside:
            loss = likelihood(z, y)
    optimizer.zero_grad()
    loss.backward()
    return flatten([p.grad for p in model.parameters()]).double(), loss


@pytest.mark.parametrize("likelihood_inside", [True, False])
@pytest.mark.parametrize("make", MODELS)
def test_the_error_of_the_bracket_is_that_of_the_gradient(make, likelihood_inside):
    exact, (x, y) = make(), data()
    model = deepcopy(exact).float()
    velocity = [0.5 * p.detach().abs().mean() * torch.randn_like(p) for p in exact.parameters()]
    zero = [torch.zeros_like(v) for v in velocity]

    def error(velocity):
        truth, _ = bracket(exact, x, y, velocity, nullcontext())
        found, loss = bracket(model, x.float(), y, velocity, bfloat16, likelihood_inside)
        assert loss.dtype == torch.float32
        return ((found - truth).norm() / truth.norm()).item()

    assert 1e-4 < error(zero) < 0.04  # of the gradient; it did run in 16 bits
    assert error(velocity) < min(0.04, 2 * error(zero))


@pytest.mark.parametrize("make", MODELS)
def test_blocks_in_one_autocast_region_do_not_share_tangents(make):
    """Autocast keeps 16-bit weights for its whole region; their tangents would be of the past."""
    model, (x, y) = make().float(), data()
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    likelihood = Categorical()

    def bracket_of(scale):
        torch.manual_seed(1)
        for p in model.parameters():
            optimizer.state[p]["velocity"] = scale * torch.randn_like(p)
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x.float()), y)
        loss.backward()
        return flatten([p.grad for p in model.parameters()])

    with bfloat16:
        alone = bracket_of(0.1)
    with bfloat16:
        others = [bracket_of(scale) for scale in (-0.1, 0.0, 0.2)]
        again = bracket_of(0.1)
    torch.testing.assert_close(again, alone, rtol=1e-3, atol=1e-4)
    assert all((other - alone).norm() > 0.01 * alone.norm() for other in others)


def test_derivatives_in_one_autocast_region():
    """There the weights that autocast keeps do carry tangents: each block must have its own."""
    model, likelihood, x = Raw().float(), Gaussian(), data()[0].float()
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)

    def loss():
        inputs = x.clone().requires_grad_()
        outputs = model(inputs).tanh()
        (slopes,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        return likelihood(slopes, torch.zeros_like(slopes))

    def bracket_of(scale):
        optimizer.state[model.W]["velocity"] = scale * torch.ones_like(model.W)
        optimizer.zero_grad()
        optimizer.evaluate(model, loss).backward()
        return model.W.grad.clone()

    with bfloat16:
        alone = bracket_of(0.1)
    with bfloat16:
        other, again = bracket_of(-0.1), bracket_of(0.1)
    torch.testing.assert_close(again, alone)
    assert (other - alone).norm() > 0.1 * alone.norm()


def test_small_batches_in_16_bits_are_no_disagreement():
    """Tangents and gradients agree but for rounding: in single precision outputs it is not seen."""
    for seed in range(6):
        torch.manual_seed(seed)
        layers = [nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()]
        model, likelihood = nn.Sequential(*layers, nn.Linear(16, 1)).float(), Gaussian()
        x, y = torch.randn(2, 8).float(), torch.randn(2, 1).float()
        optimizer = TANGO(model.parameters(), gamma="max", preconditioner=None)
        for _ in range(16):
            optimizer.zero_grad()
            with optimizer.tangents(model):
                with bfloat16:
                    z = model(x)
                loss = likelihood(z.float(), y)
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize("gamma", ["max", "auto"])
@pytest.mark.parametrize("make", [multilayer, convolutional])
def test_kronecker_factors_are_kept_in_the_precision_of_the_weights(make, gamma):
    """Autocast around the whole block, which must not reach what is made of the gradients."""
    torch.manual_seed(2)
    model, (x, y) = make().float(), data()
    found = []
    for autocast in (nullcontext(), bfloat16):
        likelihood = Categorical(generator=torch.Generator().manual_seed(3))
        optimizer = TANGO(model.parameters(), lr=0.0, gamma=gamma, preconditioner="kronecker")
        for _ in range(3):  # at rate 0 the model stays where it is
            optimizer.zero_grad()
            with autocast, optimizer.tangents(model):
                loss = likelihood(model(x.float()), y)
            loss.backward()
            optimizer.step()
        factors = optimizer.param_groups[0]["preconditioner"].state_dict()
        found.append(factors["A"] + factors["G"])
    for exact, M in zip(*found, strict=True):
        assert M.dtype == torch.float32
        assert (M - exact).norm() < 0.1 * exact.norm()


def train(model, optimizer, steps, dtype, scaler):
    (x, y), likelihood = data(), Categorical()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with optimizer.tangents(model), torch.autocast("cpu", dtype):
            loss = likelihood(model(x.float()), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("gamma", "preconditioner"), [(0.1, None), ("max", None), ("auto", "auto")]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", MODELS)
def test_training(make, dtype, gamma, preconditioner):
    """Also with a scaler, as 16 bits with five of exponent need; no warning: "auto" is not blind."""
    model = make().float()
    optimizer = TANGO(model.parameters(), lr=0.3, gamma=gamma, preconditioner=preconditioner)
    optimizer.scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    losses = train(model, optimizer, 25, dtype, optimizer.scaler)
    assert optimizer.param_groups[0]["steps"] == 25  # none was skipped
    assert losses[-1] < (0.6 if gamma == "auto" else 0.95) * losses[0]
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())


def test_targets_keep_their_digits():
    z, y = torch.zeros(1, 1, dtype=torch.bfloat16), torch.full((1, 1), 1.001, dtype=torch.float32)
    loss = Gaussian()(z, y)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, Gaussian()(z.float(), y))
