"""TANGO as a citizen of torch.optim: options, groups, schedulers, saving, copying, errors."""

import gc
import io
import math
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils._pytree import tree_leaves

from tangograd import TANGO, Categorical, Gaussian
from tangograd.curvature import FourthMoment, Kurtosis, RunningMax
from tangograd.preconditioners import Dense, Diagonal, Preconditioner
from tangograd.reference import fisher_matrix
from tangograd.vectors import flatten

from .cases import TiedEmbedding, mlp, problem
from .test_session import same, snapshot


def train(model, optimizer, likelihood, batches, scheduler=None):
    for x, y in batches:
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step(*([loss.item()] if needs_a_metric(scheduler) else []))


def needs_a_metric(scheduler):
    return isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)


def batches(n, rows=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(rows, 3, generator=generator),
            torch.randint(4, (rows,), generator=generator),
        )
        for _ in range(n)
    ]


BAD_OPTIONS = [
    ({"lr": -0.1}, "between 0 and 1; got -0.1"),
    ({"lr": 1.5}, "between 0 and 1; got 1.5"),
    ({"lr": math.nan}, "between 0 and 1; got nan"),
    ({"gamma": 0.0}, "gamma must be positive and finite; got 0.0"),
    ({"gamma": -1.0}, "gamma must be positive"),
    ({"gamma": math.inf}, "gamma must be positive and finite"),
    ({"gamma": "fast"}, r"one of \['auto', 'gaussian', 'max'\]; got 'fast'"),
    (
        {"preconditioner": "kfac"},
        "preconditioner is one of None, 'auto', 'diagonal', 'rmsprop', 'kronecker', or an object",
    ),
    (
        {"preconditioner": torch.eye(2)},
        "preconditioner is one of None, 'auto', 'diagonal', 'rmsprop', 'kronecker', or an object",
    ),
    ({"preconditioner": Diagonal([torch.ones(2)])}, "give each group its own"),
    ({"preconditioner": Dense(torch.eye(2))}, "side 2 for a group of 44 elements"),
    ({"weight_decay": -1.0}, "weight_decay"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        TANGO(mlp().parameters(), **options)
    model = mlp()
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    extra = [p.detach().clone().requires_grad_() for p in mlp().parameters()]
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": extra, **options})
    assert len(optimizer.param_groups) == 1


def test_complex_parameters_are_refused():
    with pytest.raises(TypeError, match="view_as_real"):
        TANGO(
            [torch.zeros(2, dtype=torch.complex128, requires_grad=True)],
            gamma="max",
            preconditioner=None,
        )


def test_the_defaults_train():
    model = mlp()
    data = batches(30)
    optimizer = TANGO(model.parameters(), gamma="max", preconditioner=None)
    likelihood = Categorical()
    train(model, optimizer, likelihood, data[:1] * 300)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert isinstance(optimizer.param_groups[0]["gamma"], RunningMax)
    x, y = data[0]
    assert likelihood(model(x), y) < 0.5 * math.log(4)


SCHEDULERS = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (k + 1)),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "step": lambda o: lr_scheduler.StepLR(o, 3),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "constant": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "linear to 0": lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, 6),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "polynomial to 0": lambda o: lr_scheduler.PolynomialLR(o, 6),
    "cosine to 0": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.9, 10, cycle_momentum=False),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.9, 2, cycle_momentum=False),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.CosineAnnealingLR(o, 5)], [3]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(o, 0.9), lr_scheduler.StepLR(o, 4)]
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_drive_dt(name):
    """Each step uses δt_k for θ and δt_{k-1} for v: checked against the equations."""
    model = nn.Linear(3, 4)
    likelihood = Categorical()
    optimizer = TANGO(model.parameters(), lr=0.5, gamma=0.1, preconditioner=None)
    scheduler = SCHEDULERS[name](optimizer)
    seen, previous = [], 0.5
    for batch in batches(8):
        rate = float(optimizer.param_groups[0]["lr"])
        theta = model.weight.detach().clone()
        v = optimizer.state.get(model.weight, {}).get("velocity", torch.zeros_like(theta)).clone()
        train(model, optimizer, likelihood, [batch], scheduler)
        expected = (1 - previous) * v + 0.1 * model.weight.grad
        torch.testing.assert_close(optimizer.state[model.weight]["velocity"], expected)
        torch.testing.assert_close(model.weight.detach(), theta - rate * expected)
        seen.append(rate)
        previous = rate
    assert len(set(seen)) > 1
    if "to 0" in name:
        assert min(seen) == pytest.approx(0, abs=1e-12)


def test_at_rate_zero_theta_rests_and_v_settles():
    model, x, y, likelihood = problem("mlp", "categorical")
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = TANGO(model.parameters(), lr=0.0, gamma=0.1, preconditioner=None)
    train(model, optimizer, likelihood, [(x, y)] * 5)
    assert all(p.equal(q) for p, q in zip(model.parameters(), before, strict=True))
    assert optimizer.state[model[0].weight]["velocity"].abs().max() > 0


@pytest.mark.parametrize("lr", [1.2, -0.1])
def test_a_rate_that_leaves_its_range_later(lr):
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    train(model, optimizer, likelihood, [(x, y)])
    optimizer.param_groups[0]["lr"] = lr
    optimizer.zero_grad()
    with optimizer.tangents(model):
        loss = likelihood(model(x), y)
    loss.backward()
    before = snapshot(model, optimizer)
    with pytest.raises(ValueError, match="between 0 and 1"):
        optimizer.step()
    assert same(snapshot(model, optimizer), before)


def test_groups_have_their_own_options():
    model = mlp()
    scale = Diagonal([torch.full((4, 5), 2.0), torch.full((4,), 3.0)])
    optimizer = TANGO(
        [
            {"params": model[0].parameters(), "lr": 0.2, "gamma": 0.3},
            {"params": model[2].parameters(), "preconditioner": scale, "weight_decay": 0.1},
        ],
        lr=0.4,
        gamma=0.05,
        preconditioner=None,
    )
    theta = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, Categorical(), batches(1))
    first, last = model[0].weight, model[2].weight
    torch.testing.assert_close(first.detach(), theta[0] - 0.2 * 0.3 * first.grad)
    torch.testing.assert_close(
        last.detach(), theta[2] - 0.4 * 0.05 * 2.0 * (last.grad + 0.1 * theta[2])
    )
    known = optimizer.diagnostics()
    assert known["gamma"] == 0.3
    assert known["gamma_1"] == 0.05
    assert known["damping"] == pytest.approx(0.2 / 0.3)
    assert known["damping_1"] == pytest.approx(0.4 / 0.05)


def test_gamma_may_be_set_by_hand():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), lr=1.0, gamma=0.1, preconditioner=None)
    optimizer.param_groups[0]["gamma"] = 0.025
    theta = model[0].weight.detach().clone()
    train(model, optimizer, likelihood, [(x, y)])
    torch.testing.assert_close(model[0].weight.detach(), theta - 0.025 * model[0].weight.grad)


def test_add_param_group_starts_at_velocity_zero():
    model = mlp()
    model[2].requires_grad_(False)
    optimizer = TANGO(model[0].parameters(), lr=0.5, gamma=0.1, preconditioner=None)
    data = batches(4)
    likelihood = Categorical()
    train(model, optimizer, likelihood, data[:3])
    model[2].requires_grad_(True)
    optimizer.add_param_group({"params": model[2].parameters()})
    theta = model[2].weight.detach().clone()
    train(model, optimizer, likelihood, data[3:])
    torch.testing.assert_close(model[2].weight.detach(), theta - 0.5 * 0.1 * model[2].weight.grad)


def test_tied_weights_have_one_velocity():
    model = TiedEmbedding()
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    tokens = torch.randint(4, (2, 3))
    train(model, optimizer, Categorical(), [(tokens, tokens.roll(-1, 1))])
    assert model.output.weight is model.embedding.weight
    assert len(optimizer.state) == 4  # embedding = output weight, output bias, hidden weight, bias


def test_a_parameter_without_a_gradient_coasts():
    theta, idle = torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = TANGO([theta, idle], lr=0.5, gamma=0.1, preconditioner=None)
    optimizer.state[idle]["velocity"] = torch.ones(1)
    with optimizer.tangents():
        loss = Gaussian()(theta.expand(3, 2), torch.ones(3, 2))
    loss.backward()
    optimizer.step()
    assert idle.grad is None
    torch.testing.assert_close(optimizer.state[idle]["velocity"], torch.tensor([0.5]))
    torch.testing.assert_close(idle.detach(), torch.tensor([-0.25]))


def test_closures():
    model, x, y, likelihood = problem("mlp", "categorical")
    twin = deepcopy(model)
    optimizer, other = (
        TANGO(model.parameters(), gamma=0.1, preconditioner=None),
        TANGO(twin.parameters(), gamma=0.1, preconditioner=None),
    )

    def closure():
        optimizer.zero_grad()
        loss = optimizer.evaluate(model, lambda: likelihood(model(x), y))
        loss.backward()
        return loss

    expected = likelihood(model(x), y).item()
    assert optimizer.step(closure).item() == pytest.approx(expected)
    train(twin, other, likelihood, [(x, y)])
    assert all(p.equal(q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("order", ["before the block", "after the block"])
def test_zero_grad_may_come_before_or_after_the_forward_pass(order):
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    for _ in range(2):
        if order == "before the block":
            optimizer.zero_grad(set_to_none=False)
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        if order == "after the block":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_hooks():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("pre"))
    optimizer.register_step_post_hook(lambda *_: called.append("post"))
    optimizer.register_state_dict_pre_hook(lambda _: called.append("saving"))
    optimizer.register_state_dict_post_hook(lambda _, d: d | {"mine": 1})
    optimizer.register_load_state_dict_pre_hook(lambda *_: called.append("loading"))
    optimizer.register_load_state_dict_post_hook(lambda _: called.append("loaded"))
    train(model, optimizer, likelihood, [(x, y)])
    saved = optimizer.state_dict()
    assert saved.pop("mine") == 1
    optimizer.load_state_dict(saved)
    assert called == ["pre", "post", "saving", "loading", "loaded"]


class Halving(Preconditioner):
    """A user's own C, with a state."""

    def __init__(self):
        self.factor = torch.tensor(0.5)

    def apply(self, tensors):
        return [self.factor * x for x in tensors]

    def apply_inverse(self, tensors):
        return [x / self.factor for x in tensors]

    def state_dict(self):
        return {"factor": self.factor}

    def from_state(self, state, parameters):
        loaded = Halving()
        loaded.factor = state["factor"]
        return loaded


RULES = {
    "number": lambda: 0.1,
    "max": lambda: "max",
    "gaussian": lambda: "gaussian",
    "kurtosis": lambda: Kurtosis(9.0),
    "fourth moment": lambda: FourthMoment(0.01),
}


@pytest.mark.parametrize("fisher", ["expected", "sampled", "minibatch", "empirical"])
@pytest.mark.parametrize("gamma", RULES)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(gamma, fisher):
    data = batches(24)

    def build():
        torch.manual_seed(7)
        model = mlp()
        groups = [
            {"params": model[0].parameters(), "preconditioner": Halving()},
            {"params": model[2].parameters(), "lr": 0.3},
        ]
        optimizer = TANGO(
            groups, lr=0.1, gamma=RULES[gamma](), weight_decay=0.01, preconditioner=None
        )
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.95)
        return model, optimizer, Categorical(fisher=fisher), scheduler

    model, optimizer, likelihood, scheduler = build()
    train(model, optimizer, likelihood, data[:11], scheduler)
    file = io.BytesIO()
    torch.save([m.state_dict() for m in (model, optimizer, likelihood, scheduler)], file)
    train(model, optimizer, likelihood, data[11:], scheduler)

    file.seek(0)
    parts = build()
    for part, saved in zip(parts, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(saved)
    train(parts[0], parts[1], parts[2], data[11:], parts[3])
    for p, q in zip(model.parameters(), parts[0].parameters(), strict=True):
        assert p.equal(q)
        assert optimizer.state[p]["velocity"].equal(parts[1].state[q]["velocity"])
    assert same(optimizer.state_dict(), parts[1].state_dict())
    assert same(optimizer.diagnostics(), parts[1].diagnostics())


def only_tensors_and_numbers(value):
    if isinstance(value, dict):
        return all(map(only_tensors_and_numbers, value.values()))
    if isinstance(value, list | tuple):
        return all(map(only_tensors_and_numbers, value))
    return isinstance(value, torch.Tensor | int | float)


def test_state_dict_is_tensors_and_plain_numbers():
    model, x, y, likelihood = problem("mlp", "categorical")
    C = Diagonal([torch.ones_like(p) for p in model.parameters()])
    optimizer = TANGO(model.parameters(), gamma="max", preconditioner=C)
    train(model, optimizer, likelihood, [(x, y)] * 3)
    saved = optimizer.state_dict()
    assert saved.keys() == {"state", "param_groups"}
    assert only_tensors_and_numbers(saved)
    for state, p in zip(saved["state"].values(), model.parameters(), strict=True):
        assert list(state) == ["velocity"]  # one parameter-sized tensor
        assert state["velocity"].shape == p.shape


def test_loading_another_kind_of_state_is_refused_and_changes_nothing():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer, other = (
        TANGO(model.parameters(), gamma="max", preconditioner=None),
        TANGO(model.parameters(), gamma=0.1, preconditioner=None),
    )
    train(model, optimizer, likelihood, [(x, y)])
    before = deepcopy(other.state_dict())
    with pytest.raises(
        ValueError, match=r"saved gamma has statistics \['largest', 'loss_count'.*Constant"
    ):
        other.load_state_dict(optimizer.state_dict())
    assert same(other.state_dict(), before)


def test_a_deep_copy_runs_on_its_own():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma="max", preconditioner=None)
    train(model, optimizer, likelihood, [(x, y)] * 3)
    twin, copy = deepcopy((model, optimizer))
    train(model, optimizer, likelihood, [(x, y)] * 3)
    assert not same(copy.state_dict(), optimizer.state_dict())
    train(twin, copy, likelihood, [(x, y)] * 3)
    assert same(copy.state_dict(), optimizer.state_dict())
    assert all(p.equal(q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


def test_step_without_tangents():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    likelihood(model(x), y).backward()
    before = snapshot(model, optimizer)
    with pytest.raises(RuntimeError, match=r"tangents\(model\).*silently be SGD"):
        optimizer.step()
    assert same(snapshot(model, optimizer), before)
    optimizer.zero_grad()
    train(model, optimizer, likelihood, [(x, y)])
    with pytest.raises(RuntimeError, match="since the last step"):
        optimizer.step()


def test_step_without_backward():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    with optimizer.tangents(model):
        likelihood(model(x), y)
    with pytest.raises(RuntimeError, match="backward"):
        optimizer.step()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite(value):
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma="max", preconditioner=None)
    train(model, optimizer, likelihood, [(x, y)] * 2)
    with optimizer.tangents(model):
        loss = likelihood(model(x), y)
    loss.backward()
    model[2].bias.grad[1] = value
    before = snapshot(model, optimizer)
    with pytest.raises(FloatingPointError, match="'2.bias' is not finite"):
        optimizer.step()
    assert same(snapshot(model, optimizer), before)
    optimizer.zero_grad()
    train(model, optimizer, likelihood, [(x, y)])  # and it goes on


def test_unnamed_parameters_are_counted():
    theta = torch.zeros(2, requires_grad=True)
    optimizer = TANGO([theta], gamma=0.1, preconditioner=None)
    with optimizer.tangents():
        loss = Gaussian()(theta.expand(3, 2), torch.ones(3, 2))
    loss.backward()
    theta.grad[0] = math.nan
    with pytest.raises(FloatingPointError, match="number 0 of group 0"):
        optimizer.step()


def test_sparse_gradients_are_refused():
    embedding = nn.Embedding(4, 4, sparse=True)
    optimizer = TANGO(embedding.parameters(), gamma=0.1, preconditioner=None)
    theta = embedding.weight
    with optimizer.tangents():
        loss = Categorical()(theta * 1.0, torch.arange(4))
    loss.backward()
    theta.grad = theta.grad.to_sparse()
    with pytest.raises(RuntimeError, match="sparse=False"):
        optimizer.step()


def test_gradients_are_not_changed_by_the_step():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, weight_decay=0.5, preconditioner=None)
    with optimizer.tangents(model):
        loss = likelihood(model(x), y)
    loss.backward()
    before = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    assert all(p.grad.equal(g) for p, g in zip(model.parameters(), before, strict=True))


def test_diagnostics():
    model, x, y, likelihood = problem("mlp", "categorical")
    C = Diagonal([torch.full_like(p, 2.0) for p in model.parameters()])
    optimizer = TANGO(model.parameters(), lr=0.2, gamma=0.1, preconditioner=C)
    assert all(math.isnan(value) for value in optimizer.diagnostics().values())
    train(model, optimizer, likelihood, [(x, y)])
    assert math.isnan(optimizer.diagnostics()["fisher_quotient"])  # v was 0
    v = torch.cat([optimizer.state[p]["velocity"].reshape(-1) for p in model.parameters()])
    F = fisher_matrix(likelihood, model(x), model.parameters())
    train(model, optimizer, likelihood, [(x, y)])
    known = optimizer.diagnostics()
    assert known["gamma"] == 0.1
    assert known["damping"] == pytest.approx(2.0)
    assert known["fisher_quotient"] == pytest.approx((v @ F @ v / (v @ v / 2)).item(), rel=1e-11)


def test_printing_shows_the_options():
    shown = repr(TANGO(mlp().parameters(), gamma=0.1, preconditioner=None))
    assert "gamma: Constant(0.1)" in shown
    assert "preconditioner: Identity()" in shown


class TestWhatWasRefusedOrSkippedLeavesNoTrace:
    """A batch that made no step must not reach the statistics of later ones."""

    def run(self, likelihood, spoil):
        torch.manual_seed(2)
        model = nn.Linear(3, 2)
        optimizer = TANGO(model.parameters(), gamma="max", preconditioner=None)
        targets = (
            torch.randint(2, (8,)) if isinstance(likelihood, Categorical) else torch.randn(8, 2)
        )
        x = torch.randn(8, 3)
        train(model, optimizer, likelihood, [(x, targets)] * 2)
        if spoil is not None:
            spoil(model, optimizer, likelihood, 1e4 * x, targets)
            optimizer.zero_grad()
        likelihood.generator.manual_seed(5)
        train(model, optimizer, likelihood, [(x, targets)] * 2)
        return optimizer.state_dict(), dict(likelihood.state_dict().items())

    def refused(self, model, optimizer, likelihood, x, y):
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        model.bias.grad[0] = math.nan
        with pytest.raises(FloatingPointError):
            optimizer.step()

    def skipped(self, model, optimizer, likelihood, x, y):
        """As GradScaler does when it finds an infinity: no step at all."""
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()

    def not_differentiated(self, model, optimizer, likelihood, x, y):
        with optimizer.tangents(model):
            likelihood(model(x), y)

    @pytest.mark.parametrize("how", ["refused", "skipped", "not_differentiated"])
    @pytest.mark.parametrize(
        "make",
        [lambda: Categorical(fisher="sampled"), lambda: Gaussian("tracked", fisher="sampled")],
    )
    def test_statistics(self, how, make):
        likelihood = make()
        likelihood.generator.manual_seed(1)
        clean = self.run(likelihood, None)
        likelihood = make()
        likelihood.generator.manual_seed(1)
        assert same(self.run(likelihood, getattr(self, how)), clean)


class TestTwoOptimizersOfTheSameParameters:
    def setting(self, **options):
        model, x, y, likelihood = problem("mlp", "categorical")
        options = {"gamma": 0.1, "preconditioner": None} | options
        first, second = (TANGO(model.parameters(), **options) for _ in range(2))

        def forward(optimizer):
            with optimizer.tangents(model):
                return likelihood(model(x), y)

        return model, first, second, forward

    @pytest.mark.parametrize("blocks_first", [False, True])
    def test_the_sum_of_their_brackets_is_refused(self, blocks_first):
        model, first, second, forward = self.setting()
        for optimizer in (first, second):
            optimizer.zero_grad()
            forward(optimizer).backward()
            optimizer.step()
        first.zero_grad()
        before = snapshot(model, first), snapshot(model, second)
        if blocks_first:
            for loss in [forward(first), forward(second)]:
                loss.backward()
        else:
            forward(first).backward()
            forward(second).backward()
        for optimizer in (first, second):
            with pytest.raises(RuntimeError, match=r"two TANGO optimizers.*Call zero_grad\(\)"):
                optimizer.step()
        second.zero_grad()
        assert same((snapshot(model, first), snapshot(model, second)), before)
        forward(first).backward()
        first.step()

    @pytest.mark.parametrize("clear", ["optimizer", "model"])
    def test_one_after_the_other(self, clear):
        """Also where a block of the first is given up, and its gradients are cleared."""
        model, first, second, forward = self.setting()
        for abandoned in (False, True, False):
            for optimizer in (first, second):
                (optimizer if clear == "optimizer" else model).zero_grad()
                forward(optimizer).backward()
                if optimizer is second or not abandoned:
                    optimizer.step()
        assert first.param_groups[0]["steps"] == 2
        assert second.param_groups[0]["steps"] == 3

    def test_an_optimizer_that_is_gone_does_not_count(self):
        model, first, second, forward = self.setting()
        forward(first).backward()
        for p in model.parameters():
            p.grad.zero_()
        del first
        gc.collect()
        forward(second).backward()
        second.step()

    def test_disjoint_parameters_do_not_meet(self):
        likelihood, (x, y) = Categorical(), batches(1)[0]
        pairs = [(model, TANGO(model.parameters(), gamma=0.1)) for model in (mlp(), mlp())]
        for _ in range(2):
            for model, optimizer in pairs:
                optimizer.zero_grad()
                with optimizer.tangents(model):
                    loss = likelihood(model(x), y)
                loss.backward()
            for _, optimizer in pairs:
                optimizer.step()


def test_a_plain_loss_after_an_unused_block_is_not_a_step():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    with optimizer.tangents(model):
        likelihood(model(x), y)
    nn.functional.cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match="silently be SGD"):
        optimizer.step()


@pytest.mark.parametrize("value", [0.025, "max"])
def test_gamma_may_be_set_by_hand_at_any_time(value):
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    train(model, optimizer, likelihood, [(x, y)] * 20)
    optimizer.param_groups[0]["gamma"] = value
    assert "gamma" in optimizer.diagnostics()
    optimizer.state_dict()
    optimizer.param_groups[0]["gamma"] = value
    train(model, optimizer, likelihood, [(x, y)])
    if value != "max":
        assert optimizer.diagnostics()["gamma"] == value


@pytest.mark.parametrize("gamma", ["max", "gaussian"])
def test_a_factor_on_the_loss_is_seen_by_the_rules(gamma):
    """γ falls by the factor that g and F̂ grow by, so that the path is the same."""
    paths = []
    for factor in (1.0, 100.0):
        torch.manual_seed(3)
        model = mlp()
        optimizer = TANGO(model.parameters(), lr=0.2, gamma=gamma, preconditioner=None)
        likelihood = Categorical(generator=torch.Generator().manual_seed(0))
        for x, y in batches(30):
            optimizer.zero_grad()
            with optimizer.tangents(model):
                loss = factor * likelihood(model(x), y)
            loss.backward()
            optimizer.step()
        paths.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
        quotient = optimizer.diagnostics()["fisher_quotient"] * optimizer.diagnostics()["gamma"]
        paths.append(torch.tensor(quotient))
    torch.testing.assert_close(paths[0], paths[2], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(paths[1], paths[3], rtol=1e-9, atol=1e-10)


def test_factors_of_several_losses_are_seen_by_the_rules():
    """γ = 1/‖g̃_a + √10 g̃_b‖² for the loss a + 10 b, at B = 1 with known pseudo-gradients."""
    theta = torch.tensor([0.3, -0.2], requires_grad=True)
    a, b = Gaussian(fisher="empirical"), Gaussian(2.0, fisher="empirical")
    y1, y2 = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5]])
    optimizer = TANGO([theta], gamma="max", preconditioner=None)
    loss = optimizer.evaluate(None, lambda: a(theta[None], y1) + 10 * b(theta[:1][None], y2))
    loss.backward()
    optimizer.step()
    g = torch.tensor([0.3 - 1.0, -0.2 - 2.0])
    g[0] += 10**0.5 * (0.3 - 0.5) / 2
    assert optimizer.diagnostics()["gamma"] == pytest.approx(1 / (g @ g).item(), rel=1e-12)


def test_a_negative_factor_is_refused():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None)
    with optimizer.tangents(model):
        loss = -likelihood(model(x), y)
    loss.backward()
    before = snapshot(model, optimizer)
    with pytest.raises(ValueError, match="factors must be positive"):
        optimizer.step()
    assert same(snapshot(model, optimizer), before)


@pytest.mark.parametrize("value", [1.0, 100.0])
def test_a_frozen_parameter_reaches_no_other_through_c_or_the_prior(value):
    weight, bias = torch.ones(1, requires_grad=True), torch.full((1,), value)
    bias.requires_grad_(True)
    C = Dense(torch.tensor([[1.0, 0.9], [0.9, 1.0]]))
    optimizer = TANGO([weight, bias], lr=0.1, gamma=0.1, preconditioner=C, weight_decay=0.1)
    bias.requires_grad_(False)
    bias.grad = torch.full((1,), 10 * value)  # stale
    loss = optimizer.evaluate(None, lambda: Gaussian()(weight.expand(2, 1), torch.zeros(2, 1)))
    loss.backward()
    optimizer.step()
    # v = γ (g + λθ) of the weight alone
    torch.testing.assert_close(optimizer.state[weight]["velocity"], torch.tensor([0.1 * 1.1]))
    assert bias.item() == value


def test_schedulers_may_overshoot_by_rounding():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), lr=1.0, gamma=0.1, preconditioner=None)
    scheduler = lr_scheduler.LinearLR(optimizer, 1 / 3, 1.0, 5)
    train(model, optimizer, likelihood, [(x, y)] * 7, scheduler)
    assert optimizer.param_groups[0]["previous_lr"] <= 1


def given_diagonal(parameters):
    return Diagonal([torch.full_like(p, 0.5) for p in parameters])


def given_matrix(parameters):
    return Dense(torch.eye(sum(p.numel() for p in parameters)) / 2)


class TestChangesOfPrecision:
    def tensors(self, optimizer):
        """All that the state holds, of every precision."""
        return [
            x
            for x in tree_leaves(optimizer.state_dict())
            if isinstance(x, torch.Tensor) and x.is_floating_point()
        ]

    @pytest.mark.parametrize("gamma", [0.1, "auto", "max"])
    @pytest.mark.parametrize(
        "make",
        [None, "auto", "rmsprop", "kronecker", given_diagonal, given_matrix],
    )
    def test_the_model_may_change_its_precision(self, make, gamma):
        """All that was learned goes with it: the run goes on as one in the first precision."""
        ends = []
        for dtype in (torch.float64, torch.float32):
            torch.manual_seed(0)
            model, x, y, _ = problem("mlp", "categorical")
            likelihood = Categorical(generator=torch.Generator().manual_seed(1))
            C = make(list(model.parameters())) if callable(make) else make
            optimizer = TANGO(model.parameters(), gamma=gamma, preconditioner=C)
            train(model, optimizer, likelihood, [(x, y)] * 3)
            model.to(dtype)
            train(model, optimizer, likelihood, [(x.to(dtype), y)] * 3)
            assert {x.dtype for x in self.tensors(optimizer)} == {dtype}
            assert optimizer.residual(model, likelihood, [(x.to(dtype), y)]) > 0
            model.double()
            train(model, optimizer, likelihood, [(x, y)] * 2)
            ends.append(flatten(list(model.parameters())).detach())
        torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=1e-4)

    def test_a_state_of_another_precision_is_loaded(self):
        model, x, y, likelihood = problem("mlp", "categorical")
        optimizer = TANGO(model.parameters())
        train(model, optimizer, likelihood, [(x, y)] * 2)
        twin = deepcopy(model).float()
        other = TANGO(twin.parameters())
        other.load_state_dict(optimizer.state_dict())
        train(twin, other, likelihood, [(x.float(), y)] * 2)
        assert {x.dtype for x in self.tensors(other)} == {torch.float32}

    def test_not_between_the_block_and_the_step(self):
        model, x, y, likelihood = problem("mlp", "categorical")
        optimizer = TANGO(model.parameters())
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        model.float()
        with pytest.raises(RuntimeError, match="was changed between the `tangents` block and"):
            optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions_train(dtype):
    model, x, y, likelihood = problem("mlp", "categorical")
    model, x = model.to(dtype), x.to(dtype)
    optimizer = TANGO(model.parameters(), lr=0.3, gamma=0.3, preconditioner=None)
    before = likelihood(model(x), y).item()
    train(model, optimizer, likelihood, [(x, y)] * 40)
    assert likelihood(model(x), y).item() < 0.7 * before


@pytest.mark.parametrize(
    ("build", "saved", "message"),
    [
        ({}, "sgd", "not the state_dict of a TANGO"),
        ({"gamma": Kurtosis(3.0)}, {"gamma": FourthMoment(0.1)}, "same kind of gamma"),
        ({"preconditioner": Dense(torch.eye(44))}, {}, "same kind of preconditioner"),
    ],
)
def test_states_of_another_kind(build, saved, message):
    model = mlp()
    optimizer = TANGO(model.parameters(), **build)
    other = (
        torch.optim.SGD(model.parameters(), lr=0.1)
        if saved == "sgd"
        else TANGO(model.parameters(), **saved)
    )
    before = deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(other.state_dict())
    assert same(optimizer.state_dict(), before)


def test_a_preconditioner_of_another_size_is_refused_before_loading():
    model = mlp()
    make = lambda n: Dense(torch.eye(n))  # noqa: E731
    optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=make(44))
    saved = deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["preconditioner"] = make(6).state_dict()
    before = deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="side 6"):
        optimizer.load_state_dict(saved)
    assert same(optimizer.state_dict(), before)


def test_hooks_see_plain_numbers():
    optimizer = TANGO(mlp().parameters(), gamma="max", preconditioner=None)
    seen = []
    optimizer.register_state_dict_post_hook(lambda _, d: seen.append(deepcopy(d)))
    optimizer.state_dict()
    assert only_tensors_and_numbers(seen[0])
    assert isinstance(optimizer.param_groups[0]["gamma"], RunningMax)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"gamma": None}, "gamma is a positive number"), ({"gamma": []}, "gamma is")],
)
def test_options_of_the_wrong_type(options, message):
    with pytest.raises(ValueError, match=message):
        TANGO(mlp().parameters(), **options)
