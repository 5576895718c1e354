"""Messages for common mistakes: each names the problem and the way out."""

import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tangograd import TANGO, Bernoulli, Categorical, Gaussian, checks

from .cases import mlp


def test_a_learning_rate_of_other_optimizers_is_mentioned_once(monkeypatch):
    monkeypatch.setattr(checks, "_mentioned", set())
    with pytest.warns(UserWarning, match="lr=0.001 is a usual learning rate of other optimizers"):
        TANGO(mlp().parameters(), lr=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TANGO(mlp().parameters(), lr=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 0.9}, "no option 'momentum': the velocity plays the part"),
        ({"betas": (0.9, 0.999)}, "no option 'betas'"),
        ({"nesterov": True}, "use accelerated=True"),
        ({"fused": True}, "one code path"),
        ({"colour": 1}, r"no option 'colour': see help\(tangograd.TANGO\)"),
    ],
)
def test_options_of_other_optimizers(options, message):
    with pytest.raises(TypeError, match=message):
        TANGO(mlp().parameters(), **options)
    with pytest.raises(TypeError, match=message):
        TANGO([{"params": mlp().parameters(), **options}])


def test_cyclic_schedulers_are_told_of_momentum():
    optimizer = TANGO(mlp().parameters())
    for make in (
        lambda: lr_scheduler.OneCycleLR(optimizer, 0.5, 10),
        lambda: lr_scheduler.CyclicLR(optimizer, 0.1, 0.5),
    ):
        with pytest.raises(ValueError, match="cycle_momentum=False"):
            make()
    assert "momentum" not in optimizer.defaults


@pytest.mark.parametrize("make", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_embeddings(make):
    model = nn.Sequential(make(5, 4, sparse=True), nn.Linear(4, 2))
    optimizer = TANGO(model.parameters())
    with (
        pytest.raises(ValueError, match="embedding '0' has sparse gradients.*use sparse=False"),
        optimizer.tangents(model),
    ):
        pass


def test_parameters_without_values():
    with torch.device("meta"):
        model = mlp()
    optimizer = TANGO(model.parameters())
    with (
        pytest.raises(RuntimeError, match=r"on the meta device.*model\.to_empty"),
        optimizer.tangents(model),
    ):
        pass


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [(Gaussian(), torch.zeros(4, 2)), (Bernoulli(), torch.zeros(4, 2)), (Categorical(), None)],
)
def test_swapped_arguments(likelihood, y):
    z = torch.randn(4, 2, requires_grad=True)
    y = torch.arange(4) % 2 if y is None else y
    with pytest.raises((ValueError, TypeError), match=r"likelihood\(outputs, targets\)"):
        likelihood(y.to(z.dtype) if y.is_floating_point() else y, z)


@pytest.mark.parametrize(("gamma", "advice"), [("auto", r"and lr\.$"), (0.1, r"or lower gamma\.$")])
def test_the_advice_for_gradients_that_are_not_finite(gamma, advice):
    model = mlp()
    optimizer, likelihood = TANGO(model.parameters(), gamma=gamma), Categorical()
    with optimizer.tangents(model):
        loss = likelihood(model(torch.randn(4, 3)), torch.arange(4) % 2)
    loss.backward()
    model[0].weight.grad[0, 0] = torch.nan
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(FloatingPointError, match=advice):
        optimizer.step()
    assert all(p.equal(q) for p, q in zip(model.parameters(), before, strict=True))


def test_the_report_says_that_the_loss_has_risen(capsys):
    model, likelihood = nn.Linear(1, 1, bias=False), Gaussian()
    nn.init.zeros_(model.weight)
    optimizer = TANGO(model.parameters(), gamma=1e-3, preconditioner=None)
    for k in range(60):
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(torch.ones(4, 1)), torch.full((4, 1), 1.0 + 0.1 * k))
        loss.backward()
        optimizer.step()
    optimizer.report()
    assert "the loss has risen since the start, from" in capsys.readouterr().out
