"""The velocity at frozen θ, its second moment, and the path that it makes θ follow."""

import pytest
import torch
from torch import nn

from tangograd import TANGO, Bernoulli, MeanScaleGaussian, Poisson
from tangograd.preconditioners import Dense
from tangograd.reference import fisher_matrix, natural_gradient_flow
from tangograd.vectors import flatten


class Logistic(nn.Module):
    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([0.5, -0.3, 0.2]))

    def forward(self, x):
        return x @ self.theta


@pytest.fixture
def logistic():
    model = Logistic()
    x = torch.randn(7, 3) * torch.tensor([1.0, 0.7, 1.5])
    y = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    (g,) = torch.autograd.grad(Bernoulli()(model(x), y), model.theta)
    F = fisher_matrix(Bernoulli(), model(x), [model.theta])
    return model, x, y, g, F


A = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 0.5]], dtype=torch.float64)


@pytest.mark.parametrize("C", [torch.eye(3, dtype=torch.float64), A])
@pytest.mark.parametrize("dt", [0.0, 0.1])
def test_the_velocity_settles_at_the_damped_natural_gradient(logistic, C, dt):
    model, x, y, g, F = logistic
    gamma = 0.8
    optimizer = TANGO(model.parameters(), lr=dt, gamma=gamma, preconditioner=Dense(C))
    start = model.theta.detach().clone()
    for _ in range(3000):
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = Bernoulli()(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.theta.copy_(start)
    expected = torch.linalg.solve((1 - dt) * F + dt / gamma * torch.linalg.inv(C), g)
    torch.testing.assert_close(
        optimizer.state[model.theta]["velocity"], expected, rtol=1e-10, atol=1e-10
    )
    assert optimizer.residual(model, Bernoulli(), [(x, y)]) < 1e-9


@pytest.mark.parametrize("fisher", ["sampled", "expected"])
def test_the_mean_of_the_velocity_solves_the_damped_equation(monkeypatch, logistic, fisher):
    """From v* = ((1-δt)F + (δt/γ)C⁻¹)⁻¹g, one step averages to v* over all x, y and ỹ (B = 1)."""
    model, x, y, g, F = logistic
    dt, gamma = 0.1, 0.3
    fixed = torch.linalg.solve(0.9 * F + dt / gamma * torch.linalg.inv(A), g)
    likelihood = Bernoulli(fisher=fisher)
    start = model.theta.detach().clone()
    mean, spread = torch.zeros(3), 0.0
    for i in range(7):
        for y_tilde in (0.0, 1.0):
            p = torch.sigmoid(model(x[i : i + 1])).item()
            monkeypatch.setattr(likelihood, "sample", lambda z, y=y_tilde: torch.full_like(z, y))
            optimizer = TANGO(model.parameters(), lr=dt, gamma=gamma, preconditioner=Dense(A))
            optimizer.state[model.theta]["velocity"] = fixed.clone()
            with optimizer.tangents(model):
                loss = likelihood(model(x[i : i + 1]), y[i : i + 1])
            loss.backward()
            optimizer.step()
            v = optimizer.state[model.theta]["velocity"]
            mean += (p if y_tilde else 1 - p) / 7 * v
            spread = max(spread, (v - fixed).abs().max().item())
            optimizer.zero_grad()
            with torch.no_grad():
                model.theta.copy_(start)
    torch.testing.assert_close(mean, fixed, rtol=1e-12, atol=1e-13)
    assert spread > 1e-2


def test_second_moment_bound(logistic):
    """E‖v‖² ≤ 4σ²/λ² with γ = 1/R², σ² = E‖g‖², λ the least eigenvalue of (1-δt)F + (δt/γ)I."""
    model, x, y, _, F = logistic
    dt = 0.05
    gamma = 1 / x.square().sum(1).max().item()  # ‖g̃‖ ≤ ‖x‖ for logistic regression
    lam = torch.linalg.eigvalsh((1 - dt) * F + dt / gamma * torch.eye(3))[0].item()
    scores = torch.sigmoid(model(x)).detach() - y
    sigma2 = (scores.square() * x.square().sum(1)).mean().item()
    likelihood = Bernoulli(fisher="sampled", generator=torch.Generator().manual_seed(0))
    optimizer = TANGO(model.parameters(), lr=dt, gamma=gamma, preconditioner=None)
    start = model.theta.detach().clone()
    order = torch.randint(7, (1500,), generator=torch.Generator().manual_seed(1))
    squares = []
    for i in order.tolist():
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x[i : i + 1]), y[i : i + 1])
        loss.backward()
        optimizer.step()
        squares.append(optimizer.state[model.theta]["velocity"].square().sum().item())
        with torch.no_grad():
            model.theta.copy_(start)
    mean = torch.tensor(squares).mean().item()
    assert 0.01 * 4 * sigma2 / lam**2 < mean < 4 * sigma2 / lam**2


class Spread(nn.Module):
    """N(μ, σ²) with no inputs, in coordinates η with (μ, ln σ) = φ(η)."""

    def __init__(self, phi, eta):
        super().__init__()
        self.phi, self.eta = phi, nn.Parameter(eta.clone())

    def forward(self, n):
        return self.phi(self.eta).expand(n, 2)


def plain(eta):
    return eta


def curved(eta):
    """A non-linear change of variable with a non-diagonal Jacobian."""
    a, b = eta
    return torch.stack([a.sinh() + 0.5 * b, b + 0.3 * b**3 - 0.4 * a.tanh()])


ETA = torch.tensor([0.2, 0.1], dtype=torch.float64)
TARGETS = torch.tensor([[1.0], [2.5], [0.5], [2.0]], dtype=torch.float64)


def path_end(phi, eta, make, dt):
    """(μ, ln σ) at time 1, on the whole data set."""
    model, likelihood = Spread(phi, eta), MeanScaleGaussian()
    optimizer = make(model.parameters(), dt)
    for _ in range(round(1 / dt)):
        optimizer.zero_grad()
        if isinstance(optimizer, TANGO):
            loss = optimizer.evaluate(model, lambda: likelihood(model(4), TARGETS))
        else:
            loss = likelihood(model(4), TARGETS)
        loss.backward()
        optimizer.step()
    return model(1)[0].detach()


def test_reparametrised_models_follow_the_same_path_as_dt_falls():
    start = curved(ETA)

    def gap(make, dt):
        return (path_end(plain, start, make, dt) - path_end(curved, ETA, make, dt)).norm().item()

    def tango(params, dt):
        return TANGO(params, lr=dt, gamma=0.2, preconditioner=None)

    def sgd(params, dt):
        return torch.optim.SGD(params, lr=dt)

    coarse, fine = gap(tango, 1e-2), gap(tango, 1e-3)
    assert fine < coarse / 5  # O(δt), noise-free
    assert fine < 5e-3
    assert gap(sgd, 1e-3) > 0.1


def test_the_path_is_the_natural_gradient_flow():
    model = Spread(curved, ETA)
    flow = natural_gradient_flow(
        MeanScaleGaussian(), lambda: model(4), TARGETS, model.parameters(), [1.0]
    )[-1]
    errors = [
        (
            path_end(curved, ETA, lambda p, dt: TANGO(p, lr=dt, gamma=0.2, preconditioner=None), dt)
            - curved(flow)
        ).norm()
        for dt in (1e-2, 1e-3)
    ]
    assert errors[1] < errors[0] / 5
    assert errors[1] < 5e-3
    assert flatten(list(model.parameters())).equal(ETA)  # the flow put them back


@pytest.mark.parametrize("kind", ["spread", "network"])
def test_default_arguments_follow_the_natural_gradient_flow_as_dt_falls(kind):
    """γ, C and the guard are those of the defaults, learned while θ moves."""
    if kind == "spread":
        model, likelihood, x, y = Spread(curved, ETA), MeanScaleGaussian(), 4, TARGETS
    else:
        model, likelihood = nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)), Poisson()
        x = torch.linspace(-2, 2, 20)[:, None]
        y = torch.round(3 + 2 * torch.sin(x))
        with torch.no_grad():
            for p, value in zip(model.parameters(), (1.0, 0.2, 0.5, 0.5), strict=True):
                p.fill_(value)
    start = [p.detach().clone() for p in model.parameters()]
    flow = natural_gradient_flow(
        likelihood, lambda: model(x), y, model.parameters(), [1.0], tolerance=1e-6
    )[-1]
    errors = []
    for dt in (0.02, 0.00125):
        with torch.no_grad():
            for p, value in zip(model.parameters(), start, strict=True):
                p.copy_(value)
        optimizer = TANGO(model.parameters(), lr=dt)
        for _ in range(round(1 / dt)):
            optimizer.zero_grad()
            loss = optimizer.evaluate(model, lambda: likelihood(model(x), y))
            loss.backward()
            optimizer.step()
        errors.append((flatten(list(model.parameters())).detach() - flow).norm().item())
    distance = (flow - flatten(start)).norm().item()
    assert errors[1] < errors[0] / 5
    assert errors[1] < 0.01 * distance
