"""Refresh steps run the batch again: the same outputs, other tangents, and nothing left behind."""

import warnings

import pytest
import torch
from torch import nn

from tangograd import TANGO, Bernoulli, Categorical, Gaussian
from tangograd.preconditioners import Identity
from tangograd.recording import ForwardContext
from tangograd.reference import fisher_matrix
from tangograd.vectors import flatten

from .cases import MODELS, OUTPUTS, midpoint_matrix, problem


class Noisy(nn.Module):
    """Dropout, batch normalisation, and a buffer that counts and changes the outputs."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5))
        self.head = nn.Linear(6, OUTPUTS)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, *, scale=1.0):
        self.calls += 1
        return self.head(self.body(x)) * scale + self.calls


def first_step(model, body, **options):
    optimizer = TANGO(model.parameters(), **options)
    with optimizer.tangents(model):
        loss = body()
    loss.backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("model_name", [name for name in MODELS if name != "raw"])
def test_the_line_search_is_that_of_the_dense_fisher(model_name):
    """1/γ = ⟨Δ, F⁺Δ⟩ / ⟨r, Δ⟩ with r = g in the first step, and Δ = r without C."""
    model, x, y, likelihood = problem(model_name, "categorical")
    F = midpoint_matrix(model, likelihood, x, y)
    optimizer = first_step(model, lambda: likelihood(model(x), y), preconditioner=None)
    r = flatten([p.grad for p in model.parameters()])
    rule = optimizer.param_groups[0]["gamma"]
    assert rule.search == pytest.approx((r @ F @ r / (r @ r)).item(), rel=1e-10)


def test_the_power_iteration_finds_the_largest_eigenvalue():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer = TANGO(model.parameters(), lr=0.0, preconditioner=None)
    for _ in range(800):
        optimizer.param_groups[0]["gamma"].due = True  # no averages over earlier vectors
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()
    largest = torch.linalg.eigvalsh(midpoint_matrix(model, likelihood, x, y))[-1].item()
    assert optimizer.param_groups[0]["gamma"].cap == pytest.approx(largest, rel=1e-6)


def test_weight_decay_counts_in_the_line_search():
    model, x, y, likelihood = problem("mlp", "categorical")
    F = midpoint_matrix(model, likelihood, x, y) + 0.3 * torch.eye(44)
    theta = flatten(list(model.parameters())).detach()
    optimizer = first_step(
        model, lambda: likelihood(model(x), y), preconditioner=None, weight_decay=0.3
    )
    r = flatten([p.grad for p in model.parameters()]) + 0.3 * theta
    expected = (r @ F @ r / (r @ r)).item()
    assert optimizer.param_groups[0]["gamma"].search == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("preconditioner", [None, "auto", "kronecker"])
def test_dropout_and_buffers_are_as_in_one_pass(preconditioner):
    """The replays of a refresh step draw the same masks, and leave no trace."""
    x, y = torch.randn(8, 3), torch.randint(OUTPUTS, (8,))
    found = []
    for options in ({"gamma": 0.1, "preconditioner": None}, {"preconditioner": preconditioner}):
        torch.manual_seed(3)
        model, likelihood = Noisy(), Categorical()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a replay with other masks would warn
            optimizer = first_step(
                model, lambda m=model, c=likelihood: c(m(x, scale=2.0), y), **options
            )
        assert not model._forward_pre_hooks
        assert not any(module._forward_hooks for module in model.modules())
        found.append(([b.clone() for b in model.buffers()], torch.rand(3), optimizer))
    for before, after in zip(found[0][0], found[1][0], strict=True):
        assert before.equal(after)
    assert found[0][1].equal(found[1][1])
    assert not found[1][2].param_groups[0]["gamma"].blind


def test_ignored_samples_reshaped_outputs_and_tuples():
    """The likelihood may get one of several outputs, in another shape."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, OUTPUTS)

        def forward(self, x):
            hidden, last = self.gru(x)
            return {"logits": self.head(hidden), "last": last}

    model, likelihood, x = Model(), Categorical(), torch.randn(2, 5, 3)
    y = torch.randint(OUTPUTS, (10,))
    y[::3] = -100
    optimizer = first_step(model, lambda: likelihood(model(x)["logits"].flatten(0, 1), y))
    assert optimizer.diagnostics()["gamma"] > 0
    assert not optimizer.param_groups[0]["gamma"].blind


def test_evaluate_runs_its_closure_again():
    model, x, y, likelihood = problem("mlp", "gaussian")
    F = 4 * fisher_matrix(likelihood, model(x), model.parameters())
    optimizer = TANGO(model.parameters(), preconditioner=None)
    loss = optimizer.evaluate(model, lambda: likelihood(2 * model(x), y))
    loss.backward()
    optimizer.step()
    r = flatten([p.grad for p in model.parameters()])
    expected = (r @ F @ r / (r @ r)).item()
    assert optimizer.param_groups[0]["gamma"].search == pytest.approx(expected, rel=1e-10)


def test_micro_batches_are_measured_as_one_batch():
    model, x, y, likelihood = problem("mlp", "gaussian")
    found = []
    for parts in ([(x, y)], [(x[:2], y[:2]), (x[2:], y[2:])]):
        torch.manual_seed(1)
        optimizer = TANGO(model.parameters(), lr=0.0, preconditioner=Identity())
        optimizer.zero_grad()
        for x_part, y_part in parts:
            with optimizer.tangents(model):
                loss = likelihood(model(x_part), y_part) * len(x_part) / len(x)
            loss.backward()
        optimizer.step()
        found.append(optimizer.param_groups[0]["gamma"].search)
    assert found[0] == pytest.approx(found[1], rel=1e-10)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda m, c, x, y: c(2 * m(x), y), "not the same"),
        (lambda m, c, x, y: c(m(x) + torch.randn(1), y), "not the same"),
        (lambda m, c, x, y: c(m[2](m[1](m[0](x))), y), "not given what the model returned"),
    ],
)
def test_what_cannot_be_run_again_is_said_once_and_trained_on(body, reason):
    model, x, _, likelihood = problem("mlp", "categorical")
    y = torch.randint(OUTPUTS, (5,))
    optimizer = TANGO(model.parameters())
    losses = []

    def go():
        for _ in range(60):
            optimizer.zero_grad()
            with optimizer.tangents(model):
                loss = body(model, likelihood, x, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    with pytest.warns(RuntimeWarning, match=f"{reason}.*optimizer.evaluate") as record:
        go()
    assert len(record) == 1
    assert losses[-1] < 0.7 * losses[0]


def test_raw_parameters_without_a_closure_follow_the_quotient():
    theta = torch.zeros(3, requires_grad=True)
    optimizer, likelihood = TANGO([theta]), Gaussian()
    y = torch.randn(20, 3) + 5

    def go():
        for _ in range(150):
            optimizer.zero_grad()
            with optimizer.tangents():
                loss = likelihood(theta.expand(20, 3), y)
            loss.backward()
            optimizer.step()

    with pytest.warns(RuntimeWarning, match="does not say which model"):
        go()
    torch.testing.assert_close(theta.detach(), y.mean(0), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        ({"gamma": 0.1, "preconditioner": None}, 1),
        ({"gamma": 0.1, "preconditioner": "kronecker"}, 1),
        ({"gamma": "max", "preconditioner": "auto"}, 1),
    ],
)
def test_nothing_is_run_again_that_gamma_does_not_use(options, runs):
    model, x, y, likelihood = problem("mlp", "categorical")
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # γ is not the point here
        first_step(model, lambda: likelihood(model(x), y), **options)
    assert len(calls) == runs


def test_steps_between_refreshes_run_the_model_once():
    model, x, y, likelihood = problem("mlp", "categorical")
    optimizer, calls = TANGO(model.parameters(), lr=0.01), []
    model.register_forward_hook(lambda *_: calls.append(1))
    counts = []
    for _ in range(25):
        calls.clear()
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()
        counts.append(len(calls))
    refreshed = [k for k, count in enumerate(counts) if count > 1]
    assert optimizer.diagnostics()["guards"] == 0
    assert refreshed == [0, 1, 2, 3, 4, 6, 8, 10, 13, 16, 20]


def test_conditions_restore_what_they_found():
    model = nn.BatchNorm1d(3)
    before = ForwardContext(model)
    first = model(torch.randn(4, 3))
    mean = model.running_mean.clone()
    with before.restored():
        assert model.running_mean.equal(torch.zeros(3))
        again = model(torch.randn(4, 3))
    assert again.equal(first)
    assert model.running_mean.equal(mean)


def test_a_failing_closure_is_no_replay():
    model, x, y, _ = problem("mlp", "bernoulli")
    likelihood, batches = Bernoulli(), iter([(x, y)])

    def closure():
        inputs, targets = next(batches)
        return likelihood(model(inputs), targets)

    optimizer = TANGO(model.parameters())
    loss = optimizer.evaluate(model, closure)
    loss.backward()
    with pytest.warns(RuntimeWarning, match="StopIteration"):
        optimizer.step()


class Hooked(nn.Module):
    """Its forward pass registers a hook, which needs a graph."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        z = self.layer(x)
        z.register_hook(lambda gradient: gradient)
        return z


def test_models_that_need_a_graph_are_run_again_with_one():
    model, likelihood = Hooked(), Gaussian()
    x, y = torch.randn(20, 3), torch.randn(20, 1)
    optimizer = first_step(model, lambda: likelihood(model(x), y), preconditioner=None)
    rule = optimizer.param_groups[0]["gamma"]
    assert not rule.blind
    r = flatten([p.grad for p in model.parameters()])
    a = torch.cat([x, torch.ones(20, 1)], 1)
    assert rule.search == pytest.approx(((a @ r).square().mean() / (r @ r)).item(), rel=1e-10)


def test_a_likelihood_that_does_not_enter_the_loss():
    model, likelihood = nn.Linear(3, 1), Gaussian()
    x, y = torch.randn(20, 3), torch.randn(20, 1)

    def body():
        likelihood(model(x), y)  # looked at, not trained on
        return likelihood(model(x), y)

    optimizer = first_step(model, body)
    assert optimizer.param_groups[0]["gamma"].value > 0
