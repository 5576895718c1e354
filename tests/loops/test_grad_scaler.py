"""torch.amp.GradScaler: a step with one equals the step without, or is skipped without a trace."""

import math
from copy import deepcopy

import pytest
import torch
from torch import nn

from tangograd import TANGO, Categorical
from tangograd.preconditioners import Diagonal

from ..cases import mlp
from ..test_optimizer import batches
from ..test_session import same, snapshot

GAMMAS = [0.1, "max", "gaussian", "auto"]
PRECONDITIONERS = [None, "auto", "rmsprop", "kronecker"]


def scaler(**options):
    """Scales are powers of two, as they are by default, so that dividing by them is exact."""
    return torch.amp.GradScaler("cpu", **({"growth_interval": 5} | options))


def setting(gamma, preconditioner="auto", **options):
    torch.manual_seed(3)
    model = mlp()
    optimizer = TANGO(
        model.parameters(), lr=0.2, gamma=gamma, preconditioner=preconditioner, **options
    )
    return model, optimizer, Categorical(generator=torch.Generator().manual_seed(0))


def train(model, optimizer, likelihood, data, scaler=None, *, parts=1, unscale=False):
    for x, y in data:
        optimizer.zero_grad()
        for x_part, y_part in zip(x.tensor_split(parts), y.tensor_split(parts), strict=True):
            with optimizer.tangents(model):
                loss = likelihood(model(x_part), y_part) * (len(x_part) / len(x))
            (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is None:
            optimizer.step()
            continue
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def assert_same_run(ours, theirs):
    for p, q in zip(ours[0].parameters(), theirs[0].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)
    for name, value in ours[1].diagnostics().items():
        assert value == pytest.approx(theirs[1].diagnostics()[name], rel=1e-9, nan_ok=True), name


@pytest.mark.parametrize("preconditioner", PRECONDITIONERS)
@pytest.mark.parametrize("gamma", GAMMAS)
def test_steps_equal_those_without_a_scaler(gamma, preconditioner):
    options = {"gamma": gamma, "preconditioner": preconditioner, "weight_decay": 0.01}
    plain, scaled = setting(**options), setting(**options)
    train(*plain, batches(24, rows=8))
    scaled[1].scaler = scaler()
    train(*scaled, batches(24, rows=8), scaled[1].scaler)
    assert scaled[1].scaler.get_scale() == 2.0**20  # it grew on the way
    assert_same_run(plain, scaled)


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_with_accumulation_over_unequal_parts(gamma, unscale):
    plain, scaled = setting(gamma), setting(gamma)
    train(*plain, batches(12, rows=8), parts=3)
    scaled[1].scaler = scaler()
    train(*scaled, batches(12, rows=8), scaled[1].scaler, parts=3, unscale=unscale)
    assert_same_run(plain, scaled)


def test_a_user_factor_stays_one():
    """Only the scale is taken out; "max" still sees the factor of the loss."""
    model, optimizer, likelihood = setting("max", None)
    (x, y), scale = batches(1)[0], scaler()
    optimizer.scaler = scale
    with optimizer.tangents(model):
        loss = 10 * likelihood(model(x), y)
    scale.scale(loss).backward()
    scale.step(optimizer)
    _, plain, _ = other = setting("max", None)
    train(*other, [(x, y)])
    assert optimizer.diagnostics()["gamma"] == pytest.approx(plain.diagnostics()["gamma"] / 10)


def test_a_disabled_scaler_does_nothing():
    plain, scaled = setting("auto"), setting("auto")
    train(*plain, batches(8))
    scaled[1].scaler = scaler(enabled=False)
    train(*scaled, batches(8), scaled[1].scaler)
    assert_same_run(plain, scaled)


class Overflowing(nn.Module):
    """The identity; on demand its outputs or its gradient overflow."""

    overflows = None

    def forward(self, x):
        if self.overflows == "forward":
            return x * math.inf
        if self.overflows == "backward" and x.requires_grad:
            x.register_hook(lambda g: g * math.inf)
        return x


@pytest.mark.parametrize("overflow", ["forward", "backward"])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_an_overflow_is_skipped_without_a_trace(gamma, overflow):
    data = batches(10)
    plain, scaled = setting(gamma), setting(gamma)
    model, optimizer, likelihood = scaled
    model.append(Overflowing())
    optimizer.scaler = scaler()
    train(*plain, data)
    train(*scaled, data[:4], optimizer.scaler)

    optimizer.zero_grad()
    before, random = snapshot(model, optimizer), deepcopy(likelihood.state_dict())
    scale = optimizer.scaler.get_scale()
    model[-1].overflows = overflow
    train(*scaled, batches(2, seed=9), optimizer.scaler, parts=2)
    model[-1].overflows = None
    assert optimizer.scaler.get_scale() == scale / 4
    optimizer.zero_grad()
    assert same(snapshot(model, optimizer), before)

    likelihood.load_state_dict(random)
    train(*scaled, data[4:], optimizer.scaler)
    assert_same_run(plain, scaled)


@pytest.mark.parametrize("as_function", [False, True])
def test_the_first_batch_may_overflow(as_function):
    """As it often does: scales start high. One part of it is enough."""
    model, optimizer, likelihood = setting("auto", "kronecker")
    model.append(Overflowing())
    optimizer.scaler = scaler()
    for step, (x, y) in enumerate(batches(6)):
        optimizer.zero_grad()
        for part in range(2):
            model[-1].overflows = "forward" if step < 3 and part == 1 else None
            if as_function:
                loss = optimizer.evaluate(model, lambda x=x, y=y: likelihood(model(x), y))
            else:
                with optimizer.tangents(model):
                    loss = likelihood(model(x), y)
            optimizer.scaler.scale(loss / 2).backward()
        optimizer.scaler.step(optimizer)
        optimizer.scaler.update()
    assert optimizer.param_groups[0]["steps"] == 3
    assert optimizer.scaler.get_scale() == 2.0**13


@pytest.mark.parametrize("options", [None, {"enabled": False}])
def test_an_overflow_without_a_scaler_that_would_skip_it_is_an_error(options):
    model, optimizer, likelihood = setting("auto")
    model.append(Overflowing())
    optimizer.scaler = options and scaler(**options)
    model[-1].overflows = "forward"
    x, y = batches(1)[0]
    with optimizer.tangents(model):
        loss = likelihood(model(x), y)
    loss.backward()
    with pytest.raises(FloatingPointError, match="not finite"):
        optimizer.step()


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_a_scaler_that_was_not_named_is_found_out(gamma, parts):
    model, optimizer, likelihood = setting(gamma)
    unknown = scaler()
    train(
        model, optimizer, likelihood, batches(1), unknown, parts=parts
    )  # v is 0: nothing to compare
    before = snapshot(model, optimizer)
    with pytest.raises(RuntimeError, match=r"optimizer\.scaler = scaler"):
        train(model, optimizer, likelihood, batches(1), unknown, parts=parts)
    optimizer.zero_grad()
    assert same(snapshot(model, optimizer)[:1], before[:1])


def test_a_large_factor_alone_is_no_scaler():
    model, optimizer, likelihood = setting("auto")
    for x, y in batches(10):
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = 5e4 * likelihood(model(x), y)
        loss.backward()
        optimizer.step()
    assert optimizer.param_groups[0]["steps"] == 10


def test_a_copy_forgets_the_scaler():
    _, optimizer, _ = setting(0.1, Diagonal([torch.ones_like(p) for p in mlp().parameters()]))
    optimizer.scaler = scaler()
    assert deepcopy(optimizer).scaler is None
    assert "scaler" not in optimizer.state_dict()
