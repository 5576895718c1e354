"""Dual parameters come and go; what goes wrong is said clearly, and changes nothing."""

import math
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from tangograd import TANGO, Categorical, Gaussian, forward_mode
from tangograd.reference import fisher_matrix
from tangograd.session import current
from tangograd.vectors import flatten

from .cases import MODELS, problem, set_velocity


def snapshot(model, optimizer):
    """Everything that must not change, bit for bit."""
    return (
        [(name, t.detach().clone(), t._version) for name, t in model.named_parameters()],
        [(name, t.detach().clone()) for name, t in model.named_buffers()],
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        deepcopy(optimizer.state_dict()),
    )


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b or (a != a and b != b)


@pytest.mark.parametrize("model_name", MODELS)
def test_the_model_is_as_it_was(model_name):
    model, x, y, likelihood = problem(model_name, "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    set_velocity(optimizer, model)
    before, objects = snapshot(model, optimizer), [id(p) for p in model.parameters()]
    with optimizer.tangents(model):
        likelihood(model(x), y)
        assert all(forward_ad.unpack_dual(p).tangent is not None for p in model.parameters())
    assert same(snapshot(model, optimizer), before)
    assert [id(p) for p in model.parameters()] == objects
    with forward_ad.dual_level():
        assert all(forward_ad.unpack_dual(p).tangent is None for p in model.parameters())
    assert all(p.is_leaf and p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_model_is_as_it_was_after_an_exception(when):
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    set_velocity(optimizer, model)
    before = snapshot(model, optimizer)
    with pytest.raises(KeyError, match="mine"), optimizer.tangents(model):
        if when == "after":
            likelihood(model(x), y)
        raise KeyError("mine")
    assert same(snapshot(model, optimizer), before)
    assert current.get() is None
    with pytest.raises(RuntimeError, match="tangents"):
        optimizer.step()  # the interrupted block does not count
    with optimizer.tangents(model):  # and the next one works
        loss = likelihood(model(x), y)
    loss.backward()
    optimizer.step()


def test_an_earlier_graph_survives_a_later_block():
    """Two forward passes, then one backward: version counters do not move."""
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    losses = []
    for part in (slice(0, 2), slice(2, 5)):
        with optimizer.tangents(model):
            losses.append(likelihood(model(x[part]), y[part]))
    sum(losses).backward()
    optimizer.step()


def test_batch_normalisation_updates_its_buffers_once():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    twin = deepcopy(model)
    x, y = torch.randn(6, 3), torch.randint(2, (6,))
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    with optimizer.tangents(model):
        Categorical()(model(x), y)
    twin(x)
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        assert a.equal(b)


def test_frozen_parameters_are_constants():
    model, x, y, likelihood = problem("mlp", "categorical")
    model[0].weight.requires_grad_(False)
    frozen = model[0].weight.clone()
    optimizer = TANGO(model.parameters(), lr=0.5, gamma=0.1, preconditioner=None)
    for _ in range(3):
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()
    assert model[0].weight.equal(frozen)
    assert "velocity" not in optimizer.state[model[0].weight]
    assert optimizer.state[model[0].bias]["velocity"].abs().max() > 0


def test_a_trainable_parameter_outside_the_optimizer_is_named():
    model, *_ = problem("mlp", "categorical")
    optimizer = TANGO(model[0].parameters(), gamma=0.1, preconditioner=None)
    with pytest.raises(ValueError, match="'2.weight' is trainable but not in the optimizer"):
        optimizer.tangents(model).__enter__()
    for p in model[2].parameters():
        p.requires_grad_(False)
    with optimizer.tangents(model):
        Categorical()(model(torch.randn(2, 3)), torch.tensor([0, 1]))


def trained(seed):
    """Parameters after three steps, which do not depend on the global random state."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    x = torch.randn(8, 3, generator=generator)
    y = torch.randint(4, (8,), generator=generator)
    likelihood = Categorical(fisher="sampled", generator=generator)
    optimizer = TANGO(model.parameters(), preconditioner="kronecker")
    for _ in range(3):
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()
    return flatten([p.detach() for p in model.parameters()])


def test_two_models_are_trained_in_two_threads():
    """PyTorch has one forward-mode level per process: blocks wait for one another."""
    alone, interval = [trained(seed) for seed in (0, 1)], sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            for _ in range(30):
                for found, expected in zip(pool.map(trained, (0, 1)), alone, strict=True):
                    assert found.equal(expected)
    finally:
        sys.setswitchinterval(interval)


def test_a_thread_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(forward_mode, "LOCK_TIMEOUT", 0.01)
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)

    def block():
        with optimizer.tangents(model):
            likelihood(model(x), y)

    with ThreadPoolExecutor(1) as pool:
        with (
            forward_mode.exclusive(),
            pytest.raises(RuntimeError, match="another thread has been inside"),
        ):
            pool.submit(block).result()
        pool.submit(block).result()  # and afterwards it is its turn


def test_backward_in_another_thread_while_the_block_is_open():
    """As autograd's device threads do, in which context variables are not set."""
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    with (
        pytest.raises(RuntimeError, match="after the `tangents` block"),
        ThreadPoolExecutor(1) as pool,
        optimizer.tangents(model),
    ):
        pool.submit(likelihood(model(x), y).backward).result()


def test_backward_of_an_earlier_loss_inside_a_block():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, engine="double-backward")
    with optimizer.tangents(model):
        earlier = likelihood(model(x), y)
    with pytest.raises(RuntimeError, match="after the `tangents` block"), optimizer.tangents(model):
        earlier.backward()


def test_blocks_cannot_be_nested():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    with optimizer.tangents(model):
        likelihood(model(x), y)
        with pytest.raises(RuntimeError, match="cannot be nested"), optimizer.tangents(model):
            pass


@pytest.mark.parametrize(
    "cut",
    [
        lambda z: z.detach().clone().zero_(),
        lambda z: torch.from_numpy(z.detach().numpy().copy()),
        lambda z: torch.zeros(z.shape),
    ],
)
def test_outputs_without_a_tangent(cut):
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    before = snapshot(model, optimizer)
    with pytest.raises(RuntimeError, match="carry no tangent"), optimizer.tangents(model):
        z = model(x)
        likelihood(cut(forward_ad.unpack_dual(z).primal), y)
    assert same(snapshot(model, optimizer)[:3], before[:3])


def test_a_block_without_a_likelihood():
    model, x, y, _ = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    with pytest.raises(RuntimeError, match="no tangograd likelihood"), optimizer.tangents(model):
        nn.functional.cross_entropy(model(x), y)


def test_backward_inside_the_block():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    with pytest.raises(RuntimeError, match="after the `tangents` block"), optimizer.tangents(model):
        likelihood(model(x), y).backward()
    assert all(p.grad is None for p in model.parameters())


class NoJvp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class FusedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class WithoutJvp(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return NoJvp.apply(self.linear(x))


@pytest.mark.parametrize("make", [FusedAttention, WithoutJvp])
def test_an_operation_without_a_forward_formula_gets_another_engine(make):
    model = make()
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    v = set_velocity(optimizer, model)
    x, y = torch.randn(2, 3, 4), torch.randint(4, (2, 3))
    with optimizer.tangents(model):
        loss = Categorical()(model(x), y)
    loss.backward()
    assert current.get() is None
    parameters, z = list(model.parameters()), model(x).flatten(0, 1)
    g = flatten(torch.autograd.grad(Categorical()(z, y.flatten()), parameters, retain_graph=True))
    F = fisher_matrix(Categorical(), z, parameters)
    torch.testing.assert_close(flatten([p.grad for p in parameters]), g - 0.7 * F @ v)


def test_an_operation_without_a_forward_formula_is_named():
    """Without a model there is nothing that could be run again."""
    theta = torch.zeros(2, requires_grad=True)
    optimizer = TANGO([theta], gamma=0.1, preconditioner=None)
    with (
        pytest.raises(NotImplementedError, match="custom autograd.Function.*evaluate"),
        optimizer.tangents(),
    ):
        Gaussian()(NoJvp.apply(theta).expand(3, 2), torch.zeros(3, 2))
    assert current.get() is None


def test_another_not_implemented_error_is_the_users_own():
    theta = torch.zeros(2, requires_grad=True)
    optimizer = TANGO([theta], gamma=0.1, preconditioner=None)
    with pytest.raises(NotImplementedError, match="^mine$"), optimizer.tangents():
        raise NotImplementedError("mine")


def test_a_loss_that_is_not_finite():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    set_velocity(optimizer, model)
    x[3, 1] = math.nan
    before = snapshot(model, optimizer)
    with optimizer.tangents(model):
        loss = likelihood(model(x), y)
    loss.backward()
    with pytest.raises(FloatingPointError, match="row 3.*state is untouched"):
        optimizer.step()
    optimizer.zero_grad()
    assert same(snapshot(model, optimizer), before)


def test_raw_parameters():
    theta = torch.tensor([1.0, -2.0], requires_grad=True)
    optimizer = TANGO([theta], lr=0.5, gamma=0.3, preconditioner=None)
    optimizer.state[theta]["velocity"] = torch.tensor([0.5, 0.25])
    y = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    with optimizer.tangents():
        loss = Gaussian()(theta.expand(2, 2), y)
    loss.backward()
    # g = θ - mean(y), F = I, δt_{k-1} = 0.5
    torch.testing.assert_close(
        theta.grad, theta.detach() - y.mean(0) - 0.5 * torch.tensor([0.5, 0.25])
    )


def test_without_gradients_the_block_only_evaluates():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    with torch.no_grad(), optimizer.tangents(model):
        loss = likelihood(model(x), y)
    assert not loss.requires_grad


class CutBackwards(nn.Module):
    """Normalises by a number that depends on the weights, under no_grad or by detach."""

    def __init__(self, how):
        super().__init__()
        self.linear, self.how = nn.Linear(3, 4), how

    def forward(self, x):
        if self.how == "no_grad":
            with torch.no_grad():
                size = self.linear.weight.norm()
        else:
            size = self.linear.weight.detach().norm()
        return self.linear(x) / size


def test_tangents_and_gradients_of_different_functions_are_noticed():
    x, y = torch.randn(5, 3), torch.randint(4, (5,))
    for how in ("detach", "no_grad"):
        model = CutBackwards(how)
        optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
        set_velocity(optimizer, model)
        if how == "detach":
            with optimizer.tangents(model):
                Categorical()(model(x), y)
        else:
            with (
                pytest.raises(RuntimeError, match="tangents and gradients disagree"),
                optimizer.tangents(model),
            ):
                Categorical()(model(x), y)


def test_targets_are_constants_even_if_the_model_made_them():
    """As in self-distillation: the targets come from the same weights, in the same block."""
    model, x, _, _ = problem("mlp", "gaussian")
    optimizer, likelihood = TANGO(model.parameters(), gamma=0.1, preconditioner=None), Gaussian()
    v = set_velocity(optimizer, model)
    z = model(x)
    with optimizer.tangents(model):
        with torch.no_grad():
            targets = model(x) + 1
        loss = likelihood(model(x), targets)
    loss.backward()
    parameters = list(model.parameters())
    g = flatten(torch.autograd.grad(likelihood(z, z.detach() + 1), parameters, retain_graph=True))
    F = fisher_matrix(likelihood, z, parameters)
    torch.testing.assert_close(flatten([p.grad for p in parameters]), g - 0.7 * F @ v)


@pytest.mark.parametrize(("scale", "gamma"), [(20.0, 0.1), (1.0, 50.0)])
def test_saturated_outputs_are_no_disagreement(scale, gamma):
    """Scores of 1e-23 underflow in float32 when squared; that must not look like an error."""
    torch.set_default_dtype(torch.float32)
    for seed in range(3):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(scale)
        x = torch.randn(32, 2)
        y = model(x).argmax(-1)
        optimizer, likelihood = (
            TANGO(model.parameters(), gamma=gamma, preconditioner=None),
            Categorical(),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            for _ in range(20):
                optimizer.zero_grad()
                with optimizer.tangents(model):
                    loss = likelihood(model(x), y)
                loss.backward()
                optimizer.step()
