"""Default arguments: no task diverges, the fixed point is unbiased, and a saved run goes on."""

import io

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tangograd import (
    TANGO,
    Bernoulli,
    Categorical,
    FromDistribution,
    Gamma,
    Gaussian,
    MeanScaleGaussian,
    NegativeBinomial,
    Poisson,
)
from tangograd.curvature import Auto, refresh
from tangograd.preconditioners import InverseDiagonal

from ..cases import Attention, ConvNet, Recurrent, student
from ..test_session import same


def net(inputs, outputs, activation=nn.ReLU, width=16):
    return nn.Sequential(nn.Linear(inputs, width), activation(), nn.Linear(width, outputs))


def linear_data(rows, columns, scale=1.0):
    x = torch.randn(rows, columns) * scale
    return x, torch.sin(2 * x / scale).sum(1, keepdim=True) / columns**0.5


def classes(x):
    flat = x.reshape(len(x), -1)
    return (flat @ torch.randn(flat.shape[1], 4) + 0.5 * torch.randn(len(x), 4)).argmax(1)


def regression(likelihood, outputs, activation=nn.Tanh, scale=1.0):
    def task():
        x, eta = linear_data(400, 5, scale)
        eta = eta.expand(-1, outputs if likelihood is not MeanScaleGaussian else outputs // 2)
        loss = likelihood()
        if isinstance(loss, MeanScaleGaussian | Gaussian | FromDistribution):
            y = 3 * eta + 0.3 * torch.randn_like(eta) + 10
        else:
            y = loss.sample(eta)
        return net(5, outputs, activation), loss, x, y

    return task


def classification(make, shape, fisher="expected"):
    def task():
        x = torch.randn(400, *shape)
        return make(), Categorical(fisher=fisher), x, classes(x)

    return task


def sequences(make, size):
    def task():
        x = torch.randn(200, 4, size)
        return make(), Categorical(), x, (x.cumsum(1)[..., :2].sum(-1) > 0).long()

    return task


UNSCALED = torch.logspace(-3, 3, 5)

#: name: (task, batch)
TASKS = {
    "categorical, ReLU, B=32": (classification(lambda: net(6, 4), (6,)), 32),
    "categorical, tanh, B=1": (classification(lambda: net(6, 4, nn.Tanh), (6,)), 1),
    "categorical, B=1000": (classification(lambda: net(6, 4), (6,)), 1000),
    "sampled F̂, B=8": (classification(lambda: net(6, 4), (6,), "sampled"), 8),
    "minibatch F̂, B=8": (classification(lambda: net(6, 4), (6,), "minibatch"), 8),
    "empirical F̂, B=8": (classification(lambda: net(6, 4), (6,), "empirical"), 8),
    "convolution, B=16": (classification(ConvNet, (2, 4, 4)), 16),
    "GRU, B=16": (sequences(Recurrent, 3), 16),
    "attention, B=16": (sequences(Attention, 4), 16),
    "bernoulli, B=4": (regression(Bernoulli, 2), 4),
    "gaussian, B=1": (regression(Gaussian, 1), 1),
    "gaussian, unscaled, B=32": (regression(Gaussian, 1, scale=UNSCALED), 32),
    "tracked gaussian, B=16": (regression(lambda: Gaussian("tracked"), 1, nn.ReLU), 16),
    "mean and scale, B=32": (regression(MeanScaleGaussian, 2), 32),
    "poisson, unscaled, B=16": (regression(Poisson, 1, scale=UNSCALED), 16),
    "poisson, B=1": (regression(Poisson, 1, nn.ReLU), 1),
    "negative binomial, B=8": (regression(lambda: NegativeBinomial(0.5), 1), 8),
    "gamma, B=8": (regression(lambda: Gamma(2.0), 1), 8),
    "student-t, B=16": (regression(lambda: FromDistribution(student), 1), 16),
    "logistic regression, unscaled, B=10": (lambda: (_zeros(), Bernoulli(), *_logistic()), 10),
}


def _zeros():
    """Where logistic regressions start; torch's random weights would saturate the outputs."""
    model = nn.Linear(5, 1)
    nn.init.zeros_(model.weight)
    return model


def _logistic():
    x = torch.randn(400, 5) * UNSCALED
    return x, (torch.rand(400, 1) < ((x / UNSCALED).sum(1, keepdim=True)).sigmoid()).double()


def run(model, optimizer, likelihood, x, y, batch, steps, scheduler=None):
    losses = []
    for _ in range(steps):
        rows = torch.randint(len(x), (batch,)) if batch < len(x) else torch.arange(len(x))
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if scheduler is not None:
            scheduler.step()
    return losses


@pytest.mark.parametrize(
    ("name", "preconditioner"),
    [(name, preconditioner) for name in TASKS for preconditioner in ("auto", "diagonal")],
)
def test_no_task_diverges_with_default_arguments(name, preconditioner):
    """The loss over all data ends below where it began.

    With single samples and a constant δt what is left is mostly noise: there it must not leave.
    """
    task, batch = TASKS[name]
    model, likelihood, x, y = task()
    optimizer = TANGO(model.parameters(), preconditioner=preconditioner)
    losses = []
    for _ in range(30):
        with torch.no_grad():
            losses.append(float(likelihood(model(x), y)))
        run(model, optimizer, likelihood, x, y, batch, 10)
    late = sorted(losses[-10:])
    assert late[5] < losses[0] * (1.2 if batch == 1 else 1.0)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize(
    "name", ["categorical, ReLU, B=32", "gaussian, unscaled, B=32", "GRU, B=16"]
)
def test_rates_of_a_scheduler_from_0_to_1(name):
    task, batch = TASKS[name]
    model, likelihood, x, y = task()
    optimizer = TANGO(model.parameters(), lr=1.0)
    rates = lr_scheduler.LambdaLR(optimizer, lambda k: abs(1 - (k % 80) / 40))
    with torch.no_grad():
        before = float(likelihood(model(x), y))
    run(model, optimizer, likelihood, x, y, batch, 240, rates)
    with torch.no_grad():
        assert float(likelihood(model(x), y)) < before


@pytest.mark.parametrize("preconditioner", ["auto", "diagonal"])
def test_the_fixed_point_is_unbiased(preconditioner):
    """Linear regression at rest (δt = 0): the mean of v is F⁻¹ g, with γ and C still moving."""
    n, steps = 60, 6000
    x = torch.randn(n, 3) * torch.tensor([1.0, 0.3, 3.0]) + torch.tensor([0.0, 0.2, 1.0])
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + torch.randn(n)
    model, likelihood = nn.Linear(3, 1, bias=False), Gaussian()
    optimizer = TANGO(model.parameters(), lr=0.0, preconditioner=preconditioner)
    exact = torch.linalg.solve(x.T @ x / n, x.T @ (x @ model.weight[0].detach() - y) / n)
    path, gammas = [], set()
    for _ in range(steps):
        rows = torch.randint(n, (6,))
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x[rows]), y[rows, None])
        loss.backward()
        optimizer.step()
        path.append(optimizer.state[model.weight]["velocity"][0].clone())
        gammas.add(optimizer.diagnostics()["gamma"])
    blocks = torch.stack(path[500:]).reshape(10, -1, 3).mean(1)
    error = blocks.std(0) / 10**0.5
    assert len(gammas) > 100  # γ did move
    assert bool((error < 0.05 * exact.abs() + 0.02).all())  # and the test can tell
    assert bool(((blocks.mean(0) - exact).abs() < 4 * error).all())


def test_groups_that_say_auto_share_one_gamma():
    model = net(3, 4)
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    optimizer = TANGO(groups, preconditioner="diagonal")
    x = torch.randn(50, 3)
    whole = TANGO(model.parameters(), preconditioner="diagonal")
    for made in (optimizer, whole):
        torch.manual_seed(5)
        likelihood = Categorical()
        with made.tangents(model):
            loss = likelihood(model(x), classes(x))
        model.zero_grad()
        loss.backward()
        kept = [p.detach().clone() for p in model.parameters()]
        made.step()
        with torch.no_grad():
            for p, q in zip(model.parameters(), kept, strict=True):
                p.copy_(q)
    known = optimizer.diagnostics()
    assert known["gamma"] == known["gamma_1"]
    assert known["gamma"] == pytest.approx(whole.diagnostics()["gamma"], rel=1e-10)


@pytest.mark.parametrize("preconditioner", ["auto", "diagonal", "rmsprop", None])
@pytest.mark.parametrize("at", [3, 14, 20])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(preconditioner, at):
    """In the middle of a refresh cycle, and right before a refresh."""
    x = torch.randn(40, 6)
    y = classes(x)

    def build():
        torch.manual_seed(2)
        model = net(6, 4)
        return model, TANGO(model.parameters(), preconditioner=preconditioner), Categorical()

    def go(model, optimizer, likelihood, steps):
        for k in steps:
            rows = torch.arange(10) + 10 * (k % 4)
            optimizer.zero_grad()
            with optimizer.tangents(model):
                loss = likelihood(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()

    parts = build()
    go(*parts, range(at))
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    go(*parts, range(at, 45))
    file.seek(0)
    resumed = build()
    for part, saved in zip(resumed, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(saved)
    go(*resumed, range(at, 45))
    for p, q in zip(parts[0].parameters(), resumed[0].parameters(), strict=True):
        assert p.equal(q)
    assert same(parts[1].state_dict(), resumed[1].state_dict())


class TestGuard:
    def test_an_unstable_velocity_is_shortened_and_gamma_halved(self):
        rule = Auto()
        rule.measured(search=1.0, cap=1.0)
        assert not rule.unstable(quotient=0.9, slope=1.0, loss=1.0)
        assert rule.value == 1.0
        assert rule.unstable(quotient=2.1, slope=-1.0, loss=1.0)  # more than twice what it was
        assert (rule.value, rule.guards, rule.due) == (0.5, 1, True)

    def test_what_cannot_hurt_the_loss_is_left_alone(self):
        """At δt = 0 there is no step to take back: γ follows the quotient, and v is unbiased."""
        rule = Auto()
        rule.measured(search=1.0, cap=1.0)
        assert not rule.unstable(quotient=4.0, slope=-1.0, loss=1.0, change=0.0)
        assert (rule.value, rule.guards) == (0.25, 0)

    def test_a_run_that_goes_uphill_does_not_get_used_to_it(self):
        rule = Auto()
        rule.measured(search=1.0, cap=1.0, descent=1.0)
        slopes = [-(1.5**k) for k in range(1, 10)]
        assert any(rule.unstable(quotient=0.5, slope=slope, loss=1.0) for slope in slopes)

    def test_few_samples_do_not_raise_gamma_after_a_guard(self):
        few, many = Auto(), Auto()
        for rule, samples in ((few, 1), (many, 1000)):
            rule.measured(search=1.0, cap=1.0)
            rule.unstable(quotient=0.9, slope=1.0, loss=1.0)
            assert rule.unstable(quotient=3.0, slope=1.0, loss=1.0)
            rule.measured(search=0.01, cap=0.01, samples=samples)
        assert few.search > 0.3
        assert many.search < 0.02

    def test_an_ordinary_loss_speaks_against_a_jump_but_not_a_large_one(self):
        def rule_with_history():
            rule = Auto()
            rule.measured(search=1.0, cap=1.0)
            for k in range(20):
                rule.unstable(quotient=0.9, slope=1.0, loss=1.0 + 0.1 * (-1) ** k)
            return rule

        assert rule_with_history().unstable(quotient=2.5, slope=1.0, loss=1.3)
        assert not rule_with_history().unstable(quotient=2.5, slope=1.0, loss=1.0)
        assert rule_with_history().unstable(quotient=4.5, slope=1.0, loss=1.0)

    def test_a_first_quotient_is_compared_with_the_line_search(self):
        rule = Auto()
        rule.measured(search=1.0, cap=1.0)
        assert rule.unstable(quotient=2.5, slope=1.0, loss=1.0)

    def test_a_loss_that_rises_without_curvature_calls_the_guard(self):
        """|θ| with steps across its kink: the slope changes its sign, and nothing else happens."""
        rule = Auto()
        rule.measured(search=1.0, cap=1.0)
        for k in range(30):
            assert not rule.unstable(quotient=0.0, slope=(-1.0) ** k, loss=1.0 + 0.1 * (-1) ** k)
        rule.measured(search=1.0, cap=1.0)
        steps = (rule.unstable(0.0, (-1.0) ** k, 1.0 + 0.1 * k) for k in range(60))
        assert next(k for k, stopped in enumerate(steps) if stopped) < 40

    def test_gamma_recovers(self):
        rule = Auto()
        rule.measured(search=1.0, cap=1.0)
        rule.unstable(quotient=0.9, slope=1.0, loss=1.0)
        assert rule.unstable(quotient=3.0, slope=-1.0, loss=1.0)
        rule.measured(search=1.0, cap=1.0)
        assert rule.value == 0.5
        for _ in range(30):
            rule.unstable(quotient=0.1, slope=1.0, loss=1.0)
        assert rule.value == 1.0

    def test_a_batch_may_not_promise_more_than_twice_the_loss(self):
        """An outlier is taken with the γ at which γ ⟨r, C r⟩ is twice the loss."""
        model, likelihood = nn.Linear(1, 1, bias=False), Gaussian()
        nn.init.zeros_(model.weight)
        optimizer = TANGO(model.parameters(), lr=0.0, preconditioner=None)
        x = torch.ones(8, 1)
        run(model, optimizer, likelihood, x, x, 8, 12)
        assert optimizer.diagnostics()["gamma"] == 1.0
        optimizer.state[model.weight]["velocity"].zero_()  # so that the quotient says nothing
        (loss,) = run(model, optimizer, likelihood, 10 * x, 30 * x, 8, 1)  # g = -300
        gamma = optimizer.diagnostics()["gamma"]
        assert gamma * 300**2 > 2 * loss > 0
        v = optimizer.state[model.weight]["velocity"].item()
        assert v == pytest.approx(-2 * loss / 300)

    def test_a_step_that_went_too_far_is_taken_back(self):
        """θ returns to where it was, v is dropped, and the event is counted."""
        torch.manual_seed(0)
        model, likelihood = nn.Linear(2, 1), Gaussian()
        optimizer = TANGO(model.parameters(), lr=0.5)
        x, y = torch.randn(30, 2), torch.randn(30, 1)
        run(model, optimizer, likelihood, x, y, 30, 12)
        kept = [p.detach().clone() for p in model.parameters()]
        velocities = [optimizer.state[p]["velocity"] for p in model.parameters()]
        for p, v in zip(model.parameters(), velocities, strict=True):
            v.copy_(torch.full_like(v, 40.0))  # far beyond the optimum
            p.data.sub_(v, alpha=0.5)
        run(model, optimizer, likelihood, x, y, 30, 1)
        assert optimizer.diagnostics()["guards"] == 1
        for p, q, v in zip(model.parameters(), kept, velocities, strict=True):
            torch.testing.assert_close(p.detach(), q)
            assert not v.any()

    def test_a_velocity_that_is_too_long_is_cut_to_its_best_multiple(self):
        """F has grown, and the loss still falls along v: v becomes ⟨g, ṽ⟩/⟨ṽ, Fṽ⟩ times v."""
        model, likelihood = nn.Linear(1, 1, bias=False), Gaussian()
        nn.init.zeros_(model.weight)
        optimizer = TANGO(model.parameters(), lr=0.1, preconditioner=None)
        x = torch.ones(8, 1)
        run(model, optimizer, likelihood, x, -100 * x, 8, 5)
        theta, v = model.weight.item(), optimizer.state[model.weight]["velocity"].item()
        run(model, optimizer, likelihood, 4 * x, 4 * (theta - 0.2 * v) * x, 8, 1)
        assert optimizer.diagnostics()["guards"] == 1
        best = 0.2 / 0.9  # g = 16 · 0.2 v, ṽ = 0.9 v and F = 16
        assert optimizer.state[model.weight]["velocity"].item() == pytest.approx(best * v)
        assert model.weight.item() == pytest.approx(theta - 0.1 * best * v)


def test_a_group_added_later_is_measured_before_it_moves():
    model = net(3, 4)
    model[2].requires_grad_(False)
    optimizer, likelihood = TANGO(model[0].parameters()), Categorical()
    x = torch.randn(50, 3)
    y = classes(x)
    run(model, optimizer, likelihood, x, y, 50, 15)
    model[2].requires_grad_(True)
    optimizer.add_param_group({"params": model[2].parameters()})
    losses = run(model, optimizer, likelihood, x, y, 50, 40)
    assert losses[-1] < losses[0]
    assert optimizer.param_groups[1]["preconditioner"].updates > 0


def test_refreshes_alternate_also_past_the_first_steps():
    """A power iteration, and then a line search alone, which needs nothing pulled back."""
    rule, C = Auto(), InverseDiagonal()
    rule.due = False
    steps = [step for step in range(46, 200) if refresh.is_due(step, [rule], [C])]
    assert steps == [60, 80, 100, 120, 140, 160, 180]
    wanted = [bool(refresh.needs(step, [rule], [C])) for step in steps]
    assert wanted == [False, True] * 3 + [False]
    early = [step for step in range(46) if refresh.is_due(step, [rule], [C])]
    assert all(refresh.needs(step, [rule], [C]) for step in early)
    assert refresh._number(60) == refresh._number(45) + 1


def test_two_auto_rules_have_a_power_iteration_each():
    """Each finds the largest curvature of its own group."""
    x = torch.randn(500, 2) * torch.tensor([1.0, 0.5])  # a gap between the eigenvalues
    y = torch.randn(500, 1)
    small, large = (nn.Linear(2, 1, bias=False) for _ in range(2))

    def model(x):
        return small(x) + large(6 * x)

    groups = [{"params": part.parameters(), "gamma": Auto()} for part in (small, large)]
    optimizer, likelihood = TANGO(groups, preconditioner=None), Gaussian()
    for _ in range(60):
        optimizer.zero_grad()
        loss = optimizer.evaluate(None, lambda: likelihood(model(x), y))
        loss.backward()
        optimizer.step()
    largest = float(torch.linalg.eigvalsh(x.T @ x / 500)[-1])
    caps = [group["gamma"].cap for group in optimizer.param_groups]
    assert caps[0] == pytest.approx(largest, rel=0.01)
    assert caps[1] == pytest.approx(36 * largest, rel=0.01)


@pytest.mark.parametrize("lr", [0.1, 0.9, 0.99])
def test_the_change_of_the_loss_is_along_the_step_that_was_taken(lr):
    """One parameter: F = 1, so that ⟨g, v⟩ = θ v, and the step was δt v, also for δt near 1."""
    theta = torch.tensor([3.0], requires_grad=True)
    optimizer, likelihood = TANGO([theta], lr=lr, preconditioner=None), Gaussian()
    y, seen = torch.zeros(4, 1), []
    rule = optimizer.param_groups[0]["gamma"]
    rule.unstable = lambda quotient, slope, loss, change: seen.append(change) or False
    for _ in range(2):
        optimizer.zero_grad()
        before, v = theta.item(), optimizer.state[theta].get("velocity", torch.zeros(1)).item()
        loss = optimizer.evaluate(None, lambda: likelihood(theta.expand(4, 1), y))
        loss.backward()
        optimizer.step()
    expected = max(abs(before * lr * v), (lr * v) ** 2) / max(abs(loss.item()), 1.0)
    assert seen[-1] == pytest.approx(expected)


def test_the_guard_leaves_a_stationary_loss_alone():
    """Five standard errors, in every step: less than one false alarm in 5000 steps."""
    rule = Auto()
    rule.measured(search=1.0, cap=1.0)
    for k, loss in enumerate((1 + 0.3 * torch.randn(5000)).tolist()):
        rule.unstable(quotient=0.5, slope=1.0, loss=loss)
        if k % 20 == 0:
            rule.measured(search=1.0, cap=1.0)
    assert rule.guards <= 1


@pytest.mark.filterwarnings("ignore:.*could not replay:RuntimeWarning")
def test_the_memory_of_gamma_follows_c_without_a_replay():
    """The batch cannot be run again, and C is rescaled by 100: so is what γ is compared with."""
    model, likelihood = nn.Linear(2, 1), Gaussian()
    C = InverseDiagonal()
    optimizer = TANGO(model.parameters(), preconditioner=C)
    x, y = torch.randn(20, 2), torch.randn(20, 1)
    rule = optimizer.param_groups[0]["gamma"]
    seen = []
    rescale = rule.rescale
    rule.rescale = lambda ratio: (seen.append(ratio), rescale(ratio))
    for _ in range(12):
        optimizer.zero_grad()
        with optimizer.tangents():
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()
    assert rule.blind
    assert len(seen) >= 3
