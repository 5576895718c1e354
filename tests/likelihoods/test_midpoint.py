"""The midpoint Fisher information H⁺(z, y): its expectation, the bound it gives, and its samples."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from tangograd import (
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
from tangograd.likelihoods.elementwise import Elementwise


class PlainCategorical(Likelihood):
    """A family without a midpoint of its own; targets are class indices."""

    def log_loss(self, outputs, targets):
        return -outputs.log_softmax(-1).gather(-1, targets[..., None])[..., 0]

    def score(self, outputs, targets):
        return outputs.softmax(-1) - torch.eye(outputs.shape[-1])[targets]

    def sample(self, outputs):
        return torch.multinomial(outputs.softmax(-1), 1, generator=self.generator)[..., 0]

    def fisher_product(self, outputs, tangents):
        p = outputs.softmax(-1)
        return p * (tangents - (p * tangents).sum(-1, keepdim=True))

    def _target_shape(self, outputs):
        return tuple(outputs.shape[:-1])

    def _convert(self, outputs, targets):
        return targets

    def _outside_domain(self, outputs, targets):
        return (targets < 0) | (targets >= outputs.shape[-1]), "classes"


class Binomial(Elementwise):
    """Three trials with a logit; an elementwise family without a midpoint of its own."""

    domain = "0 to 3"

    def score(self, outputs, targets):
        return 3 * outputs.sigmoid() - targets

    def sample(self, outputs):
        trials = torch.rand((3, *outputs.shape), generator=self.generator, dtype=outputs.dtype)
        return (trials < outputs.sigmoid()).to(outputs.dtype).sum(0)

    def _element_loss(self, z, y):
        return 3 * torch.nn.functional.softplus(z) - y * z

    def _fisher_diagonal(self, z):
        return 3 * z.sigmoid() * (-z).sigmoid()

    def _inside(self, y):
        return (y >= 0) & (y <= 3)


def normal(mean, sd):
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    return mean + sd * nodes, weights / weights.sum()


def gamma(k, mean):
    nodes, weights = scipy.special.roots_genlaguerre(20, k - 1)
    return nodes * mean / k, weights / weights.sum()


def counts(distribution, n=400):
    return np.arange(float(n)), distribution.pmf(np.arange(n))


# The targets of one output element and their probabilities, computed without tangograd.
ELEMENTS = {
    "bernoulli": (Bernoulli, lambda z: (np.array([0.0, 1.0]), scipy.special.expit([-z, z]))),
    "gaussian": (lambda: Gaussian(0.7), lambda z: normal(z, 0.7**0.5)),
    "poisson": (Poisson, lambda z: counts(scipy.stats.poisson(math.exp(z)), 80)),
    "negative-binomial": (
        lambda: NegativeBinomial(0.5),
        lambda z: counts(scipy.stats.nbinom(2.0, 1 / (1 + 0.5 * math.exp(z)))),
    ),
    "gamma": (lambda: Gamma(2.5), lambda z: gamma(2.5, math.exp(z))),
    "binomial": (Binomial, lambda z: counts(scipy.stats.binom(3, scipy.special.expit(z)), 4)),
}


def categorical(z):
    return np.arange(len(z)), scipy.special.softmax(z)


def mean_scale(z):
    mu, log_sigma = np.split(np.asarray(z), 2)
    pairs = [normal(*pair) for pair in zip(mu, np.exp(log_sigma), strict=True)]
    return (
        np.array(list(product(*(y for y, _ in pairs)))),
        np.array([math.prod(p) for p in product(*(p for _, p in pairs))]),
    )


def elements(one):
    def nodes(z):
        pairs = [one(element) for element in z]
        return (
            np.array(list(product(*(y for y, _ in pairs)))),
            np.array([math.prod(p) for p in product(*(p for _, p in pairs))]),
        )

    return nodes


SCALARS = ([-3.0], [0.4], [2.0], [0.7, -1.2])
VECTORS = ([0.3, -1.0, 0.8], [6.0, 0.0, -4.0], [1.0, -1.0])
CASES = [
    *((make, elements(one), z) for make, one in ELEMENTS.values() for z in SCALARS),
    *((make, categorical, z) for make in (Categorical, PlainCategorical) for z in VECTORS),
    *((MeanScaleGaussian, mean_scale, z) for z in ([1.3, -0.4], [0.2, -5.0, 1.0, -2.0])),
]


def matrices(likelihood, z, y, **options):
    """H⁺ of each row, shape (B, K, K)."""
    columns = [
        likelihood.midpoint_product(z, y, e.expand_as(z), **options)
        for e in torch.eye(z.shape[1], dtype=z.dtype)
    ]
    return torch.stack(columns, -1)


@pytest.mark.parametrize(("make", "nodes", "z"), CASES)
def test_the_expectation_over_targets_is_the_fisher_information(make, nodes, z):
    likelihood = make()
    y, p = (torch.from_numpy(x) for x in nodes(z))
    z = torch.tensor(z)
    midpoint = matrices(likelihood, z.expand(len(y), -1), y)
    H = torch.stack([likelihood.fisher_product(z[None], e[None])[0] for e in torch.eye(len(z))])
    torch.testing.assert_close(torch.einsum("b,bij->ij", p, midpoint), H, rtol=1e-11, atol=1e-13)
    eigenvalues = torch.linalg.eigvalsh(midpoint)
    assert eigenvalues.min() > -1e-15 * eigenvalues.max()


def test_the_expectation_for_a_distribution_without_a_closed_form(monkeypatch):
    """H⁺ is then random; its expectation over y and ỹ is H."""
    likelihood = FromDistribution(lambda z: torch.distributions.Categorical(logits=z))
    z = torch.tensor([0.3, -1.0, 0.8])
    p, y = z.softmax(0), torch.arange(3)
    mean = torch.zeros(3, 3)
    for drawn in range(3):
        monkeypatch.setattr(likelihood, "sample", lambda z, c=drawn: torch.full((len(z),), c))
        mean += p[drawn] * torch.einsum("b,bij->ij", p, matrices(likelihood, z.expand(3, -1), y))
    torch.testing.assert_close(mean, p.diag() - torch.outer(p, p), rtol=1e-13, atol=1e-15)


GRID = torch.linspace(-30, 30, 61, dtype=torch.float64)
BOUNDS = [
    (Bernoulli(), (0.0, 1.0, 0.5), 3.0),
    (Poisson(), (0.0, 1.0, 7.0, 1e6), 2.0),
    (NegativeBinomial(0.5), (0.0, 1.0, 7.0, 1e6), 2.0),
    (NegativeBinomial(20.0), (0.0, 1.0, 7.0, 1e6), 2.0),
    (Gamma(2.5), (1e-6, 1.0, 1e6), 2.0),
]


@pytest.mark.parametrize("prior", [0.0, 1e-3])
@pytest.mark.parametrize(("likelihood", "targets", "bound"), BOUNDS)
def test_the_newton_step_of_a_sample_is_bounded(likelihood, targets, bound, prior):
    z = GRID.repeat(len(targets))[:, None]
    y = torch.tensor(targets).repeat_interleave(len(GRID))[:, None]
    information = likelihood.midpoint_product(z, y, torch.ones_like(z), prior=prior)
    steps = likelihood.score(z, y).abs() / information
    assert steps.max() <= bound * (1 + 1e-12)
    assert steps.max() > 0.7 * bound  # the bound is tight
    information = likelihood.fisher_product(z, torch.ones_like(z))
    assert (likelihood.score(z, y).abs() > 100 * information).any()  # H gives no such bound


def test_the_newton_step_of_a_class_is_bounded():
    """(H⁺)⁺ s changes no difference of logits by more than 3; it is 3/(1 + p_y) exactly."""
    z = torch.cartesian_prod(torch.tensor([0.0]), GRID[::4], GRID[::4])
    for y in range(3):
        target = torch.full((len(z),), y)
        p, e = z.softmax(-1), torch.eye(3)[y]
        step = 1.5 * (p - e) / (p + e)  # a solution x of H⁺ x = s, unique up to constants
        product = Categorical().midpoint_product(z, target, step)
        torch.testing.assert_close(product, Categorical().score(z, target), rtol=1e-12, atol=1e-15)
        moved = step.amax(-1) - step.amin(-1)
        torch.testing.assert_close(moved, 3 / (1 + p[:, y]))


def test_the_newton_step_of_a_class_by_pseudo_inverse():
    z = 3 * torch.randn(200, 4)
    y = torch.randint(4, (200,))
    H = matrices(Categorical(), z, y)
    step = (torch.linalg.pinv(H, rtol=1e-13) @ Categorical().score(z, y)[:, :, None])[..., 0]
    assert (step.amax(-1) - step.amin(-1)).max() <= 3 + 1e-6


def test_the_newton_step_of_mean_and_scale_is_bounded():
    z = torch.cartesian_prod(torch.tensor([0.3]), GRID / 6)
    for y in (-1e3, 0.0, 0.3, 50.0):
        target = torch.full((len(z), 1), y)
        H = MeanScaleGaussian().midpoint_product(z, target, torch.ones_like(z))
        step = MeanScaleGaussian().score(z, target) / H
        torch.testing.assert_close(step[:, 0], (0.3 - target)[:, 0])
        assert step[:, 1].abs().max() <= 1


@pytest.mark.parametrize("prior", [0.0, 0.05])
@pytest.mark.parametrize(("make", "nodes", "z"), CASES)
def test_samples_have_the_second_moment(monkeypatch, make, nodes, z, prior):
    """All outcomes are enumerated: signs, classes and pseudo-samples."""
    likelihood = make()
    y, p = (torch.from_numpy(x) for x in nodes(z))
    chosen = int(p.argmax())
    z, y = torch.tensor(z)[None], y[chosen : chosen + 1]
    H = matrices(likelihood, z, y, prior=prior)[0]
    K = z.shape[1]
    if isinstance(likelihood, Categorical):
        q = (z.softmax(-1)[0] + torch.eye(K)[y[0]]) / 2
        q = q + prior * (1 / K - q)
        outcomes = [(q[c], {"_draw": lambda p, c=c: torch.tensor([c])}) for c in range(K)]
    elif isinstance(likelihood, PlainCategorical):
        outcomes = [
            (
                z.softmax(-1)[0, c] / 2,
                {
                    "sample": lambda z, c=c: torch.tensor([c]),
                    "_signs": lambda like, sign=sign: torch.full_like(like, sign),
                },
            )
            for c in range(K)
            for sign in (-1.0, 1.0)
        ]
    else:
        outcomes = [
            (0.5**K, {"_signs": lambda like, signs=signs: torch.tensor([signs])})
            for signs in product((-1.0, 1.0), repeat=K)
        ]
    mean, second = torch.zeros(K), torch.zeros(K, K)
    for probability, patches in outcomes:
        for name, function in patches.items():
            monkeypatch.setattr(likelihood, name, function)
        b = likelihood.midpoint_sample(z, y, prior=prior)[0]
        mean += probability * b
        second += probability * torch.outer(b, b)
    torch.testing.assert_close(second, H, rtol=1e-12, atol=1e-15)
    assert mean.abs().max() < 1e-14 * max(1.0, b.abs().max())


@pytest.mark.parametrize(
    ("make", "nodes", "z"), [c for c in CASES if len(c[2]) > 1 and max(c[2]) < 5]
)
def test_samples_are_drawn_from_the_generator(make, nodes, z):
    """Mean and second moments of 20000 rows are within 5 standard errors."""
    n = 20000
    likelihood = make()
    likelihood.generator.manual_seed(0)
    y, p = (torch.from_numpy(x) for x in nodes(z))
    z, y = torch.tensor(z)[None], y[p.argmax()][None]
    b = likelihood.midpoint_sample(z.expand(n, -1), y.expand(n, *y.shape[1:]))
    outer = torch.einsum("bi,bj->bij", b, b)
    for found, expected in ((b, 0 * z[0]), (outer, matrices(likelihood, z, y)[0])):
        error = found.std(0) / n**0.5
        assert ((found.mean(0) - expected).abs() <= 5 * error + 1e-12 * expected.abs()).all()
    assert len(b.unique(dim=0)) > 1  # rows differ


EXTREME = [
    (Categorical(), torch.tensor([[200.0, -200.0, 0.0], [-200.0, 200.0, -math.inf]]), [1, 0]),
    (Bernoulli(), torch.tensor([[200.0, -200.0], [200.0, -200.0]]), [[0, 1], [1, 0]]),
    (Gaussian(), torch.tensor([[200.0], [-200.0]]), [[0], [1]]),
    (MeanScaleGaussian(), torch.tensor([[0.0, 200.0], [0.0, -200.0]]), [[0.0], [0.0]]),
    (MeanScaleGaussian(), torch.tensor([[3.0, 200.0], [3.0, -200.0]]), [[0.0], [0.0]]),
    (Poisson(), torch.tensor([[200.0], [-200.0]]), [[0], [4]]),
    (NegativeBinomial(0.5), torch.tensor([[200.0], [-200.0]]), [[0], [4]]),
    (Gamma(2.5), torch.tensor([[200.0], [-200.0]]), [[1.0], [4.0]]),
]


@pytest.mark.parametrize("prior", [0.0, 1e-3])
@pytest.mark.parametrize(("likelihood", "z", "y"), EXTREME)
def test_extreme_outputs_in_single_precision(likelihood, z, y, prior):
    z, y = z.float(), torch.tensor(y)
    tangents = torch.zeros_like(z)
    assert likelihood.midpoint_product(z, y, tangents, prior=prior).equal(tangents)
    assert likelihood.midpoint_sample(z, y, prior=prior).isfinite().all()
    H = likelihood.midpoint_product(z, y, torch.ones_like(z), prior=prior)
    assert not H.isnan().any()


def test_a_class_that_is_confidently_wrong_is_informative():
    z, y = torch.tensor([[200.0, 0.0]], dtype=torch.float32), torch.tensor([1])
    t = torch.tensor([[1.0, -1.0]], dtype=torch.float32)
    assert Categorical().fisher_product(z, t).abs().max() == 0
    torch.testing.assert_close(Categorical().midpoint_product(z, y, t), t * 2 / 3)


@pytest.mark.parametrize(
    ("likelihood", "z", "y", "smallest"),
    [
        (Categorical(), [[60.0, 0.0, 0.0]], [0], 4 / 3 * 1e-3 / 3),
        (Bernoulli(), [[60.0]], [[1.0]], 4 / 3 * 5e-4),
        (Poisson(), [[-60.0]], [[0.0]], 5e-4),
        (NegativeBinomial(0.5), [[-60.0]], [[0.0]], 5e-4),
    ],
)
def test_the_prior_keeps_information_where_predictions_are_right(likelihood, z, y, smallest):
    z, y = torch.tensor(z), torch.tensor(y)
    without = matrices(likelihood, z, y)[0]
    assert without.abs().max() < 1e-20
    diagonal = matrices(likelihood, z, y, prior=1e-3)[0].diagonal()
    assert diagonal[-1].item() == pytest.approx(smallest, rel=1e-2)


def test_soft_targets():
    z, q = torch.randn(5, 3), torch.randn(5, 3).softmax(-1)
    middle = (z.softmax(-1) + q) / 2
    expected = 4 / 3 * (torch.diag_embed(middle) - middle[:, :, None] * middle[:, None])
    torch.testing.assert_close(matrices(Categorical(), z, q), expected)


def test_the_default_is_the_mean_of_the_fisher_information_and_the_squared_score():
    z, y = torch.randn(6, 3), torch.randint(3, (6,))
    s, p = PlainCategorical().score(z, y), z.softmax(-1)
    H = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    expected = (H + s[:, :, None] * s[:, None]) / 2
    torch.testing.assert_close(matrices(PlainCategorical(), z, y), expected)
    y = torch.tensor([[0.0, 1.0, 2.0]])
    s = Binomial().score(z[:1], y)
    expected = (3 * z[:1].sigmoid() * (1 - z[:1].sigmoid()) + s**2) / 2
    torch.testing.assert_close(Binomial().midpoint_product(z[:1], y, torch.ones(1, 3)), expected)
