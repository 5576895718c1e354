"""Learned preconditioners: what they are shown is exact or unbiased, and what they make of it."""

import pytest
import torch
from torch import nn

from tangograd import TANGO, Categorical, preconditioners
from tangograd.curvature.pseudo_gradients import collect, combine
from tangograd.curvature.statistics import Factors, Statistics
from tangograd.engines import Site, resolve
from tangograd.preconditioners import InverseDiagonal, Kronecker, RMSProp
from tangograd.preconditioners import factors as damped
from tangograd.preconditioners.diagonal import FLOOR, LARGE
from tangograd.session import TrainingPass, open_pass
from tangograd.vectors import dot, flatten

from ..cases import midpoint_matrix, problem


def statistics(model, likelihood, x, y, needs, draws=1):
    params = list(model.parameters())
    zeros = [torch.zeros_like(p) for p in params]
    layers, block = [], TrainingPass(params, zeros)
    site = Site(layers=layers if "layers" in needs else None)
    with open_pass(resolve("dual"), site, block, params, zeros):
        loss = likelihood(model(x), y)
    pulled = collect(block, layers, frozenset(needs), draws, check=False)
    loss.backward()
    return combine(pulled, params)


@pytest.mark.parametrize("name", ["categorical", "poisson", "mean-scale"])
def test_the_diagonal_of_the_midpoint_fisher_matrix_is_estimated_without_bias(name):
    model, x, y, likelihood = problem("mlp", name)
    exact = midpoint_matrix(model, likelihood, x, y).diagonal()
    found = flatten(statistics(model, likelihood, x, y, {"fisher_diagonal"}, 4000).fisher_diagonal)
    # h² has a standard deviation of about √2 to 3 times its mean: 5 standard errors
    torch.testing.assert_close(found, exact, rtol=0.25, atol=0.02 * exact.mean().item())


def test_the_gradient_is_that_of_the_loss():
    model, x, y, likelihood = problem("conv", "categorical")
    found = statistics(model, likelihood, x, y, {"gradient"})
    exact = torch.autograd.grad(likelihood(model(x), y), list(model.parameters()))
    torch.testing.assert_close(flatten(found.gradient), flatten(exact), rtol=1e-12, atol=1e-14)
    assert not found.fisher_diagonal
    assert not found.layers


def test_the_factors_of_one_linear_layer_and_one_sample_are_the_fisher_matrix():
    """F = a aᵀ ⊗ H⁺, and ``[weight | bias]`` has 1 appended to its inputs."""
    model, likelihood = nn.Linear(3, 4), Categorical()
    x, y = torch.randn(1, 3), torch.tensor([1])
    F = midpoint_matrix(model, likelihood, x, y)
    (layer,) = statistics(model, likelihood, x, y, {"layers"}, 4000).layers
    a = torch.cat([x[0], torch.ones(1)])
    torch.testing.assert_close(layer.A, torch.outer(a, a))
    assert (layer.weight, layer.bias) == (0, 1)
    H = F[12:, 12:]  # that of the biases
    torch.testing.assert_close(layer.G, H, rtol=0.1, atol=0.02)


CONVOLUTIONS = {
    "2d": (lambda: nn.Conv2d(2, 3, 3, padding=1), (4, 2, 5, 5)),
    "2d, stride and dilation": (lambda: nn.Conv2d(2, 3, (2, 3), 2, (1, 0), (1, 2)), (4, 2, 6, 7)),
    "1d": (lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1), (4, 2, 7)),
    "no bias": (lambda: nn.Conv2d(2, 3, 2, bias=False), (4, 2, 3, 3)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_inputs_of_a_convolution_are_its_patches(name):
    make, shape = CONVOLUTIONS[name]
    conv, x = make(), torch.randn(shape)
    model = nn.Sequential(conv, nn.Flatten())
    outputs = model(x)
    likelihood, y = Categorical(), torch.zeros(len(x), dtype=torch.long)
    (layer,) = statistics(model, likelihood, x, y, {"layers"}).layers
    # the gradient of one output element with respect to its own filter is its patch
    z = conv(x)[:, 0].reshape(-1)
    patches = torch.stack(
        [
            flatten(
                [
                    g[0]
                    for g in torch.autograd.grad(
                        element, list(conv.parameters()), retain_graph=True
                    )
                ]
            )
            for element in z
        ]
    )
    torch.testing.assert_close(layer.A, patches.T @ patches / len(patches))
    assert layer.G.shape == (3, 3)
    assert outputs.shape[0] == len(x)


def test_grouped_convolutions_are_left_to_the_diagonal():
    model = nn.Sequential(nn.Conv2d(2, 2, 2, groups=2), nn.Flatten())
    found = statistics(
        model, Categorical(), torch.randn(3, 2, 3, 3), torch.zeros(3).long(), {"layers"}
    )
    assert found.layers == []


def test_uses_of_one_weight_add_up():
    """A layer applied twice: as many rows again."""
    model = nn.Linear(3, 3)
    likelihood, x = Categorical(), torch.randn(5, 3)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = model

        def forward(self, x):
            return self.layer(self.layer(x).tanh())

    (layer,) = statistics(Twice(), likelihood, x, torch.zeros(5).long(), {"layers"}).layers
    rows = torch.cat([x, model(x).tanh().detach()])
    rows = torch.cat([rows, torch.ones(10, 1)], 1)
    torch.testing.assert_close(layer.A, rows.T @ rows / 10)


@pytest.mark.parametrize("rank", [2, 64])
def test_products_inverses_and_norms_of_a_kronecker_preconditioner(rank, monkeypatch):
    monkeypatch.setattr(damped, "RANK", rank)
    monkeypatch.setattr(damped, "DENSE", 2 * rank)
    a, d = torch.randn(50, 8), torch.randn(50, 6)
    factors = Factors(0, 1, a.T @ a / 50, d.T @ d)
    C = Kronecker()
    C.init([torch.zeros(6, 7), torch.zeros(6), torch.zeros(2)])
    rest = torch.tensor([1.0, 3.0])
    C.update(Statistics(1, [torch.ones(6, 7), torch.ones(6), rest], [], [factors]))
    x = [torch.randn(6, 7), torch.randn(6), torch.randn(2)]
    y = C.apply_inverse(C.apply(x))
    torch.testing.assert_close(flatten(y), flatten(x), rtol=1e-10, atol=1e-12)
    assert dot(x, C.apply(x)) > 0
    torch.testing.assert_close(C.apply(x)[2], x[2] / torch.tensor([2.0, 3.0]))
    if rank == 64:  # whole: (A + α) ⊗ (G + β), the product of dampings being the mean curvature
        A, G = factors.A, d.T @ d
        alpha, beta = A.diagonal().median(), G.diagonal().mean()
        X = torch.cat([x[0], x[1][:, None]], 1)
        expected = torch.linalg.solve(G + beta * torch.eye(6), X) @ torch.linalg.inv(
            A + alpha * torch.eye(8)
        )
        torch.testing.assert_close(C.apply(x)[0], expected[:, :-1])
        torch.testing.assert_close(C.apply(x)[1], expected[:, -1])


def test_floors_and_averages():
    C = InverseDiagonal()
    x = [torch.ones(3)]
    assert C.apply(x)[0].equal(x[0])  # nothing learned yet
    C.update(Statistics(8, [torch.tensor([0.0, 2.0, 4.0])], [], []))
    torch.testing.assert_close(C.apply(x)[0], torch.tensor([1 / 2, 1 / 2, 1 / 4]))
    C.update(Statistics(1, [torch.tensor([0.0, 2.0, 13.0])], [], []))  # the ninth draw
    torch.testing.assert_close(C.apply(x)[0], 1 / torch.tensor([7 / 3, 7 / 3, 5.0]))
    torch.testing.assert_close(C.apply_inverse(C.apply(x))[0], x[0])


def test_large_tensors_have_a_higher_floor():
    C, c = InverseDiagonal(), torch.ones(LARGE)
    c[0], c[1] = 100.0, 0.0
    C.update(Statistics(8, [c], [], []))
    floor = FLOOR * c.mean().item()
    inverse = C.apply_inverse([torch.ones(LARGE)])[0]
    torch.testing.assert_close(inverse, c.clamp(min=floor))
    assert inverse[0] == 100


@pytest.mark.parametrize("make", [InverseDiagonal, RMSProp, Kronecker])
def test_what_is_not_finite_is_not_learned(make):
    good, bad = [torch.ones(2, 2)], [torch.full((2, 2), float("nan"))]
    layer = Factors(0, None, torch.eye(2), torch.eye(2))
    C, x = make(), [torch.randn(2, 2)]
    C.update(Statistics(1, good, good, [layer]))
    before = C.apply(x)[0].clone()
    C.update(Statistics(1, bad, bad, [layer._replace(A=bad[0])]))
    assert C.apply(x)[0].equal(before)


@pytest.mark.parametrize("preconditioner", ["auto", "rmsprop", "kronecker"])
def test_loading_a_state_of_other_shapes_is_refused(preconditioner):
    saved, other = nn.Linear(3, 4), nn.Linear(2, 4)
    optimizers = [
        TANGO(model.parameters(), preconditioner=preconditioner) for model in (saved, other)
    ]
    x, y, likelihood = torch.randn(6, 3), torch.zeros(6).long(), Categorical()
    with optimizers[0].tangents(saved):
        loss = likelihood(saved(x), y)
    loss.backward()
    optimizers[0].step()
    with pytest.raises(ValueError, match="velocity of parameter"):
        optimizers[1].load_state_dict(optimizers[0].state_dict())


def test_frozen_parameters_have_no_curvature_and_stay():
    model, likelihood = nn.Linear(3, 4), Categorical()
    model.bias.requires_grad_(False)
    before = model.bias.clone()
    x, y = torch.randn(20, 3), torch.randint(4, (20,))
    for preconditioner in ("auto", "rmsprop", "kronecker"):
        optimizer = TANGO(model.parameters(), preconditioner=preconditioner)
        for _ in range(3):
            optimizer.zero_grad()
            with optimizer.tangents(model):
                loss = likelihood(model(x), y)
            loss.backward()
            optimizer.step()
    assert model.bias.equal(before)


class Symmetric(nn.Module):
    """Its outputs depend neither on the bias before normalisation nor on that of the keys."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.query, self.key, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = self.norm(self.first(x)).tanh()
        attention = (self.query(h) @ self.key(h).T).softmax(-1)
        return self.last(attention @ h)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("preconditioner", ["auto", "rmsprop", "kronecker"])
def test_directions_without_curvature_do_not_run_away(preconditioner, dtype):
    """Their gradients are rounding errors, and so is what C would divide by."""
    model, likelihood = Symmetric().to(dtype), Categorical()
    optimizer = TANGO(model.parameters(), preconditioner=preconditioner)
    x, y = torch.randn(20, 3, dtype=dtype), torch.randint(4, (20,))
    before = [model.first.bias.detach().clone(), model.key.bias.detach().clone()]
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for bias, start in zip((model.first.bias, model.key.bias), before, strict=True):
        assert (bias - start).abs().max() < 1


class Heads(nn.Module):
    """A trunk with two biased heads, of which one is used at a time."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(3, 4)
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])

    def forward(self, x, head):
        return self.heads[head](self.trunk(x).tanh())


def train_heads(order, preconditioner="auto"):
    """Train one block for each head in a step's list; return the model and C."""
    model, likelihood = Heads(), Categorical()
    optimizer = TANGO(model.parameters(), preconditioner=preconditioner)
    x, y = torch.randn(12, 3), torch.arange(12) % 2
    for heads in order:
        optimizer.zero_grad()
        for head in heads:
            with optimizer.tangents(model):
                loss = likelihood(model(x, head), y) / len(heads)
            loss.backward()
        optimizer.step()
    return model, optimizer.param_groups[0]["preconditioner"]


def test_layers_that_only_some_micro_batches_use():
    _, C = train_heads([(0, 1)] * 3)
    state = C.state_dict()
    assert state["called"] == [1, 1, 1]
    assert -1 not in state["bias"]


def test_a_layer_that_the_first_refresh_does_not_use_has_factors_later():
    model, C = train_heads([(0,)] * 4 + [(1,)] * 60)
    x = [torch.ones_like(p) for p in model.parameters()]
    for (name, _), before, after in zip(model.named_parameters(), x, C.apply(x), strict=True):
        assert not torch.allclose(before, after), name


def test_a_parameter_that_was_frozen_starts_its_average_when_it_is_trained():
    C = InverseDiagonal()
    one = [torch.ones(3), torch.ones(3)]
    for _ in range(50):
        C.update(Statistics(1, [one[0], torch.zeros(3)], [], [], used=[True, False]))
    C.update(Statistics(1, [one[0], 4 * one[1]], [], [], used=[True, True]))
    torch.testing.assert_close(C.apply(one)[1], torch.full((3,), 0.25))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_large_factors_of_models_in_16_bits(dtype):
    model = nn.Sequential(nn.Linear(20, 150), nn.Tanh(), nn.Linear(150, 2)).to(dtype)
    x, y = torch.randn(16, 20).to(dtype), torch.arange(16) % 2
    optimizer, likelihood = TANGO(model.parameters()), Categorical()
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_factors_that_were_never_used_take_no_memory():
    model = nn.Embedding(4096, 4)
    C = Kronecker()
    C.init(list(model.parameters()))
    assert sum(x.untyped_storage().nbytes() for b in C._blocks.values() for x in (b.A, b.G)) < 100
    state = C.state_dict()
    assert state["G"][0].shape == (4096, 4096)  # so that a distributed checkpoint can be loaded


def test_shards_have_the_diagonal_by_default_and_this_is_said_once(caplog):
    preconditioners._say_diagonal.cache_clear()
    with caplog.at_level("INFO", logger="tangograd"):
        for _ in range(2):
            assert isinstance(preconditioners.resolve("auto", sharded=True), InverseDiagonal)
    assert caplog.text.count('"diagonal" for parameters sharded by fully_shard') == 1
    assert isinstance(preconditioners.resolve("auto"), Kronecker)
