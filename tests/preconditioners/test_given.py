"""Given preconditioners: products, inverses, shapes."""

import pytest
import torch

from tangograd import TANGO, Categorical
from tangograd.preconditioners import Dense, Diagonal, Identity
from tangograd.vectors import flatten

from ..cases import mlp
from ..test_optimizer import train

PARAMS = [torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)]


def spd(n):
    A = torch.randn(n, n)
    return A @ A.T + torch.eye(n)


@pytest.fixture(params=["identity", "diagonal", "dense"])
def preconditioner_and_matrix(request):
    if request.param == "identity":
        return Identity(), torch.eye(8)
    if request.param == "diagonal":
        c = [torch.rand_like(p) + 0.5 for p in PARAMS]
        return Diagonal(c), torch.diag(flatten(c))
    C = spd(8)
    return Dense(C), C


def test_products_and_inverses(preconditioner_and_matrix):
    C, matrix = preconditioner_and_matrix
    C.check(PARAMS)
    x = [torch.randn_like(p) for p in PARAMS]
    before = flatten(x).clone()
    y = C.apply(x)
    assert [t.shape for t in y] == [p.shape for p in PARAMS]
    torch.testing.assert_close(flatten(y), matrix @ before, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(flatten(C.apply_inverse(y)), before, rtol=1e-11, atol=1e-11)
    assert flatten(x).equal(before)


def test_state_goes_into_another_of_the_same_kind(preconditioner_and_matrix):
    C, _ = preconditioner_and_matrix
    other = {
        Identity: Identity,
        Diagonal: lambda: Diagonal([torch.ones_like(p) for p in PARAMS]),
        Dense: lambda: Dense(torch.eye(8)),
    }[type(C)]()
    other = other.from_state(C.state_dict(), PARAMS)
    x = [torch.randn_like(p) for p in PARAMS]
    assert flatten(other.apply(x)).equal(flatten(C.apply(x)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Diagonal([torch.tensor([1.0, 0.0])]), "must be > 0"),
        (lambda: Diagonal([torch.tensor([1.0, float("nan")])]), "must be > 0"),
        (lambda: Dense(torch.ones(2, 3)), "square"),
        (lambda: Dense(torch.tensor([[1.0, 2.0], [2.0, 1.0]])), "positive definite"),
        (lambda: Dense(torch.tensor([[1.0, 0.5], [0.0, 1.0]])), "symmetric"),
    ],
)
def test_bad_matrices(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_dense_c_leaves_frozen_parameters_where_they_are():
    model = mlp()
    model[0].weight.requires_grad_(False)
    frozen = model[0].weight.clone()
    n = sum(p.numel() for p in model.parameters())
    optimizer = TANGO(model.parameters(), lr=0.3, gamma=0.01, preconditioner=Dense(spd(n)))
    train(model, optimizer, Categorical(), [(torch.randn(4, 3), torch.arange(4))] * 3)
    assert model[0].weight.equal(frozen)
    assert model[0].weight.grad is None
