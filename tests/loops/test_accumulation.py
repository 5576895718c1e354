"""Steps from several micro-batches, also of unequal sizes, equal those from one large batch."""

from copy import deepcopy

import pytest
import torch

from tangograd import TANGO, Categorical

from ..cases import mlp
from ..test_optimizer import batches
from ..test_optimizer import train as train_on_whole_batches
from ..test_session import same


def train(model, optimizer, likelihood, data, sizes):
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        total = 0.0
        for x_part, y_part in zip(x.split(sizes), y.split(sizes), strict=True):
            with optimizer.tangents(model):
                loss = likelihood(model(x_part), y_part) * (len(x_part) / len(x))
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


@pytest.mark.parametrize("sizes", [[4, 4], [1, 5, 2], [1] * 8])
@pytest.mark.parametrize("preconditioner", [None, "rmsprop"])
@pytest.mark.parametrize("fisher", ["expected", "empirical"])
def test_a_run_equals_that_on_whole_batches(fisher, preconditioner, sizes):
    data = batches(12, rows=8)
    model = mlp()
    twin = deepcopy(model)
    options = {"lr": 0.2, "gamma": 0.05, "preconditioner": preconditioner, "weight_decay": 0.01}
    optimizer = TANGO(model.parameters(), **options)
    other = TANGO(twin.parameters(), **options)
    train(model, optimizer, Categorical(fisher=fisher), data, sizes)
    train_on_whole_batches(twin, other, Categorical(fisher=fisher), data)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-12)
    for name in ("damping", "fisher_quotient"):
        assert optimizer.diagnostics()[name] == pytest.approx(other.diagnostics()[name], rel=1e-9)


def test_auto_runs_every_micro_batch_again():
    """No warning that it is blind, and as good as on whole batches."""
    x, y = batches(1, rows=8)[0]
    model = mlp()
    losses = train(model, TANGO(model.parameters()), Categorical(), [(x, y)] * 60, [1, 5, 2])
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("gamma", ["max", "auto"])
def test_zeroing_the_model_discards_blocks_too(gamma):
    """As in loops that call `model.zero_grad()`, after a step that a GradScaler has skipped."""

    def run(skipping):
        torch.manual_seed(2)
        model, likelihood = mlp(), Categorical(generator=torch.Generator())
        optimizer = TANGO(model.parameters(), gamma=gamma)
        (x, y), *data = batches(4)
        train_on_whole_batches(model, optimizer, likelihood, [(x, y)])
        if skipping:
            with optimizer.tangents(model):
                loss = likelihood(model(100 * x), y)
            loss.backward()
        likelihood.generator.manual_seed(3)
        for x, y in data:
            model.zero_grad()
            with optimizer.tangents(model):
                loss = likelihood(model(x), y)
            loss.backward()
            optimizer.step()
        return optimizer.state_dict()

    assert same(run(skipping=True), run(skipping=False))
