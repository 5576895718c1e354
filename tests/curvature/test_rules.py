"""The paper's rules for γ, in the metric of C, and the warning past the necessary bound."""

import warnings

import pytest
import torch
from torch import nn

from tangograd import TANGO, Bernoulli, Categorical, MeanScaleGaussian
from tangograd.curvature import FourthMoment, Kurtosis, RunningMax
from tangograd.curvature.rules import FORGETTING
from tangograd.preconditioners import Dense

from ..cases import mlp


def observe(rule, norms, weights=None):
    norms = torch.tensor(norms)
    rule.update(norms, torch.ones(len(norms)) if weights is None else torch.tensor(weights))
    return rule.value


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        (RunningMax(), (1 / 2, 1 / 6, 1 / 6)),
        (Kurtosis(), (1 / 6, 1 / 12, 1 / 9)),
        (Kurtosis(kappa=6.0), (1 / 12, 1 / 24, 1 / 18)),
        (FourthMoment(0.5), (0.5 / 4, 0.5 / 20, 0.5 / (41 / 3))),
    ],
)
def test_rules(rule, values):
    """After ‖g̃‖² = 2, then 6, then 1: the current one is always included."""
    assert rule.value == 0  # nothing seen
    assert [observe(rule, [x]) for x in (2.0, 6.0, 1.0)] == pytest.approx(values, rel=1e-14)


def test_means_are_weighted_and_forget_slowly():
    rule = Kurtosis(kappa=1.0)
    assert observe(rule, [1.0, 4.0], [1.0, 2.0]) == pytest.approx(1 / 3)
    for _ in range(20000):
        observe(rule, [10.0])
    assert rule.mean_squared_norm == pytest.approx(10, rel=1e-6)
    observe(rule, [0.0])
    assert rule.mean_squared_norm == pytest.approx(10 * (1 - FORGETTING), rel=1e-6)


def test_zero_pseudo_gradients_give_no_step_rather_than_an_infinite_one():
    assert observe(RunningMax(), [0.0]) == 0
    assert observe(Kurtosis(), [0.0]) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda: Kurtosis(0.5), "at least 1"), (lambda: FourthMoment(0.0), "must be positive")],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def one_step(model, optimizer, likelihood, x, y):
    optimizer.zero_grad()
    with optimizer.tangents(model):
        loss = likelihood(model(x), y)
    loss.backward()
    optimizer.step()


class Logistic(nn.Module):
    def __init__(self, d=3):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        return x @ self.theta


def test_the_current_sample_is_included_in_the_metric_of_c():
    """B = 1, empirical: g̃ = g = x (p - y) is known, and γ = 1 / max g̃ᵀCg̃ in every step."""
    A = torch.randn(3, 3)
    C = A @ A.T + torch.eye(3)
    model = Logistic()
    optimizer = TANGO(model.parameters(), lr=0.3, gamma="max", preconditioner=Dense(C))
    likelihood = Bernoulli(fisher="empirical")
    largest = 0.0
    for k in range(40):
        x, y = torch.randn(1, 3), torch.tensor([float(k % 2)])
        g = (x * (model(x).sigmoid() - y)[:, None]).detach()[0]
        largest = max(largest, (g @ C @ g).item())
        one_step(model, optimizer, likelihood, x, y)
        assert optimizer.diagnostics()["gamma"] == pytest.approx(1 / largest, rel=1e-12)


def test_rank_one_estimates_are_measured_whole():
    """ "minibatch": the vector is h = Σ g̃_i/√B, so that F̂ = hhᵀ."""
    model = Logistic()
    likelihood = Bernoulli(fisher="minibatch")
    y_tilde = torch.tensor([1.0, 0.0, 1.0, 1.0])
    likelihood.sample = lambda _: y_tilde
    optimizer = TANGO(model.parameters(), gamma="max", preconditioner=None)
    x = torch.randn(4, 3)
    h = (x * (0.5 - y_tilde)[:, None]).sum(0) / 2
    one_step(model, optimizer, likelihood, x, torch.ones(4))
    assert optimizer.diagnostics()["gamma"] == pytest.approx(1 / (h @ h).item(), rel=1e-12)


def test_groups_that_name_the_same_rule_share_one_gamma():
    """g̃ over both groups: two rules of their own could add up past the bound."""
    model = mlp()
    whole = TANGO(model.parameters(), gamma="max", preconditioner=None)
    groups = [{"params": list(model[i].parameters())} for i in (0, 2)]
    split = TANGO(groups, gamma="max", preconditioner=None)
    own = TANGO([groups[0], groups[1] | {"gamma": RunningMax()}], preconditioner=None)
    x, y = torch.randn(5, 3), torch.randint(4, (5,))
    gammas = []
    for optimizer in (whole, split, own):
        likelihood = Categorical(fisher="empirical")
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        state = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(model.parameters(), state, strict=True):
                p.copy_(q)
        optimizer.zero_grad()
        gammas.append(optimizer.diagnostics())
    assert gammas[1]["gamma"] == gammas[1]["gamma_1"] == pytest.approx(gammas[0]["gamma"])
    assert gammas[2]["gamma"] != gammas[2]["gamma_1"]
    assert min(gammas[2]["gamma"], gammas[2]["gamma_1"]) > gammas[0]["gamma"]


def test_a_rule_given_as_an_object_is_not_shared_with_a_name():
    a, b, c = (torch.zeros(1, requires_grad=True) for _ in range(3))
    own = RunningMax()
    optimizer = TANGO(
        [{"params": [a], "gamma": own}, {"params": [b]}, {"params": [c]}], preconditioner=None
    )
    rules = [group["gamma"] for group in optimizer.param_groups]
    assert rules[0] is own
    assert rules[1] is rules[2] is not own


def test_over_the_steps_the_whole_batch_is_seen():
    """Each step looks at another sample; γ reaches 1/max over all of them."""
    model = Logistic()
    optimizer = TANGO(model.parameters(), lr=0.0, gamma="max", preconditioner=None)
    likelihood = Bernoulli(fisher="empirical")
    x, y = torch.randn(13, 3), (torch.arange(13) % 2).double()
    norms = (x * 0.5).square().sum(1)
    for _ in range(40):
        one_step(model, optimizer, likelihood, x, y)
    assert optimizer.diagnostics()["gamma"] == pytest.approx(1 / norms.max().item(), rel=1e-12)


def warned(likelihood, gamma, B=1, steps=200):
    """Return the warnings of a run on the paper's Gaussian example at σ = 1."""
    theta = torch.zeros(2, requires_grad=True)
    optimizer = TANGO([theta], lr=0.0, gamma=gamma, preconditioner=None)
    y = torch.randn(B, 1, generator=torch.Generator().manual_seed(1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            optimizer.zero_grad()
            with optimizer.tangents():
                loss = likelihood(theta.expand(B, 2), y)
            loss.backward()
            optimizer.step()
    return [str(w.message) for w in caught]


@pytest.mark.parametrize(("gamma", "expected"), [(0.5, 1), ("max", 0), (0.01, 0)])
def test_an_unstable_gamma_is_warned_of_once(gamma, expected):
    """γ times the curvature along v above 2, in several steps: v grows without limit."""
    likelihood = MeanScaleGaussian(fisher="sampled", generator=torch.Generator().manual_seed(0))
    messages = warned(likelihood, gamma)
    assert len(messages) == expected
    assert all("lower gamma" in message for message in messages)


def test_the_same_gamma_is_stable_for_the_closed_form():
    assert not warned(MeanScaleGaussian(), 0.3)
