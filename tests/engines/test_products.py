"""Products of tangents: the same by either library, and by oneDNN only where it can."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from tangograd import TANGO, Categorical
from tangograd.engines.mode import GraphFreeTangents
from tangograd.engines.rules import products
from tangograd.engines.rules.products import AVAILABLE, FEW_PRODUCTS, product
from tangograd.forward_mode import load_formulas


class Seen(TorchDispatchMode):
    """Counts the products given to oneDNN."""

    def __init__(self):
        super().__init__()
        self.by_onednn = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.by_onednn += func is torch.ops.mkldnn._linear_pointwise.default
        return func(*args, **(kwargs or {}))


class Doubled(torch.Tensor):
    """Twice another matrix, wherever it is multiplied."""

    @staticmethod
    def __new__(cls, W):
        return torch.Tensor._make_wrapper_subclass(cls, W.shape, dtype=W.dtype, strides=W.stride())

    def __init__(self, W):
        self.W = W

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        assert func.namespace == "aten"
        return func(*(2 * x.W if isinstance(x, cls) else x for x in args), **(kwargs or {}))


def numbers(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype)


LARGE = [numbers(64, 150), numbers(120, 150, seed=1)]
assert LARGE[0].numel() * len(LARGE[1]) > FEW_PRODUCTS


@pytest.mark.parametrize("rows", [3, 64])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("onto", [True, False])
def test_the_product_is_right(rows, biased, onto):
    x, W = LARGE[0][:rows], LARGE[1]
    b = numbers(120, seed=2) if biased else None
    matrix = numbers(rows, 120, seed=3) if onto else None
    right = x.double() @ W.double().t()
    right += b.double() if biased else 0.0
    right += matrix.double() if onto else 0.0
    with Seen() as seen:
        found = product(x, W, b, None if matrix is None else matrix.clone())
    assert seen.by_onednn == (AVAILABLE and rows == 64)
    assert found.dtype == torch.float32
    assert (found - right).abs().max() < 3e-6 * right.abs().max()


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: torch.cat([x, x], 1)[:, ::2],
        lambda x: x[:1].expand(len(x), -1),
        lambda x: x.flip(0),
    ],
    ids=["transposed", "every other", "expanded", "flipped"],
)
@pytest.mark.parametrize("which", [0, 1])
def test_layouts_in_memory_do_not_matter(layout, which):
    x, W = (layout(y) if i == which else y for i, y in enumerate(LARGE))
    found = product(x, W)
    right = x.double() @ W.double().t()
    assert (found - right).abs().max() < 3e-6 * right.abs().max()


@pytest.mark.parametrize(
    "b",
    [
        numbers(240)[::2],
        numbers(1).expand(120),
        numbers(1),
        torch.tensor(2.0),
        numbers(1, 120),
        numbers(64, 120),
    ],
    ids=["every other", "expanded", "one", "scalar", "row", "matrix"],
)
@pytest.mark.parametrize("onto", [True, False])
def test_biases_of_all_kinds(b, onto):
    x, W = LARGE
    matrix = numbers(64, 120, seed=3)
    found = product(x, W, b, matrix.clone() if onto else None)
    right = x.double() @ W.double().t() + b.double() + (matrix.double() if onto else 0.0)
    assert (found - right).abs().max() < 3e-6 * right.abs().max()


@pytest.mark.skipif(not AVAILABLE, reason="torch has no oneDNN here")
class TestWhereItIsUsed:
    """Only where it has the product, and where the user lets it."""

    def used(self, x, W):
        with Seen() as seen:
            found = product(x, W)
        assert torch.allclose(
            found.double(), functional.linear(x, W).double(), rtol=1e-4, atol=1e-4
        )
        return bool(seen.by_onednn)

    def test_large_ones_in_single_precision(self):
        assert self.used(*LARGE)

    def test_not_small_ones(self):
        assert not self.used(LARGE[0][:2], LARGE[1])

    def test_not_in_double_precision(self):
        assert not self.used(*(x.double() for x in LARGE))

    def test_not_a_vector(self):
        x = numbers(1024, 1025)
        assert not self.used(x, x[0])

    @pytest.mark.filterwarnings("ignore:TF32 acceleration")
    def test_not_when_it_is_switched_off(self):
        with torch.backends.mkldnn.flags(enabled=False):
            assert not self.used(*LARGE)

    def test_not_under_autocast(self):
        with Seen() as seen, torch.autocast("cpu", torch.bfloat16):
            found = product(*LARGE)
        assert found.dtype == torch.bfloat16
        assert not seen.by_onednn

    @pytest.mark.filterwarnings("ignore:Sparse")
    @pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_mkldnn"])
    def test_not_in_another_layout(self, layout):
        x, W = LARGE
        given = (x.to_mkldnn(), W) if layout == "to_mkldnn" else (x, getattr(W, layout)())
        with Seen() as seen:
            found = product(*given)
        found = found.to_dense() if layout == "to_mkldnn" else found
        assert torch.allclose(found, x @ W.t(), rtol=1e-4, atol=1e-4)
        assert not seen.by_onednn

    def test_not_of_a_class_that_knows_torchs_own_operations_alone(self):
        x, W = LARGE
        assert torch.equal(product(x, Doubled(W)), functional.linear(x, 2 * W))

    def test_not_inside_a_transform(self):
        x, W = LARGE
        with Seen() as seen:
            found = torch.func.vmap(lambda y: product(y, W))(x.expand(2, -1, -1) * 1.0)
        assert torch.allclose(found[1], x @ W.t(), rtol=1e-4, atol=1e-4)
        assert not seen.by_onednn


@pytest.mark.parametrize("shape", [(64, 150), (4, 16, 150)])
def test_tangents_and_gradients_of_a_layer_by_it(shape):
    """Against double precision, where there is no oneDNN."""
    load_formulas()
    x, dx = numbers(*shape), numbers(*shape, seed=4)
    W, dW = LARGE[1], numbers(120, 150, seed=5)
    b, db = numbers(120, seed=6), numbers(120, seed=7)
    found = []
    for dtype in (torch.float32, torch.float64):
        own = [y.to(dtype, copy=True).requires_grad_() for y in (x, W, b)]
        moving = [y.to(dtype) for y in (dx, dW, db)]
        with forward_ad.dual_level(), GraphFreeTangents(), Seen() as seen:
            duals = [forward_ad.make_dual(y, t) for y, t in zip(own, moving, strict=True)]
            z, t = forward_ad.unpack_dual(functional.linear(*duals))
        assert seen.by_onednn == (2 if AVAILABLE and dtype == torch.float32 else 0)
        assert z.requires_grad
        assert not t.requires_grad
        assert z.shape == t.shape == (*shape[:-1], 120)
        found.append([t, *torch.autograd.grad(z.square().sum(), own)])
    for single, double in zip(*found, strict=True):
        assert (single - double).abs().max() < 1e-5 * double.abs().max()


@pytest.mark.parametrize("engine", ["dual", "two-pass"])
def test_brackets_by_it(engine):
    """``g - F̂v`` of a network in single precision, against double precision."""
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(150, 120), nn.Tanh(), nn.Linear(120, 150), nn.Tanh())
    x, y = LARGE[0], torch.arange(64) % 150
    v = [torch.randn_like(p) for p in whole.parameters()]
    found = []
    for dtype in (torch.float32, torch.float64):
        model = deepcopy(whole).to(dtype)
        optimizer = TANGO(model.parameters(), gamma=0.1, preconditioner=None, engine=engine)
        for p, v_p in zip(model.parameters(), v, strict=True):
            optimizer.state[p]["velocity"] = v_p.to(dtype)
        optimizer.param_groups[0]["steps"] = 1041  # nothing else is measured
        for _ in range(2):
            optimizer.zero_grad()
            with profile(activities=[ProfilerActivity.CPU]) as events, optimizer.tangents(model):
                loss = Categorical()(model(x.to(dtype)), y)
        loss.backward()
        names = [event.name for event in events.events()]
        by_onednn = 3 if AVAILABLE and dtype == torch.float32 else 0
        assert names.count("mkldnn::_linear_pointwise") == by_onednn
        found.append([p.grad.double() for p in model.parameters()])
    for single, double in zip(*found, strict=True):
        assert (single - double).abs().max() < 1e-5 * double.abs().max()


def test_without_it_products_are_torchs(monkeypatch):
    monkeypatch.setattr(products, "AVAILABLE", False)
    with Seen() as seen:
        found = product(*LARGE)
    assert not seen.by_onednn
    assert torch.equal(found, nn.functional.linear(*LARGE))
