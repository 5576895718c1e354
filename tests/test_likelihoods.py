"""Each family against its definition: density, score, Fisher information, samples."""

import math
from copy import deepcopy

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from torch import nn

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
from tangograd.likelihoods import Likelihood

from .cases import LIKELIHOODS, OUTPUTS, problem, student


def normal_nodes(mean, sd):
    """Nodes and weights exact for polynomials under N(mean, sd²)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    return mean + sd * nodes, weights / weights.sum()


def gamma_nodes(k, mean):
    nodes, weights = scipy.special.roots_genlaguerre(40, k - 1)
    return nodes * mean / k, weights / weights.sum()


# name: likelihood, outputs of one sample, nodes y and their probabilities (not from tangograd).
FAMILIES = {
    "categorical": (
        Categorical(),
        torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64),
        lambda z: (np.arange(3), scipy.special.softmax(z)),
    ),
    "bernoulli": (
        Bernoulli(),
        torch.tensor([0.7], dtype=torch.float64),
        lambda z: (np.array([[0.0], [1.0]]), scipy.stats.bernoulli.pmf([0, 1], 1 / (1 + math.exp(-z[0])))),
    ),
    "gaussian": (
        Gaussian(0.7),
        torch.tensor([1.3], dtype=torch.float64),
        lambda z: tuple(a.reshape(-1, *s) for a, s in zip(normal_nodes(z[0], 0.7**0.5), ((1,), ()), strict=True)),
    ),
    "mean-scale": (
        MeanScaleGaussian(),
        torch.tensor([1.3, -0.4], dtype=torch.float64),
        lambda z: tuple(a.reshape(-1, *s) for a, s in zip(normal_nodes(z[0], math.exp(z[1])), ((1,), ()), strict=True)),
    ),
    "poisson": (
        Poisson(),
        torch.tensor([1.1], dtype=torch.float64),
        lambda z: (np.arange(80.0)[:, None], scipy.stats.poisson.pmf(np.arange(80), math.exp(z[0]))),
    ),
    "negative-binomial": (
        NegativeBinomial(0.5),
        torch.tensor([0.6], dtype=torch.float64),
        lambda z: (
            np.arange(400.0)[:, None],
            scipy.stats.nbinom.pmf(np.arange(400), 2.0, 1 / (1 + 0.5 * math.exp(z[0]))),
        ),
    ),
    "gamma": (
        Gamma(2.5),
        torch.tensor([-0.3], dtype=torch.float64),
        lambda z: tuple(a.reshape(-1, *s) for a, s in zip(gamma_nodes(2.5, math.exp(z[0])), ((1,), ()), strict=True)),
    ),
}  # fmt: skip


@pytest.fixture(params=FAMILIES)
def family(request):
    likelihood, z, nodes = FAMILIES[request.param]
    y, p = nodes(z.numpy())
    return likelihood, z, torch.from_numpy(y), torch.from_numpy(p)


def test_nodes_are_a_probability(family):
    _, _, _, p = family
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)


def test_the_score_is_the_derivative_and_has_mean_zero(family):
    likelihood, z, y, p = family
    zs = z.expand(len(y), -1).clone().requires_grad_()
    (by_autograd,) = torch.autograd.grad(likelihood.log_loss(zs, y).sum(), zs)
    s = likelihood.score(zs.detach(), y)
    torch.testing.assert_close(s, by_autograd, rtol=1e-11, atol=1e-11)
    assert (p @ s).abs().max() < 1e-10


def test_fisher_product_is_the_second_moment_of_the_score(family):
    likelihood, z, y, p = family
    s = likelihood.score(z.expand(len(y), -1), y)
    H = s.T @ (p[:, None] * s)
    products = likelihood.fisher_product(z.expand(len(z), -1), torch.eye(len(z)))
    torch.testing.assert_close(products, H, rtol=1e-10, atol=1e-10)


def test_fisher_is_the_second_order_of_the_kl(family):
    """KL(p_z ‖ p_{z+εt}) = ½ ε² tᵀHt + O(ε³); the odd orders cancel in ±ε."""
    likelihood, z, y, p = family
    t, eps = torch.randn_like(z), 1e-3

    def kl(shift):
        moved = likelihood.log_loss((z + shift).expand(len(y), -1), y)
        return p @ (moved - likelihood.log_loss(z.expand(len(y), -1), y))

    quadratic = t @ likelihood.fisher_product(z[None], t[None])[0]
    assert float((kl(eps * t) + kl(-eps * t)) / eps**2) == pytest.approx(float(quadratic), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "log_density"),
    [
        ("categorical", lambda y, z: np.log(scipy.special.softmax(z))[y]),
        ("bernoulli", lambda y, z: scipy.stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-z)))),
        ("gaussian", lambda y, z: scipy.stats.norm.logpdf(y, z, 0.7**0.5)),
        ("mean-scale", lambda y, z: scipy.stats.norm.logpdf(y, z[:1], np.exp(z[1:]))),
        ("poisson", lambda y, z: scipy.stats.poisson.logpmf(y, np.exp(z))),
        ("negative-binomial", lambda y, z: scipy.stats.nbinom.logpmf(y, 2, 1 / (1 + 0.5 * np.exp(z)))),
        ("gamma", lambda y, z: scipy.stats.gamma.logpdf(y, 2.5, scale=np.exp(z) / 2.5)),
    ],
)  # fmt: skip
def test_log_loss_is_the_full_log_density(name, log_density):
    likelihood, z, nodes = FAMILIES[name]
    y, _ = nodes(z.numpy())
    y = y[:12]
    expected = -np.squeeze(log_density(y, z.numpy()))
    got = likelihood.log_loss(z.expand(len(y), -1), torch.from_numpy(y))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_samples_have_the_familys_moments(family):
    """Mean and variance of 20000 draws, within 5 standard errors."""
    likelihood, z, y, p = family
    likelihood = deepcopy(likelihood)
    likelihood.generator.manual_seed(0)
    draws = likelihood.sample(z.expand(20000, -1)).double().reshape(-1)
    values = y.double().reshape(-1)
    mean = p @ values
    variance = p @ (values - mean) ** 2
    fourth = p @ (values - mean) ** 4
    assert abs(draws.mean() - mean) < 5 * (variance / 20000).sqrt()
    assert (
        abs((draws - mean).square().mean() - variance) < 5 * ((fourth - variance**2) / 20000).sqrt()
    )


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_plain_loss_has_plain_gradients(name):
    model, x, y, likelihood = problem("mlp", name)
    z = model(x).detach().requires_grad_()
    w = torch.rand(5)
    likelihood(z, y, w).backward()
    s = likelihood.score(z.detach(), y)
    torch.testing.assert_close(z.grad, (w / w.sum())[:, None] * s, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_leading_dimensions_are_samples(name):
    _, _, _, likelihood = problem("mlp", name)
    z = torch.randn(2, 3, OUTPUTS)
    y = likelihood.sample(z)
    flat = likelihood(z.reshape(6, OUTPUTS), y.reshape(6, *y.shape[2:]))
    assert likelihood(z, y).item() == pytest.approx(flat.item(), rel=1e-14)
    assert likelihood.log_loss(z, y).shape == (2, 3)
    assert likelihood.log_loss(z, y).mean().item() == pytest.approx(flat.item(), rel=1e-13)


def test_event_dims():
    z, y = torch.randn(4, 3, 2), torch.randn(4, 3, 2)
    element = Gaussian().log_loss(z.reshape(-1), y.reshape(-1)).reshape(4, 3, 2)
    for dims, expected in [
        (0, element.mean()),
        (None, element.sum(-1).mean()),
        (1, element.sum(-1).mean()),
        (2, element.sum((-1, -2)).mean()),
    ]:
        assert Gaussian(event_dims=dims)(z, y).item() == pytest.approx(expected.item(), rel=1e-13)


def test_ignored_targets_do_not_count():
    z, y = torch.randn(4, 3), torch.tensor([0, -100, 2, -100])
    likelihood = Categorical()
    assert likelihood(z, y).item() == pytest.approx(likelihood(z[::2], y[::2]).item(), rel=1e-14)
    assert Categorical(ignore_index=7)(z, torch.tensor([0, 7, 2, 7])) == likelihood(z, y)


def test_samples_of_weight_zero_may_have_any_target():
    z = torch.randn(3, requires_grad=True)
    Gaussian()(z, torch.tensor([1.0, math.nan, 2.0]), torch.tensor([1.0, 0.0, 1.0])).backward()
    assert z.grad.isfinite().all()
    assert z.grad[1] == 0


def test_seeded_draws_repeat_and_are_saved_with_the_module():
    z = torch.randn(50, 3)
    a = Categorical(generator=torch.Generator().manual_seed(1))
    b = Categorical(generator=torch.Generator().manual_seed(1))
    assert a.sample(z).equal(b.sample(z))
    saved = a.state_dict()
    later = a.sample(z)
    b.sample(z)
    b.load_state_dict(saved)
    assert b.sample(z).equal(later)
    torch.manual_seed(4)
    first = Categorical()
    torch.manual_seed(4)
    assert first.sample(z).equal(Categorical().sample(z))


def test_distribution_draws_leave_the_global_generator_alone():
    likelihood = FromDistribution(student)
    state = torch.get_rng_state()
    likelihood.sample(torch.zeros(3, OUTPUTS))
    assert torch.get_rng_state().equal(state)


class TestTrackedVariance:
    def step(self, model, optimizer, likelihood, parts):
        optimizer.zero_grad()
        for x, y in parts:
            with optimizer.tangents(model):
                loss = likelihood(model(x), y)
            loss.backward()
        optimizer.step()

    def test_follows_the_mean_square_error(self):
        model = nn.Linear(3, 2)
        likelihood = Gaussian("tracked")
        optimizer = TANGO(model.parameters(), lr=0.0, gamma=0.1, preconditioner=None)
        errors = []
        for _ in range(3):
            x, y = torch.randn(8, 3), torch.randn(8, 2)
            errors.append((model(x) - y).square().mean().item())
            self.step(model, optimizer, likelihood, [(x, y)])
        assert likelihood.variance.item() == pytest.approx(np.mean(errors), rel=1e-12)

    def test_is_constant_within_a_step(self):
        model = nn.Linear(3, 2)
        likelihood = Gaussian("tracked")
        optimizer = TANGO(model.parameters(), lr=0.0, gamma=0.1, preconditioner=None)
        batches = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(2)]
        self.step(model, optimizer, likelihood, batches)
        errors = [(model(x) - y).square().mean().item() for x, y in batches]
        assert likelihood.variance.item() == pytest.approx(np.mean(errors), rel=1e-12)

    def test_is_not_moved_by_evaluation(self):
        likelihood = Gaussian("tracked")
        likelihood(torch.zeros(3), torch.ones(3))
        assert likelihood.variance == 1

    def test_is_saved(self):
        likelihood = Gaussian("tracked")
        likelihood.variance.fill_(3.0)
        other = Gaussian("tracked")
        other.load_state_dict(likelihood.state_dict())
        assert other.variance == 3


BAD_TARGETS = [
    (Categorical(), torch.zeros(3, 4), torch.tensor([0, 4, 1]), r"0 to 3; got 4 at position \(1,\)"),
    (Categorical(), torch.zeros(3, 4), torch.tensor([0, 1, -1]), r"got -1 at position \(2,\)"),
    (Categorical(), torch.zeros(3, 4), torch.tensor([0.0, 1.0, 2.0]), "integer class indices"),
    (Bernoulli(), torch.zeros(2, 2), torch.tensor([[0.0, 1.0], [1.5, 0.0]]), r"between 0 and 1; got 1.5 at position \(1, 0\)"),
    (Bernoulli(), torch.zeros(2), torch.tensor([0.0, math.nan]), r"got nan at position \(1,\)"),
    (Gaussian(), torch.zeros(2), torch.tensor([0.0, math.inf]), r"finite numbers; got inf at position \(1,\)"),
    (MeanScaleGaussian(), torch.zeros(2, 2), torch.tensor([[math.nan], [0.0]]), r"got nan at position \(0, 0\)"),
    (Poisson(), torch.zeros(2), torch.tensor([1.0, -2.0]), r"counts .* got -2.0 at position \(1,\)"),
    (Poisson(), torch.zeros(2), torch.tensor([1.0, 2.5]), r"got 2.5 at position \(1,\)"),
    (NegativeBinomial(1.0), torch.zeros(2), torch.tensor([-1, 2]), r"got -1.0 at position \(0,\)"),
    (Gamma(1.0), torch.zeros(2), torch.tensor([1.0, 0.0]), r"positive and finite; got 0.0 at position \(1,\)"),
    (FromDistribution(lambda z: torch.distributions.LogNormal(z, 1.0)), torch.zeros(2), torch.tensor([1.0, -1.0]), r"support.*got -1.0 at position \(1,\)"),
]  # fmt: skip


@pytest.mark.parametrize(("likelihood", "z", "y", "message"), BAD_TARGETS)
def test_targets_outside_the_domain(likelihood, z, y, message):
    with pytest.raises(ValueError, match=message):
        likelihood(z, y)


@pytest.mark.parametrize(
    ("likelihood", "z", "y", "w", "message"),
    [
        (Gaussian(), (3, 1), (3,), None, r"shape \(3, 1\).*no broadcasting.*got \(3,\)"),
        (Categorical(), (3, 4), (3, 1), None, r"targets of shape \(3,\).*classes last"),
        (MeanScaleGaussian(), (3, 3), (3, 1), None, "must be even"),
        (MeanScaleGaussian(), (3, 4), (3, 4), None, r"shape \(3, 2\)"),
        (Gaussian(), (3, 2), (3, 2), (3, 2), r"one value a sample, shape \(3,\)"),
    ],
)
def test_shapes_that_do_not_match(likelihood, z, y, w, message):
    targets = torch.zeros(y, dtype=torch.long if isinstance(likelihood, Categorical) else None)
    with pytest.raises(ValueError, match=message):
        likelihood(torch.zeros(z), targets, None if w is None else torch.ones(w))


@pytest.mark.parametrize("w", [[1.0, -1.0], [1.0, math.nan], [math.inf, 1.0]])
def test_bad_weights(w):
    with pytest.raises(ValueError, match="finite and not negative"):
        Gaussian()(torch.zeros(2), torch.zeros(2), torch.tensor(w))


def test_a_batch_in_which_nothing_counts():
    with pytest.raises(ValueError, match="no sample counts"):
        Categorical()(torch.zeros(2, 3), torch.tensor([-100, -100]))
    with pytest.raises(ValueError, match="no sample counts"):
        Gaussian()(torch.zeros(2), torch.zeros(2), torch.zeros(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(0.0), "positive"),
        (lambda: Gaussian("auto"), "tracked"),
        (lambda: Gamma(-1.0), "concentration must be positive"),
        (lambda: NegativeBinomial(0.0), "dispersion must be positive"),
        (lambda: Categorical(fisher="exact"), "one of expected, sampled"),
        (lambda: FromDistribution(student, fisher="expected"), "no closed form"),
        (lambda: Gaussian(event_dims=-1), "at least 0"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_printing_names_the_estimate():
    assert repr(Categorical(fisher="sampled")) == "Categorical(fisher='sampled')"
    assert issubclass(Categorical, Likelihood)


@pytest.mark.parametrize("outputs", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "targets", [torch.float64, torch.float32, torch.int64, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_types_of_outputs_and_targets_may_differ(name, outputs, targets):
    """Ones are in every family's domain."""
    likelihood = LIKELIHOODS[name](fisher="sampled")
    theta = torch.zeros(OUTPUTS, dtype=outputs, requires_grad=True)
    shape = {"categorical": (3,), "mean-scale": (3, OUTPUTS // 2)}.get(name, (3, OUTPUTS))
    y = torch.ones(shape, dtype=targets)
    optimizer = TANGO([theta], gamma=1e-3, preconditioner=None)
    if name == "categorical" and targets.is_floating_point:
        with pytest.raises(ValueError, match="integer class indices"):
            likelihood(theta.expand(3, -1), y)
        return
    with optimizer.tangents():
        loss = likelihood(theta.expand(3, -1), y)
    assert loss.dtype == (torch.float32 if outputs.itemsize == 2 else outputs)
    assert loss.item() == pytest.approx(likelihood(theta.expand(3, -1), y).item(), rel=1e-2)
    loss.backward()
    optimizer.step()


def test_small_integer_classes():
    z = torch.randn(3, 200)
    for dtype in (torch.uint8, torch.int16):
        y = torch.tensor([156, 5, 199], dtype=dtype)
        assert Categorical()(z, y) == Categorical()(z, y.long())


def test_negative_binomial_far_out():
    """Finite where μ overflows: the score tends to 1/α."""
    z = torch.tensor([100.0], dtype=torch.float32)
    likelihood = NegativeBinomial(0.5)
    assert likelihood.score(z, torch.ones(1)).item() == pytest.approx(2.0)
    assert likelihood.fisher_product(z, torch.ones(1)).item() == pytest.approx(2.0)


def test_a_distribution_that_swallows_the_samples():
    likelihood = FromDistribution(
        lambda z: torch.distributions.Independent(torch.distributions.Normal(z, 1.0), 2)
    )
    with pytest.raises(ValueError, match="one distribution a sample"):
        likelihood(torch.zeros(4, 2), torch.zeros(4, 2))


def test_a_multivariate_distribution():
    scale = torch.eye(2)
    likelihood = FromDistribution(
        lambda z: torch.distributions.MultivariateNormal(z, scale_tril=scale)
    )
    z, y = torch.randn(5, 2), torch.randn(5, 2)
    assert likelihood(z, y).item() == pytest.approx(Gaussian()(z, y).item())


class TestRefusedTrackedVariance:
    def test_a_refused_loss_changes_nothing(self):
        theta = torch.zeros(1, requires_grad=True)
        likelihood, optimizer = Gaussian("tracked"), TANGO([theta], gamma=0.1, preconditioner=None)
        with optimizer.tangents():
            loss = likelihood((theta / 0).expand(3, 1), torch.ones(3, 1))
        loss.backward()
        with pytest.raises(FloatingPointError, match="not finite"):
            optimizer.step()
        optimizer.zero_grad()
        assert likelihood.variance == 1
        with optimizer.tangents():
            likelihood(theta.expand(3, 1), torch.full((3, 1), 3.0))
        assert likelihood.variance == 9  # the first good batch sets it
