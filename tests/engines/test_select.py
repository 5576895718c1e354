"""Which engine is chosen, what is said of it, and what happens when none can."""

import logging
from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tangograd import TANGO, Categorical, Gaussian
from tangograd.adjoint import DisagreementError
from tangograd.engines import CannotRunError, Site
from tangograd.reference import fisher_matrix
from tangograd.vectors import flatten
from tests.cases import set_velocity
from tests.test_session import CutBackwards, NoJvp, WithoutJvp, same, snapshot


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4))


def fit(optimizer, model, x, y, steps=1, likelihood=None):
    likelihood = likelihood or Categorical()
    for _ in range(steps):
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()


def test_the_choice_is_made_once_and_said(caplog):
    model, x, y = WithoutJvp(), torch.randn(5, 4), torch.randint(4, (5,))
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    with caplog.at_level(logging.INFO, "tangograd"):
        fit(optimizer, model, x, y, 3)
    said = [record.getMessage() for record in caplog.records]
    assert said[-1] == "engine 'double-backward' computes the tangents of WithoutJvp"
    assert sum("computes" in line for line in said) == 1
    assert any("'dual' cannot run WithoutJvp: You must implement the jvp" in line for line in said)


def test_dual_numbers_are_lean_through_convolutions_and_pooling():
    """``max_pool2d`` is a choice between two functions, each of which asks for modes."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    fit(optimizer, model, torch.randn(5, 1, 6, 6), torch.randint(8, (5,)))
    engine = optimizer._blocks.engine.chosen(Site(model))
    assert engine.name == "dual"
    assert engine.graph_free


def test_a_finite_difference_is_warned_of(caplog):
    model, x, y = mlp(), torch.randn(5, 3), torch.randint(4, (5,))
    fit(TANGO(model.parameters(), gamma=0.1, engine="finite-difference"), model, x, y)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "finite-difference" in record.getMessage()


def test_a_finite_difference_is_refused_under_bfloat16():
    model, x, y = mlp().float(), torch.randn(5, 3).float(), torch.randint(4, (5,))
    optimizer = TANGO(model.parameters(), gamma=0.1, engine="finite-difference")
    with (
        pytest.raises(CannotRunError, match="16-bit"),
        torch.autocast("cpu", torch.bfloat16),
        optimizer.tangents(model),
    ):
        Categorical()(model(x), y)


@pytest.mark.parametrize("engine", ["auto", "two-pass", "finite-difference"])
def test_the_module_with_a_wrong_tangent_is_named(engine):
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh(), CutBackwards("no_grad")))
    optimizer = TANGO(model.parameters(), gamma=0.1, engine=engine)
    before = snapshot(model, optimizer)
    with (
        pytest.raises(DisagreementError, match=r"disagree .* in 1\.1 \(CutBackwards\)"),
        optimizer.tangents(model),
    ):
        Categorical()(model(torch.randn(5, 3)), torch.randint(4, (5,)))
    assert same(snapshot(model, optimizer)[:3], before[:3])


@pytest.mark.parametrize(
    "options",
    [{}, {"gamma": 0.1}, {"gamma": "max", "preconditioner": None}, {"engine": "two-pass"}],
)
def test_the_module_is_named_later_too(options):
    model = nn.Sequential(nn.Linear(3, 3), CutBackwards("detach"))
    optimizer = TANGO(model.parameters(), **options)
    x, y = torch.randn(5, 3), torch.randint(4, (5,))
    fit(optimizer, model, x, y, 2)
    optimizer.zero_grad()
    before = snapshot(model, optimizer)
    model[1].how = "no_grad"
    with (
        pytest.raises(DisagreementError, match=r"disagree .* in 1 \(CutBackwards\)"),
        optimizer.tangents(model),
    ):
        Categorical()(model(x), y)
    assert same(snapshot(model, optimizer)[:3], before[:3])
    model[1].how = "detach"
    fit(optimizer, model, x, y, 2)


class WrongBackward(torch.autograd.Function):
    """A backward that is not the derivative; double backward believes it, dual numbers do not."""

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 3 * g

    @staticmethod
    def jvp(ctx, t):
        return 2 * t


def test_a_wrong_tangent_in_the_models_own_code_is_noticed():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x):
            return WrongBackward.apply(self.linear(x))

    model = Model()
    optimizer = TANGO(model.parameters(), gamma=0.1)
    with pytest.raises(DisagreementError, match="in the model"), optimizer.tangents(model):
        Categorical()(model(torch.randn(5, 3)), torch.randint(4, (5,)))


@pytest.mark.parametrize("engine", ["auto", "dual", "two-pass", "double-backward"])
def test_the_users_own_errors_are_the_users(engine):
    model = mlp()
    optimizer = TANGO(model.parameters(), gamma=0.1, engine=engine)
    with pytest.raises(RuntimeError, match="mat1 and mat2"), optimizer.tangents(model):
        model(torch.randn(5, 7))
    with pytest.raises(RuntimeError, match="same dtype"), optimizer.tangents(model):
        model(torch.randn(5, 3).float())
    fit(optimizer, model, torch.randn(5, 3), torch.randint(4, (5,)))  # and all is well


class Sometimes(nn.Module):
    """Dual numbers can run it at first."""

    def __init__(self):
        super().__init__()
        self.linear, self.other = nn.Linear(3, 4), False

    def forward(self, x):
        z = self.linear(x)
        return NoJvp.apply(z) if self.other else z


def test_an_operation_met_later_makes_the_choice_anew():
    model, x, y = Sometimes(), torch.randn(5, 3), torch.randint(4, (5,))
    optimizer = TANGO(model.parameters(), gamma=0.1)
    fit(optimizer, model, x, y, 2)
    model.other = True
    with pytest.raises(NotImplementedError, match="custom autograd.Function"):
        fit(optimizer, model, x, y)
    fit(optimizer, model, x, y)
    assert optimizer._blocks.engine.chosen(Site(model)).name == "double-backward"


def physics_informed(model, likelihood, x, y):
    """The residual of an equation: a derivative of the network in its inputs."""

    def loss():
        inputs = x.detach().requires_grad_()
        u = model(inputs)
        slope = torch.autograd.grad(u.sum(), inputs, create_graph=True)[0]
        return likelihood(slope - u, y)

    return loss


@pytest.mark.parametrize(
    "engine", ["auto", "dual", "two-pass", "double-backward", "finite-difference"]
)
def test_a_loss_with_derivatives_inside(engine):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1))
    x, y, likelihood = torch.randn(6, 1), torch.randn(6, 1), Gaussian()
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None, engine=engine)
    v = set_velocity(optimizer, model)
    loss = optimizer.evaluate(model, physics_informed(model, likelihood, x, y))
    loss.backward()
    found = flatten([p.grad for p in model.parameters()])

    received = []
    physics_informed(model, lambda z, y: received.append(z), x, y)()
    (z,) = received
    parameters = list(model.parameters())
    g = torch.autograd.grad(likelihood(z, y), parameters, retain_graph=True, allow_unused=True)
    g = flatten(
        [torch.zeros_like(p) if x is None else x for x, p in zip(g, parameters, strict=True)]
    )
    wanted = g - 0.7 * fisher_matrix(likelihood, z, parameters) @ v
    exact = engine != "finite-difference"
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10 if exact else 1e-6)


def test_a_derivative_outside_the_model_needs_evaluate():
    model = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer, likelihood = TANGO(model.parameters(), gamma=0.1), Gaussian()
    x, y = torch.randn(6, 1), torch.randn(6, 1)
    with optimizer.tangents(model):
        likelihood(model(x), y)  # the choice is made
    with (
        pytest.raises(NotImplementedError, match="derivative.*evaluate"),
        optimizer.tangents(model),
    ):
        physics_informed(model, likelihood, x, y)()


@pytest.mark.parametrize("engine", ["auto", "dual", "double-backward"])
def test_parts_of_a_model_may_be_called(engine):
    """`tangents(model)` with the model's parts called one by one, as encoders and decoders are."""
    model, x, y = mlp(), torch.randn(5, 3), torch.randint(4, (5,))
    brackets = []
    for whole in (True, False):
        optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None, engine=engine)
        torch.manual_seed(1)
        set_velocity(optimizer, model)
        for _ in range(2):
            optimizer.zero_grad()
            with optimizer.tangents(model):
                z = model(x) if whole else model[2](model[1](model[0](x)))
                loss = Categorical()(z, y)
            loss.backward()
            brackets.append(flatten([p.grad for p in model.parameters()]))
    for bracket in brackets[1:]:
        torch.testing.assert_close(bracket, brackets[0])


@pytest.mark.parametrize("engine", ["two-pass", "finite-difference"])
def test_parts_of_a_model_cannot_be_run_again(engine):
    model, x, y = mlp(), torch.randn(5, 3), torch.randint(4, (5,))
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None, engine=engine)
    with pytest.raises(RuntimeError, match="carry no tangent"), optimizer.tangents(model):
        Categorical()(model[2](model[1](model[0](x))), y)


def dropping():
    return nn.Sequential(nn.Linear(16, 6), nn.Tanh(), nn.Dropout(0.1), nn.Linear(6, 4))


def pooling():
    layers = [nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 3, padding=1), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(12, 4))


@pytest.mark.parametrize("make", [dropping, pooling])
@pytest.mark.parametrize("engine", ["auto", "two-pass", "double-backward"])
def test_training_is_the_same_with_every_exact_engine(engine, make):
    """With γ "auto" and learned preconditioners: replays, too, go through the engine."""
    finals = []
    for name in ("dual", engine):
        torch.manual_seed(3)
        model = make()
        x, y = torch.randn(40, 16), torch.randint(4, (40,))
        optimizer = TANGO(model.parameters(), engine=name, preconditioner="kronecker")
        torch.manual_seed(4)
        likelihood = Categorical(generator=torch.Generator().manual_seed(5))
        for _ in range(12):
            optimizer.zero_grad()
            with optimizer.tangents(model):
                loss = likelihood(model(x), y)
            loss.backward()
            optimizer.step()
        seen = optimizer.param_groups[0]["preconditioner"].state_dict()["seen"]
        assert len(seen) == 2
        assert min(seen) > 0
        finals.append(flatten([p.detach() for p in model.parameters()]))
    torch.testing.assert_close(finals[1], finals[0], rtol=0, atol=1e-8)


class Vmapped(nn.Module):
    """It cannot be run leanly, and does what :func:`mlp` does."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        first, _, last = self.layers
        return last(torch.vmap(torch.tanh)(first(x)))


def test_kronecker_factors_are_learned_where_dual_numbers_are_not_lean():
    torch.manual_seed(3)
    plain, x, y = mlp(), torch.randn(16, 3), torch.randint(4, (16,))
    models = plain, Vmapped(deepcopy(plain))
    optimizers = [TANGO(m.parameters(), gamma=0.2, preconditioner="kronecker") for m in models]
    likelihoods = [Categorical(generator=torch.Generator().manual_seed(5)) for _ in models]
    for _ in range(6):
        for model, optimizer, likelihood in zip(models, optimizers, likelihoods, strict=True):
            fit(optimizer, model, x, y, 1, likelihood)
    assert not optimizers[1]._blocks.engine.chosen(Site(models[1])).graph_free
    factors = [o.param_groups[0]["preconditioner"].state_dict() for o in optimizers]
    assert len(factors[0]["A"]) == 2
    assert min(factors[0]["seen"]) > 0
    for name in ("A", "G"):
        torch.testing.assert_close(factors[1][name], factors[0][name], rtol=1e-10, atol=1e-12)


class VmappedLayer(nn.Module):
    """Its first layer is called inside `torch.vmap`, where its inputs are not to be had."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(torch.vmap(self.first)(x).tanh())


@pytest.mark.parametrize("engine", ["auto", "two-pass", "double-backward"])
def test_layers_inside_vmap_have_no_kronecker_factors(engine):
    torch.manual_seed(0)
    model, x, y = VmappedLayer(), torch.randn(16, 3), torch.randint(4, (16,))
    optimizer = TANGO(model.parameters(), gamma=0.05, preconditioner="kronecker", engine=engine)
    fit(optimizer, model, x, y, 6)
    C = optimizer.param_groups[0]["preconditioner"].state_dict()
    assert C["bias"].count(-1) == 1  # its factors are those of a matrix without layer inputs
    assert min(C["seen"]) > 0


def test_parameters_changed_between_block_and_step():
    model, x, y = mlp(), torch.randn(5, 3), torch.randint(4, (5,))
    optimizer = TANGO(model.parameters(), gamma=0.1)
    fit(optimizer, model, x, y, 2)
    optimizer.zero_grad()
    with optimizer.tangents(model):
        loss = Categorical()(model(x), y)
    loss.backward()
    with torch.no_grad():
        model[2].bias.clamp_(-0.1, 0.1)
    before = snapshot(model, optimizer)
    with pytest.raises(RuntimeError, match="'2.bias' was changed between"):
        optimizer.step()
    assert same(snapshot(model, optimizer), before)
    fit(optimizer, model, x, y, 2)


def test_two_optimizers_on_one_model():
    model = mlp()
    first, second = (TANGO(model[i].parameters(), gamma=0.1) for i in (0, 2))
    for optimizer, missing in ((first, "2.weight"), (second, "0.weight")):
        with (
            pytest.raises(ValueError, match=f"'{missing}' is trainable but not in the optimizer"),
            optimizer.tangents(model),
        ):
            pass


def test_an_optimizer_can_be_copied_with_its_engine():
    model, x, y = mlp(), torch.randn(5, 3), torch.randint(4, (5,))
    optimizer = TANGO(model.parameters(), gamma=0.1, engine="two-pass")
    fit(optimizer, model, x, y)
    assert deepcopy(optimizer)._blocks.engine.name == "two-pass"


class LosesTangents(torch.autograd.Function):
    """Its tangent is silently 0."""

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 2 * g

    @staticmethod
    def jvp(ctx, t):
        return torch.zeros_like(t)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_tangent_that_is_silently_zero_is_noticed_in_large_models(dtype):
    """Both sides of the identity are small beside the norms there."""

    class Loses(nn.Module):
        def forward(self, x):
            return LosesTangents.apply(x)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 300), Loses(), nn.Linear(300, 100)).to(dtype)
    optimizer = TANGO(model.parameters(), gamma=0.1)
    with pytest.raises(DisagreementError, match=r"in 1 \(Loses\)"), optimizer.tangents(model):
        Categorical()(model(torch.randn(200, 300, dtype=dtype)), torch.randint(100, (200,)))


@pytest.mark.parametrize("seed", range(8))
def test_rounding_is_no_disagreement(seed):
    """In single precision, and in 16 bits, for models whose digits cancel."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(30, 50), nn.LayerNorm(50), nn.GELU(), nn.Linear(50, 50), nn.BatchNorm1d(50)
    ).float()
    x, y = 100 * torch.randn(16, 30).float(), torch.randint(50, (16,))
    for low in (False, True):
        optimizer = TANGO(model.parameters(), gamma=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=low), optimizer.tangents(model):
                loss = Categorical()(model(x), y)
            loss.backward()
            optimizer.step()


class SingleInside(nn.Module):
    """A norm in single precision whatever the model's, as those of many language models."""

    def __init__(self, body):
        super().__init__()
        self.scale, self.body = nn.Parameter(torch.ones(6)), body

    def forward(self, x):
        low = x.float()
        low = low * torch.rsqrt(low.square().mean(-1, keepdim=True) + 1e-6)
        return self.body(self.scale * low.to(x.dtype))


@pytest.mark.parametrize("seed", range(3))
def test_single_precision_inside_double_precision_is_no_disagreement(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 6), SingleInside(nn.Linear(6, 4)))
    optimizer = TANGO(model.parameters(), gamma=0.1)
    fit(optimizer, model, torch.randn(16, 3), torch.randint(4, (16,)), 5)


def test_a_wrong_tangent_is_noticed_beside_single_precision():
    model = nn.Sequential(nn.Linear(3, 6), SingleInside(nn.Linear(6, 3)), CutBackwards("no_grad"))
    optimizer = TANGO(model.parameters(), gamma=0.1)
    with (
        pytest.raises(DisagreementError, match=r"in 2 \(CutBackwards\)"),
        optimizer.tangents(model),
    ):
        Categorical()(model(torch.randn(5, 3)), torch.randint(4, (5,)))


def test_the_models_parameters_are_the_same_objects_after_every_engine():
    layer = nn.Linear(3, 3)
    for engine in ("auto", "dual", "two-pass", "double-backward", "finite-difference"):
        model = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(3, 4))  # one layer, twice
        before = list(model.parameters())
        optimizer = TANGO(model.parameters(), gamma=0.1, engine=engine)
        fit(optimizer, model, torch.randn(5, 3), torch.randint(4, (5,)), 2)
        assert all(a is b for a, b in zip(model.parameters(), before, strict=True))


class Reentrant(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.head = nn.Linear(3, 3), nn.Linear(3, 4)

    def forward(self, x):
        h = x.clone().requires_grad_()
        return self.head(checkpoint(self.block, h, use_reentrant=True))


@pytest.mark.parametrize("how", ["tangents", "evaluate"])
def test_reentrant_checkpoints_are_refused(how):
    """They would be silently wrong: the backward pass alone sees their parameters."""
    model, x, y, likelihood = Reentrant(), torch.randn(5, 3), torch.randint(4, (5,)), Categorical()
    optimizer = TANGO(model.parameters(), gamma=0.1)
    with pytest.raises(CannotRunError, match="use_reentrant=False"):
        if how == "tangents":
            with optimizer.tangents(model):
                likelihood(model(x), y)
        else:
            optimizer.evaluate(model, lambda: likelihood(model(x), y))


@pytest.mark.parametrize("engine", ["auto", "two-pass", "double-backward"])
def test_outputs_in_a_dataclass(engine):
    @dataclass
    class Output:
        logits: torch.Tensor
        cache: object = None

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x):
            return Output(self.linear(x), cache=object())

    model, x, y = Model(), torch.randn(5, 3), torch.randint(4, (5,))
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None, engine=engine)
    v = set_velocity(optimizer, model)
    with optimizer.tangents(model):
        loss = Categorical()(model(x).logits, y)
    loss.backward()
    parameters, z = list(model.parameters()), model(x).logits
    g = flatten(torch.autograd.grad(Categorical()(z, y), parameters, retain_graph=True))
    F = fisher_matrix(Categorical(), z, parameters)
    torch.testing.assert_close(flatten([p.grad for p in parameters]), g - 0.7 * F @ v)


def test_precisions_may_be_mixed():
    """Rounding is that of the coarsest part."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)).float()

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                z = self.layers(x.float())
            return z.double()

    torch.manual_seed(0)
    model = Mixed()
    optimizer = TANGO(model.parameters(), gamma=0.01)
    fit(optimizer, model, torch.randn(32, 8), torch.randint(4, (32,)), 3)


def test_a_model_called_with_its_own_outputs():
    """It cannot be replayed call by call; the step says so and goes on."""
    model, x, y = nn.Linear(4, 4), torch.randn(5, 4), torch.randint(4, (5,))
    optimizer, likelihood = TANGO(model.parameters()), Categorical()
    with optimizer.tangents(model):
        loss = likelihood(model(torch.tanh(model(x))), y)
    loss.backward()
    with pytest.warns(RuntimeWarning, match="outputs of its own"):
        optimizer.step()


def test_arguments_by_name():
    model, x, y = mlp(), torch.randn(5, 3), torch.randint(4, (5,))
    optimizer, likelihood = TANGO(model.parameters(), gamma=0.1), Categorical()
    for _ in range(2):
        optimizer.zero_grad()
        with optimizer.tangents(model):
            z = torch.add(torch.tanh(input=model(x)), other=1.0)
            loss = likelihood(z, y)
        loss.backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
def test_a_model_that_compiles_itself():
    torch._dynamo.reset()
    model, x, y = mlp(), torch.randn(5, 3), torch.randint(4, (5,))
    model.compile(backend="eager")
    optimizer = TANGO(model.parameters(), gamma=0.1)
    fit(optimizer, model, x, y, 2)
    assert model._compiled_call_impl is not None


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
def test_a_compiled_function_that_calls_the_model():
    """The call is traced and cannot be run again; the error says what is missing."""
    torch._dynamo.reset()
    model, x, y = mlp(), torch.randn(5, 3), torch.randint(4, (5,))
    function = torch.compile(lambda x: model(x), backend="eager")
    optimizer = TANGO(model.parameters(), gamma=0.1, engine="two-pass")
    with pytest.raises(RuntimeError, match="carry no tangent"), optimizer.tangents(model):
        Categorical()(function(x), y)
