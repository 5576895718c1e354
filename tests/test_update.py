"""Definition 1, and the algorithms that the paper says TANGO equals."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from tangograd import TANGO, Categorical, Gaussian
from tangograd.curvature.planning import Plan
from tangograd.optimizer import tango_update
from tangograd.preconditioners import Dense, Diagonal
from tangograd.reference import AveragedSGD
from tangograd.vectors import flatten

from .cases import mlp, problem


def varying_rates(steps):
    """Rates δt_k that change in every step, so that a wrong index shows."""
    k = np.arange(steps)
    return 0.05 + 0.4 * np.abs(np.sin(k)) / (1 + k / 50)


def steps(optimizer, model, likelihood, batches, rates):
    """Run TANGO; yields after each step."""
    for (x, y), rate in zip(batches, rates, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()
        yield


class NumpyTango:
    """Definition 1 of the paper, transcribed: a tanh network with softmax outputs, B = 1."""

    def __init__(self, weights, gamma):
        self.theta = [w.copy() for w in weights]
        self.v = [np.zeros_like(w) for w in weights]
        self.gamma, self.dt_previous = gamma, 0.0

    def forward(self, x):
        W1, b1, W2, b2 = self.theta
        h = np.tanh(W1 @ x + b1)
        return h, W2 @ h + b2

    def gradient(self, x, y):
        """∂ℓ(y|x)/∂θ."""
        h, z = self.forward(x)
        p = np.exp(z - z.max())
        p /= p.sum()
        s = p - np.eye(len(p))[y]
        dh = (self.theta[2].T @ s) * (1 - h**2)
        return [np.outer(dh, x), dh, np.outer(s, h), s]

    def step(self, x, y, y_tilde, dt):
        g, g_tilde = self.gradient(x, y), self.gradient(x, y_tilde)
        keep = 1 - self.dt_previous
        v_dot_g = sum((v * gt).sum() for v, gt in zip(self.v, g_tilde, strict=True))
        self.v = [
            keep * v + self.gamma * gk - self.gamma * keep * v_dot_g * gt
            for v, gk, gt in zip(self.v, g, g_tilde, strict=True)
        ]
        self.theta = [theta - dt * v for theta, v in zip(self.theta, self.v, strict=True)]
        self.dt_previous = dt


def test_definition_1_against_numpy():
    model = mlp()
    likelihood = Categorical(fisher="sampled", generator=torch.Generator().manual_seed(3))
    same_draws = deepcopy(likelihood)
    paper = NumpyTango([p.detach().numpy() for p in model.parameters()], gamma=0.05)
    optimizer = TANGO(model.parameters(), gamma=0.05, preconditioner=None)
    data = [(torch.randn(1, 3), torch.randint(4, (1,))) for _ in range(200)]
    rates = varying_rates(200)
    for k, _ in enumerate(steps(optimizer, model, likelihood, data, rates)):
        x, y = data[k]
        z = torch.from_numpy(paper.forward(x[0].numpy())[1]).unsqueeze(0)
        y_tilde = same_draws.sample(z)
        paper.step(x[0].numpy(), int(y), int(y_tilde), rates[k])
        for p, theta, v in zip(model.parameters(), paper.theta, paper.v, strict=True):
            assert np.abs(p.detach().numpy() - theta).max() < 1e-12
            assert np.abs(optimizer.state[p]["velocity"].numpy() - v).max() < 1e-12
    assert max(np.abs(v).max() for v in paper.v) > 1e-2  # there was something to compare


def test_update_changes_only_theta_and_v():
    theta, v, bracket = [torch.ones(2)], [torch.full((2,), 2.0)], [torch.full((2,), 3.0)]
    tango_update(theta, v, bracket, Plan(gamma=0.5, keep=0.75, move=0.1))
    torch.testing.assert_close(v[0], torch.full((2,), 0.75 * 2 + 0.5 * 3))
    torch.testing.assert_close(theta[0], 1 - 0.1 * v[0])
    assert bracket[0].eq(3).all()


@pytest.mark.parametrize("fisher", ["expected", "sampled", "minibatch", "empirical"])
def test_full_rate_is_sgd(fisher):
    model, x, y, likelihood = problem("mlp", "categorical", fisher=fisher)
    twin = deepcopy(model)
    optimizer = TANGO(model.parameters(), lr=1.0, gamma=0.3, preconditioner=None)
    sgd = torch.optim.SGD(twin.parameters(), lr=0.3)
    for _ in steps(optimizer, model, likelihood, [(x, y)] * 30, [1.0] * 30):
        sgd.zero_grad()
        likelihood(twin(x), y).backward()
        sgd.step()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


class Linear(nn.Module):
    def __init__(self, theta):
        super().__init__()
        self.theta = nn.Parameter(theta.clone())

    def forward(self, x):
        return x @ self.theta


def test_quadratic_losses_are_averaged_sgd_with_the_given_noise():
    theta0, gamma = torch.randn(3), 0.1
    model = Linear(theta0)
    likelihood = Gaussian(fisher="sampled", generator=torch.Generator().manual_seed(1))
    same_draws = deepcopy(likelihood)
    optimizer = TANGO(model.parameters(), gamma=gamma, preconditioner=None)
    fast = theta0.clone().requires_grad_()
    averaged = AveragedSGD([fast], gamma=gamma)
    data = [(torch.randn(1, 3), torch.randn(1)) for _ in range(100)]
    rates = varying_rates(100)
    theta, v, dt_previous = theta0.clone(), torch.zeros(3), 0.0
    for k, _ in enumerate(steps(optimizer, model, likelihood, data, rates)):
        x, y = data[k]
        z = x @ theta
        g_tilde = x[0] * (z - same_draws.sample(z))
        H = torch.outer(x[0], x[0])
        xi = (1 - dt_previous) * (torch.outer(g_tilde, g_tilde) - H) @ v
        averaged.param_groups[0]["lr"] = rates[k]
        fast.grad = (x[0] * (x @ fast - y)).detach() - xi  # θfast -= γ (g - ξ)
        averaged.step()
        v = optimizer.state[model.theta]["velocity"].clone()
        torch.testing.assert_close(v, theta - fast.detach(), rtol=0, atol=1e-12)
        theta = model.theta.detach().clone()
        torch.testing.assert_close(theta, averaged.state[fast]["average"], rtol=0, atol=1e-12)
        dt_previous = rates[k]
    assert v.norm() > 0.1


def test_the_noise_is_centred():
    """E ξ = 0 over ỹ: Gauss-Hermite quadrature is exact for squares."""
    likelihood = Gaussian(0.7, fisher="sampled")
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    x, v, z = torch.randn(3), torch.randn(3), torch.randn(1)
    mean = torch.zeros(3)
    for node, weight in zip(nodes, weights / weights.sum(), strict=True):
        g_tilde = x * likelihood.score(z, z + 0.7**0.5 * node)
        mean += weight * (torch.outer(g_tilde, g_tilde) - torch.outer(x, x) / 0.7) @ v
    assert mean.abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["diagonal", "dense"])
@pytest.mark.parametrize("fisher", ["expected", "sampled"])
def test_preconditioning_is_a_change_of_variable(kind, fisher):
    """TANGO with C on θ is plain TANGO on φ = C^{-1/2} θ."""
    d, classes = 4, 3
    A = torch.randn(d * classes, d * classes)
    C = A @ A.T / 12 + 0.5 * torch.eye(12)
    if kind == "diagonal":
        C = torch.diag(C.diagonal())
    values, vectors = torch.linalg.eigh(C)
    root = vectors @ torch.diag(values.sqrt()) @ vectors.T
    theta0 = torch.randn(12)

    class Softmax(nn.Module):
        def __init__(self, root, start):
            super().__init__()
            self.root, self.phi = root, nn.Parameter(start)

        def theta(self):
            return self.root @ self.phi

        def forward(self, x):
            return x @ self.theta().reshape(d, classes)

    plain = Softmax(root, torch.linalg.solve(root, theta0))
    preconditioned = Softmax(torch.eye(12), theta0.clone())
    preconditioner = Diagonal([C.diagonal()]) if kind == "diagonal" else Dense(C)
    optimizers = [
        TANGO(plain.parameters(), gamma=0.2, preconditioner=None),
        TANGO(preconditioned.parameters(), gamma=0.2, preconditioner=preconditioner),
    ]
    data = [(torch.randn(2, d), torch.randint(classes, (2,))) for _ in range(60)]
    runs = [
        steps(
            optimizer,
            model,
            Categorical(fisher=fisher, generator=torch.Generator().manual_seed(5)),
            data,
            varying_rates(60),
        )
        for optimizer, model in zip(optimizers, (plain, preconditioned), strict=True)
    ]
    for _ in zip(*runs, strict=True):
        torch.testing.assert_close(plain.theta(), preconditioned.theta(), rtol=0, atol=1e-12)
    assert (preconditioned.theta() - theta0).norm() > 0.1


def test_accelerated_is_nesterov_on_a_quadratic():
    x, y = torch.randn(6, 3), torch.randn(6)
    theta0, gamma = torch.randn(3), 0.1
    model = Linear(theta0)
    optimizer = TANGO(model.parameters(), gamma=gamma, accelerated=True, preconditioner=None)
    rates = varying_rates(80)

    def gradient(theta):
        return x.T @ (x @ theta - y) / 6

    theta, v, mu = theta0.clone(), torch.zeros(3), 1.0
    for k, _ in enumerate(steps(optimizer, model, Gaussian(), [(x, y)] * 80, rates)):
        v = mu * v + gamma * gradient(theta - mu * v)
        theta = theta - v
        torch.testing.assert_close(model.theta.detach(), theta, rtol=0, atol=1e-12)
        mu = 1 - rates[k]


def test_weight_decay_is_a_gaussian_prior():
    """TANGO with λ equals TANGO on the data and one more observation, θ ~ N(0, 1/λ)."""
    decay, x, y = 0.3, torch.randn(5, 3), torch.randn(5)
    theta0 = torch.randn(3)
    model = Linear(theta0)
    optimizer = TANGO(model.parameters(), gamma=0.1, weight_decay=decay, preconditioner=None)
    data, prior = Gaussian(), Gaussian(1 / decay, event_dims=1)
    twin = Linear(theta0)
    explicit = TANGO(twin.parameters(), gamma=0.1, preconditioner=None)
    for k, _ in enumerate(steps(optimizer, model, data, [(x, y)] * 40, varying_rates(40))):
        explicit.param_groups[0]["lr"] = varying_rates(40)[k]
        explicit.zero_grad()
        loss = explicit.evaluate(
            twin, lambda: data(twin(x), y) + prior(twin.theta[None], torch.zeros(1, 3))
        )
        loss.backward()
        explicit.step()
        torch.testing.assert_close(model.theta, twin.theta, rtol=0, atol=1e-12)
        mine, theirs = optimizer.diagnostics(), explicit.diagnostics()
        if k > 0:
            assert mine["fisher_quotient"] == pytest.approx(theirs["fisher_quotient"], rel=1e-12)
    assert flatten([model.theta - theta0]).norm() > 0.1


@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize(("gamma", "dt_previous"), [(0.5, 0.25), (1e-7, 0.1), (1e-12, 0.1), (3, 1)])
def test_single_precision_takes_the_same_update(gamma, dt_previous, accelerated):
    """And autograd must know of the change."""
    torch.manual_seed(0)
    single = [[torch.randn(n).float() for n in (70, 3, 0)] for _ in range(3)]
    single[2] = [x / gamma for x in single[2]]
    double = [[x.double() for x in vector] for vector in single]
    bracket = [x.clone() for x in single[2]]
    versions = [[x._version for x in vector] for vector in single]
    for vectors in (single, double):
        tango_update(*vectors, Plan(gamma, keep=1 - dt_previous, move=1.0 if accelerated else 0.1))
    for ours, exact in zip(single[:2], double[:2], strict=True):
        for a, b in zip(ours, exact, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-6, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(single[2], bracket, strict=True))
    now = [[x._version for x in vector] for vector in single]
    assert all(a > b for k in (0, 1) for a, b in zip(now[k], versions[k], strict=True))
