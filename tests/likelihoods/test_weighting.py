"""Class weights, label smoothing, soft targets, pos_weight, and separate Fisher weights."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian

from tangograd import TANGO, Bernoulli, Categorical, Gaussian
from tangograd.reference import fisher_matrix, natural_gradient
from tangograd.session import current
from tangograd.vectors import flatten

from ..cases import COMBINATIONS, dense_estimate, mlp, problem, sample_gradients, set_velocity
from ..test_estimates import all_samples

CLASS_WEIGHTS = torch.tensor([0.5, 2.0, 1.3, 0.1], dtype=torch.float64)
ONE_EMPTY = torch.tensor([0.5, 0.0, 1.3, 0.1], dtype=torch.float64)
INDICES = torch.tensor([0, 1, 3, -100, 1])
SOFT = torch.tensor(
    [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.1, 0.2, 0.3, 0.4], [0.25] * 4, [0, 0, 0.9, 0.1]],
    dtype=torch.float64,
)
BINARY = torch.tensor([[0, 1, 1, 0.3]] * 3 + [[1, 1, 0, 0]] * 2, dtype=torch.float64)


def cross_entropy(**options):
    return Categorical(**options), nn.CrossEntropyLoss(**options)


def binary(pos_weight):
    """The sum over the four outputs of a sample, where torch takes the mean."""
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.as_tensor(pos_weight, dtype=torch.float64))
    return Bernoulli(pos_weight), lambda z, y: 4 * loss(z, y)


CASES = {
    "class weights": (cross_entropy(weight=CLASS_WEIGHTS), INDICES),
    "a class of weight 0": (cross_entropy(weight=ONE_EMPTY), INDICES),
    "smoothing": (cross_entropy(label_smoothing=0.2), INDICES),
    "only smoothing": (cross_entropy(label_smoothing=1.0), INDICES),
    "both": (cross_entropy(weight=CLASS_WEIGHTS, label_smoothing=0.2), INDICES),
    "both, a class of weight 0": (cross_entropy(weight=ONE_EMPTY, label_smoothing=0.2), INDICES),
    "soft": (cross_entropy(), SOFT),
    "soft, class weights": (cross_entropy(weight=CLASS_WEIGHTS), SOFT),
    "soft, both": (cross_entropy(weight=ONE_EMPTY, label_smoothing=0.2), SOFT),
    "pos_weight": (binary(2.5), BINARY),
    "pos_weights": (binary(torch.tensor([2.5, 0.0, 1.0, 0.3])), BINARY),
}


@pytest.fixture(params=CASES)
def case(request):
    (likelihood, loss), y = CASES[request.param]
    return likelihood, loss, y


def gauss_newton(loss, model, x, y):
    """Gradient, and ``Jᵀ (∂²loss/∂z²) J``, from torch's loss alone."""
    parameters = list(model.parameters())
    z = model(x)
    g = flatten(torch.autograd.grad(loss(z, y), parameters, retain_graph=True))
    J = torch.stack(
        [
            flatten(torch.autograd.grad(element, parameters, retain_graph=True))
            for element in z.reshape(-1)
        ]
    )
    H = hessian(lambda z: loss(z, y), z.detach()).reshape(z.numel(), z.numel())
    return g, J.T @ H @ J


def test_the_mean_loss_is_torchs(case):
    likelihood, loss, y = case
    z = 3 * torch.randn(5, 4)
    assert likelihood(z, y).item() == pytest.approx(loss(z, y).item(), rel=1e-13)


def test_the_bracket_has_torchs_gradient_and_hessian_in_the_outputs(case):
    likelihood, loss, y = case
    model, x = mlp(), torch.randn(5, 3)
    parameters = list(model.parameters())
    optimizer = TANGO(parameters, gamma=0.1, preconditioner=None)
    v = set_velocity(optimizer, model)
    g, F = gauss_newton(loss, model, x, y)
    torch.testing.assert_close(
        fisher_matrix(likelihood, model(x), parameters, targets=y), F, rtol=1e-11, atol=1e-13
    )
    with optimizer.tangents(model):
        value = likelihood(model(x), y)
    value.backward()
    found = flatten([p.grad for p in parameters])
    torch.testing.assert_close(found, g - 0.7 * F @ v, rtol=1e-11, atol=1e-13)
    solution = natural_gradient(likelihood, model(x), y, parameters, damping=1e-2)
    expected = torch.linalg.solve(F + 1e-2 * torch.eye(len(F)), g)
    torch.testing.assert_close(flatten(solution), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("fisher", ["sampled", "minibatch"])
@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (Categorical(weight=CLASS_WEIGHTS, label_smoothing=0.2), INDICES[1:3]),
        (Categorical(weight=CLASS_WEIGHTS), SOFT[1:3]),
        (Bernoulli(2.5), BINARY[2:4]),
    ],
)
def test_sampled_estimates_average_to_the_fisher_matrix(monkeypatch, likelihood, y, fisher):
    monkeypatch.setattr(likelihood, "fisher", fisher)
    model, x = mlp(), torch.randn(2, 3)
    parameters = list(model.parameters())
    optimizer = TANGO(parameters, gamma=0.1, preconditioner=None)
    v = set_velocity(optimizer, model)
    g = flatten(torch.autograd.grad(likelihood(model(x), y), parameters))
    F = fisher_matrix(likelihood, model(x), parameters, targets=y)
    mean = torch.zeros_like(v)
    for drawn, probability in all_samples(likelihood, model(x).detach()):
        monkeypatch.setattr(likelihood, "sample", lambda z, drawn=drawn: drawn)
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        mean += probability * flatten([p.grad for p in parameters])
    torch.testing.assert_close(mean, g - 0.7 * F @ v, rtol=1e-11, atol=1e-12)


def test_class_weights_are_weights_of_the_samples():
    z, y = torch.randn(5, 4), torch.tensor([0, 1, 3, 2, 1])
    weighted = Categorical(weight=CLASS_WEIGHTS).batch(z, y)
    plain = Categorical().batch(z, y, CLASS_WEIGHTS[y])
    for name in ("y", "weights", "fisher_weights", "total_weight"):
        assert getattr(weighted, name).equal(getattr(plain, name))


def test_classes_last_in_any_number_of_dimensions():
    z, y = torch.randn(2, 3, 4), torch.randint(4, (2, 3))
    likelihood, loss = cross_entropy(weight=CLASS_WEIGHTS, label_smoothing=0.1)
    assert likelihood(z, y).item() == pytest.approx(loss(z.movedim(-1, 1), y).item(), rel=1e-13)
    q = torch.randn(2, 3, 4).softmax(-1)
    expected = loss(z.movedim(-1, 1), q.movedim(-1, 1)).item()
    assert likelihood(z, q).item() == pytest.approx(expected, rel=1e-13)


def test_forbidden_classes_of_probability_zero():
    z = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    loss = Categorical()(z, torch.tensor([[0.25, 0.75, 0.0]]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2))
    torch.testing.assert_close(z.grad, torch.tensor([[0.25, -0.25, 0.0]]))


def test_weights_move_and_are_saved_with_the_module():
    likelihood = Categorical(weight=CLASS_WEIGHTS).to(torch.float32)
    assert likelihood.weight.dtype == torch.float32
    other = Categorical(weight=torch.ones(4))
    other.load_state_dict(likelihood.state_dict())
    assert other.weight.equal(CLASS_WEIGHTS.float().double())
    assert Bernoulli(2.0).to("meta").pos_weight.device.type == "meta"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Categorical(weight=torch.tensor([1.0, -1.0])), "weight must be finite"),
        (lambda: Categorical(weight=torch.ones(2, 2)), "one number for each class"),
        (lambda: Categorical(label_smoothing=1.5), "from 0 to 1; got 1.5"),
        (lambda: Bernoulli(math.inf), "pos_weight must be finite"),
        (lambda: Bernoulli(torch.ones(3))(torch.zeros(2, 4), torch.zeros(2, 4)), "pos_weight"),
        (lambda: Bernoulli(torch.ones(5, 4))(torch.zeros(1, 4), torch.zeros(1, 4)), "broadcast"),
        (
            lambda: Categorical(weight=torch.ones(3))(torch.zeros(2, 4), torch.tensor([0, 1])),
            "weights of 3 classes; the outputs have 4",
        ),
        (lambda: Categorical()(torch.zeros(2, 3), torch.zeros(2, 2)), r"of shape \(2, 2\)"),
        (
            lambda: Categorical()(torch.zeros(2, 2), torch.tensor([[0.0, 1.0], [0.8, 0.8]])),
            r"probabilities.*got \[0.8, 0.8\] at position \(1,\)",
        ),
        (
            lambda: Categorical()(torch.zeros(2, 2), torch.tensor([[1.5, -0.5], [0.5, 0.5]])),
            r"probabilities.*got \[1.5, -0.5\] at position \(0,\)",
        ),
        (
            lambda: Categorical(weight=torch.tensor([1.0, 0.0]))(
                torch.zeros(2, 2), torch.tensor([1, 1])
            ),
            "no sample counts",
        ),
        (
            lambda: Categorical(weight=torch.tensor([1.0, 0.0]))(
                torch.zeros(2, 2), torch.tensor([0, 2])
            ),
            r"got 2 at position \(1,\)",
        ),
    ],
)
def test_bad_options_and_targets(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class TestFisherWeights:
    weights = torch.tensor([0.5, -2.0, 0.0, 1.0, 3.0], dtype=torch.float64)
    fisher_weights = torch.tensor([1.0, 2.0, 0.0, 0.0, 0.5], dtype=torch.float64)

    @pytest.mark.parametrize(("name", "fisher"), COMBINATIONS)
    def test_the_bracket(self, name, fisher):
        model, x, y, likelihood = problem("mlp", name, fisher=fisher)
        parameters = list(model.parameters())
        optimizer = TANGO(parameters, gamma=0.1, preconditioner=None)
        v = set_velocity(optimizer, model)
        w, w_fisher = self.weights, self.fisher_weights.clone()
        if fisher != "expected":
            w_fisher[3] = 0.25  # dense_estimate draws pseudo-samples as if w were w_fisher
        _, F = dense_estimate(likelihood, model(x), y, parameters, w_fisher)
        g = w @ sample_gradients(likelihood, model(x), y, parameters) / w_fisher.sum()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y, w, w_fisher)
        loss.backward()
        bracket = g - 0.7 * F @ v
        found = flatten([p.grad for p in parameters])
        assert (found - bracket).abs().max() < 1e-12 * max(1, bracket.abs().max())

    def test_they_are_the_weights_if_there_are_no_others(self):
        z, y = torch.randn(5, 4), torch.randint(4, (5,))
        w = self.fisher_weights
        assert Categorical()(z, y, w).item() == Categorical()(z, y, w, w).item()

    def test_without_weights_all_losses_count_alike(self):
        z, y = torch.randn(5), torch.randn(5)
        w = self.fisher_weights
        expected = Gaussian().log_loss(z, y).sum() / w.sum()
        assert Gaussian()(z, y, fisher_weights=w).item() == pytest.approx(expected.item())

    def test_natural_gradient(self):
        model, x, y, likelihood = problem("mlp", "categorical")
        parameters = list(model.parameters())
        w, w_fisher = self.weights, self.fisher_weights
        g = w @ sample_gradients(likelihood, model(x), y, parameters) / w_fisher.sum()
        F = fisher_matrix(likelihood, model(x), parameters, w_fisher)
        found = natural_gradient(
            likelihood, model(x), y, parameters, weights=w, fisher_weights=w_fisher, damping=1e-2
        )
        expected = torch.linalg.solve(F + 1e-2 * torch.eye(len(F)), g)
        torch.testing.assert_close(flatten(found), expected, rtol=1e-9, atol=1e-11)

    def test_the_number_of_samples_is_theirs(self):
        theta = torch.zeros(1, requires_grad=True)
        optimizer = TANGO([theta], gamma=0.1, preconditioner=None)
        with optimizer.tangents():
            Gaussian()(theta.expand(5), torch.ones(5), self.weights, self.fisher_weights)
            (term,) = current.get().terms
        w = self.fisher_weights
        assert term.effective_samples.item() == pytest.approx((w.sum() ** 2 / (w @ w)).item())
        assert term.total_weight.item() == w.sum()

    @pytest.mark.parametrize(
        ("w", "w_fisher", "message"),
        [
            ([1.0, -1.0], None, "weights of any sign need fisher_weights"),
            ([1.0, -1.0], [1.0, -1.0], "fisher_weights must be finite and not negative"),
            ([1.0, math.nan], [1.0, 1.0], "weights must be finite"),
            ([1.0, -1.0], [0.0, 0.0], "no sample counts"),
            ([1.0, -1.0], [1.0], r"fisher_weights need one value a sample, shape \(2,\)"),
        ],
    )
    def test_bad_values(self, w, w_fisher, message):
        w_fisher = None if w_fisher is None else torch.tensor(w_fisher)
        with pytest.raises(ValueError, match=message):
            Gaussian()(torch.zeros(2), torch.zeros(2), torch.tensor(w), w_fisher)


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (Categorical(weight=CLASS_WEIGHTS, label_smoothing=0.2), torch.tensor([0, 2])),
        (Bernoulli(torch.tensor([2.5, 0.5])), torch.tensor([[0.0, 1.0], [1.0, 0.3]])),
    ],
)
def test_the_midpoint_of_a_term_has_the_fisher_weights(monkeypatch, likelihood, y):
    K = 4 if isinstance(likelihood, Categorical) else 2
    theta = torch.randn(2, K, requires_grad=True)
    optimizer = TANGO([theta], gamma=0.1, preconditioner=None)
    with optimizer.tangents():
        likelihood(1 * theta, y, torch.tensor([1.0, 3.0]))
        (term,) = current.get().terms
    batch = likelihood.batch(theta.detach(), y, torch.tensor([1.0, 3.0]))
    m = torch.ones(2, K) if batch.element_weights is None else batch.element_weights
    H = torch.stack(
        [
            likelihood.midpoint_product(batch.z, batch.y, e.expand(2, K), prior=0.05)
            for e in torch.eye(K)
        ],
        -1,
    )
    H = batch.fisher_weights[:, None, None] * m.sqrt()[:, :, None] * H * m.sqrt()[:, None]
    found = torch.stack([term.midpoint_product(e.expand(2, K), 0.05) for e in torch.eye(K)], -1)
    torch.testing.assert_close(found, H)
    second = torch.zeros(2, K, K)
    if K == 4:
        q = likelihood._midpoint(batch.z, batch.y, 0.05)
        for c in product(range(K), repeat=2):
            monkeypatch.setattr(likelihood, "_draw", lambda p, c=c: torch.tensor(c))
            h = term.midpoint_sample(0.05)
            second += q[0, c[0]] * q[1, c[1]] * h[:, :, None] * h[:, None]
    else:
        for signs in product((-1.0, 1.0), repeat=4):
            signs = torch.tensor(signs).reshape(2, 2)
            monkeypatch.setattr(likelihood, "_signs", lambda like, signs=signs: signs)
            h = term.midpoint_sample(0.05)
            second += h[:, :, None] * h[:, None] / 16
    torch.testing.assert_close(second, H)
