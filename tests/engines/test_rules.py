"""Each rule against PyTorch's own derivative, and against a difference where it has none."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from tangograd.engines.mode import DerivativeInsideError, GraphFreeTangents
from tangograd.engines.rules import RULES
from tangograd.forward_mode import load_formulas


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def bags(mode, **options):
    """embedding_bag of numbers, as a function of the weight."""
    indices, offsets = torch.tensor([0, 2, 1, 3, 3, 0]), torch.tensor([0, 2, 5])
    return lambda W, *w: functional.embedding_bag(
        indices, W, offsets, mode=mode, per_sample_weights=w[0] if w else None, **options
    )


seen_by = torch.tensor([[True, False, False], [True, True, False], [True, True, True]])
attention = functional.scaled_dot_product_attention
qkv = [numbers(2, 4, 3, 5, seed=i) for i in range(3)]
fewer = [qkv[0], numbers(2, 2, 3, 5, seed=7), numbers(2, 2, 3, 5, seed=8)]

CASES = {
    "linear": (functional.linear, [numbers(4, 3), numbers(5, 3), numbers(5)]),
    "linear, no bias": (functional.linear, [numbers(2, 4, 3), numbers(5, 3)]),
    "linear, one row": (functional.linear, [numbers(3), numbers(5, 3), numbers(5)]),
    "linear, batches in another order": (
        lambda x, W, b: functional.linear(x.transpose(0, 1), W, b),
        [numbers(2, 4, 3), numbers(5, 3), numbers(5)],
    ),
    "max pooling": (lambda x: functional.max_pool2d(x, 2), [numbers(2, 3, 4, 6)]),
    "max pooling, adaptive": (lambda x: functional.adaptive_max_pool1d(x, 2), [numbers(2, 3, 6)]),
    "conv1d": (functional.conv1d, [numbers(2, 3, 6), numbers(4, 3, 2), numbers(4)]),
    "conv2d": (
        lambda x, W, b: functional.conv2d(x, W, b, stride=2, padding=1, groups=2),
        [numbers(2, 4, 5, 5), numbers(6, 2, 3, 3), numbers(6)],
    ),
    "conv3d": (functional.conv3d, [numbers(1, 2, 4, 4, 4), numbers(3, 2, 2, 2, 2), numbers(3)]),
    "matmul": (torch.matmul, [numbers(2, 3, 4), numbers(4, 5)]),
    "@": (lambda a, b: a @ b, [numbers(3, 4), numbers(4)]),
    "bmm": (torch.bmm, [numbers(2, 3, 4), numbers(2, 4, 5)]),
    "mm": (torch.mm, [numbers(3, 4), numbers(4, 5)]),
    "sum": (lambda a, b: a + b, [numbers(3, 4), numbers(4)]),
    "sum with a factor": (lambda a, b: torch.add(a, b, alpha=2.5), [numbers(4), numbers(3, 1)]),
    "sum with a number": (lambda a: 1 + a + 2, [numbers(3, 4)]),
    "difference": (lambda a, b: a - b, [numbers(4), numbers(3, 4)]),
    "contiguous": (lambda a: a.t().contiguous(), [numbers(3, 4)]),
    "product": (lambda a, b: a * b, [numbers(3, 4), numbers(4)]),
    "product with a number": (lambda a: 3 * a, [numbers(3, 4)]),
    "relu": (functional.relu, [numbers(3, 4)]),
    "tanh": (torch.tanh, [numbers(3, 4)]),
    "sigmoid": (torch.sigmoid, [numbers(3, 4)]),
    "silu": (functional.silu, [numbers(3, 4)]),
    "gelu": (functional.gelu, [numbers(3, 4)]),
    "gelu, approximate": (lambda a: functional.gelu(a, approximate="tanh"), [numbers(3, 4)]),
    "softmax": (lambda a: functional.softmax(a, -1), [numbers(3, 4)]),
    "softmax, first dimension": (lambda a: a.softmax(0), [numbers(3, 4)]),
    "layer norm": (
        lambda x, w, b: functional.layer_norm(x, (4,), w, b),
        [numbers(3, 4), numbers(4), numbers(4)],
    ),
    "layer norm of two dimensions": (
        lambda x, w: functional.layer_norm(x, (3, 4), w),
        [numbers(2, 3, 4), numbers(3, 4)],
    ),
    "layer norm alone": (lambda x: functional.layer_norm(x, (4,)), [numbers(3, 4)]),
    "group norm": (
        lambda x, w, b: functional.group_norm(x, 2, w, b),
        [numbers(3, 4, 2), numbers(4), numbers(4)],
    ),
    "group norm alone": (lambda x: functional.group_norm(x, 2), [numbers(3, 4, 2, 2)]),
    "batch norm": (
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True),
        [numbers(5, 3, 2), numbers(3), numbers(3)],
    ),
    "batch norm alone": (
        lambda x: functional.batch_norm(x, None, None, training=True),
        [numbers(5, 3)],
    ),
    "batch norm, evaluating": (
        lambda x, w, b: functional.batch_norm(
            x, torch.full((3,), 0.5).double(), torch.full((3,), 2.0).double(), w, b
        ),
        [numbers(5, 3, 2), numbers(3), numbers(3)],
    ),
    "embedding": (
        lambda W: functional.embedding(torch.tensor([[0, 2], [2, 1]]), W),
        [numbers(3, 4)],
    ),
    "weight norm": (torch._weight_norm, [numbers(4, 3), numbers(4, 1)]),
    "weight norm, last dimension": (
        lambda v, g: torch._weight_norm(v, g, 1),
        [numbers(4, 3), numbers(1, 3)],
    ),
    "weight norm, whole": (lambda v, g: torch._weight_norm(v, g, -1), [numbers(4, 3), numbers()]),
    "embedding bag, sums": (bags("sum"), [numbers(4, 3)]),
    "embedding bag, means": (bags("mean"), [numbers(4, 3)]),
    "embedding bag, weighted": (bags("sum"), [numbers(4, 3), numbers(6)]),
    "embedding bag, padded": (bags("mean", padding_idx=3), [numbers(4, 3)]),
    "attention": (attention, qkv),
    "attention, causal": (lambda q, k, v: attention(q, k, v, is_causal=True), qkv),
    "attention, causal, more keys than queries": (
        lambda q, k, v: attention(q[:, :, :1], k, v, is_causal=True),
        qkv,
    ),
    "attention, scaled": (lambda q, k, v: attention(q, k, v, scale=0.3), qkv),
    "attention, mask": (lambda q, k, v: attention(q, k, v, attn_mask=seen_by), qkv),
    "attention, numbers as a mask": (
        lambda q, k, v: attention(q, k, v, attn_mask=numbers(3, 3, seed=5)),
        qkv,
    ),
    "attention, a trained mask": (
        lambda q, k, v, mask: attention(q, k, v, attn_mask=mask),
        [*qkv, numbers(3, 3, seed=5)],
    ),
    "attention, groups of queries": (lambda q, k, v: attention(q, k, v, enable_gqa=True), fewer),
    "lstm": (
        lambda x, *weights: torch.lstm(
            x, [torch.zeros(1, 2, 3)] * 2, weights, True, 1, 0.0, True, False, True
        )[0],
        [numbers(2, 4, 3), numbers(12, 3), numbers(12, 3), numbers(12), numbers(12)],
    ),
}


@pytest.fixture(autouse=True)
def _formulas():
    load_formulas()


def lean(function, inputs, tangents, dual):
    """z and t under the lean mode, with tangents on those inputs that ``dual`` names."""
    with forward_ad.dual_level(), GraphFreeTangents():
        arguments = [
            forward_ad.make_dual(x, dx) if i in dual else x
            for i, (x, dx) in enumerate(zip(inputs, tangents, strict=True))
        ]
        return forward_ad.unpack_dual(function(*arguments))


def difference(function, inputs, tangents, dual, h=1e-6):
    """The derivative to about 1e-9, with no formula."""
    there, here = (
        function(
            *[
                x + s * (i in dual) * dx
                for i, (x, dx) in enumerate(zip(inputs, tangents, strict=False))
            ]
        )
        for s in (h, -h)
    )
    return ((there - here) / (2 * h)).detach()


@pytest.mark.parametrize("name", CASES)
def test_tangents_are_derivatives(name):
    function, inputs = CASES[name]
    inputs = [x.clone().requires_grad_() for x in inputs]
    tangents = [numbers(*x.shape, seed=20 + i) for i, x in enumerate(inputs)]
    every = range(len(inputs))
    for dual in (every, *([i] for i in every)):  # all together, and one by one
        z, t = lean(function, inputs, tangents, dual)
        assert not t.requires_grad
        torch.testing.assert_close(z, function(*inputs), rtol=0, atol=1e-15)
        wanted = difference(function, inputs, tangents, dual)
        torch.testing.assert_close(t, wanted, rtol=0, atol=1e-8)


#: PyTorch has no formula for these
WITHOUT = ("embedding bag", "weight norm")


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(WITHOUT)])
def test_tangents_are_those_of_pytorch_to_rounding(name):
    function, inputs = CASES[name]
    tangents = [numbers(*x.shape, seed=20 + i) for i, x in enumerate(inputs)]
    every = range(len(inputs))
    for dual in (every, *([i] for i in every)):
        _, t = lean(function, inputs, tangents, dual)
        with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            arguments = [
                forward_ad.make_dual(x, dx) if i in dual else x
                for i, (x, dx) in enumerate(zip(inputs, tangents, strict=True))
            ]
            wanted = forward_ad.unpack_dual(function(*arguments)).tangent
        torch.testing.assert_close(t, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_function(name):
    function, inputs = CASES[name]
    inputs = [x.clone().requires_grad_() for x in inputs]
    tangents = [numbers(*x.shape, seed=20 + i) for i, x in enumerate(inputs)]
    z, _ = lean(function, inputs, tangents, range(len(inputs)))
    u = numbers(*z.shape, seed=40)
    plain = torch.autograd.grad(function(*inputs), inputs, u)
    for found, wanted in zip(torch.autograd.grad(z, inputs, u), plain, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)


#: Left to PyTorch's formula, whose graph is that of dual numbers.
LEFT = ("attention, a trained mask", "lstm")


@pytest.mark.parametrize("name", [name for name in CASES if name not in LEFT])
def test_the_graph_saves_what_that_of_an_ordinary_call_saves(name):
    """Tangents that the graph keeps alive would double the memory of a pass."""
    function, inputs = CASES[name]
    inputs = [x.clone().requires_grad_() for x in inputs]

    def total(call):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()), id):
            call()
        return sum(sizes)

    ordinary = total(lambda: function(*inputs))
    tangents = [torch.ones_like(x) for x in inputs]
    assert total(lambda: lean(function, inputs, tangents, range(len(inputs)))) <= ordinary


@pytest.mark.parametrize("name", ["sum", "difference", "contiguous", "product", "tanh", "linear"])
def test_what_a_later_graph_saves_keeps_no_tangent_alive(name):
    """Also outputs of functions that save nothing themselves, as residual connections."""
    function, inputs = CASES[name]
    saved = []
    with forward_ad.dual_level(), GraphFreeTangents():
        z = function(*[forward_ad.make_dual(x.clone().requires_grad_(), x) for x in inputs])
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, id):
            z * z
        assert saved
        for x in saved:
            assert forward_ad.unpack_dual(x).tangent is None
            assert x._base is None or forward_ad.unpack_dual(x._base).tangent is None


def test_every_rule_is_tried():
    tried = set()

    class Watching(GraphFreeTangents):
        def compute(self, func, args, kwargs):
            tried.add(func)
            return super().compute(func, args, kwargs)

    for function, inputs in CASES.values():
        with forward_ad.dual_level(), Watching():
            function(*[forward_ad.make_dual(x, torch.ones_like(x)) for x in inputs])
    rules = {RULES[func] for func in tried if func in RULES}
    assert rules == set(RULES.values())


def test_rows_that_attend_to_nothing():
    nothing = torch.zeros(3, 3, dtype=torch.bool)
    inputs = [x.clone().requires_grad_() for x in qkv]
    z, t = lean(lambda q, k, v: attention(q, k, v, attn_mask=nothing), inputs, qkv, range(3))
    assert bool(t.isfinite().all()) or not bool(z.isfinite().all())


def attends_as_torch(function, inputs, tangents):
    """Outputs and gradients are torch's, the tangent is its derivative; returns the outputs."""
    z, t = lean(function, inputs, tangents, range(3))
    wanted = function(*inputs)
    torch.testing.assert_close(z, wanted, rtol=0, atol=1e-14)
    torch.testing.assert_close(
        t, difference(function, inputs, tangents, range(3)), atol=1e-8, rtol=0
    )
    u = numbers(*z.shape, seed=40)
    plain = torch.autograd.grad(wanted, inputs, u)
    for found, own in zip(torch.autograd.grad(z, inputs, u), plain, strict=True):
        torch.testing.assert_close(found, own, rtol=0, atol=1e-13)
    return z


@pytest.mark.parametrize(
    ("order", "lengths", "is_causal"),
    [
        ((0, 1, 2, 3), (65, 65), True),
        ((0, 1, 2, 3), (7, 40), False),
        ((0, 2, 1, 3), (40, 7), True),
        ((0, 2, 1, 3), (65, 65), False),
        ((0, 2, 1, 3), (1, 1), True),
        ((2, 0, 1, 3), (7, 40), True),
        ((2, 0, 1, 3), (40, 7), False),
    ],
)
def test_attention_of_all_lengths_and_layouts(order, lengths, is_causal):
    """Outputs, where they lie in memory, and gradients are torch's; the tangent its derivative."""
    inputs = [
        numbers(*((2, 3, n, 8)[i] for i in order), seed=seed)
        .permute(*(order.index(i) for i in range(4)))
        .requires_grad_()
        for seed, n in enumerate((lengths[0], lengths[1], lengths[1]))
    ]
    tangents = [numbers(*x.shape, seed=20 + i) for i, x in enumerate(inputs)]

    def function(q, k, v):
        return attention(q, k, v, is_causal=is_causal)

    z = attends_as_torch(function, inputs, tangents)
    assert z.stride() == function(*inputs).stride()


def features_first(x):
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


UNUSUAL = {
    "features that are apart": (lambda q, k, v: attention(*map(features_first, (q, k, v))), qkv),
    "some features": (lambda q, k, v: attention(q[..., ::2], k[..., ::2], v[..., ::2]), qkv),
    "keys that are the same for all features": (
        lambda q, k, v: attention(q, k[..., :1].expand_as(k), v),
        qkv,
    ),
    "the same queries for all": (lambda q, k, v: attention(q[:1].expand(2, 4, 3, 5), k, v), qkv),
    "the same queries for all heads": (
        lambda q, k, v: attention(q[:, :1].expand(2, 4, 3, 5), k, v, is_causal=True),
        qkv,
    ),
    "the same query at all places": (
        lambda q, k, v: attention(q[:, :, :1].expand(2, 4, 3, 5), k, v),
        qkv,
    ),
    "fewer dimensions of queries": (lambda q, k, v: attention(q[0], k, v), qkv),
    "narrow values": (lambda q, k, v: attention(q, k, v[..., :2]), qkv),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_attention_of_unusual_tensors(name):
    """PyTorch leaves some of these to another kernel than the one whose gradients are used."""
    function, inputs = UNUSUAL[name]
    inputs = [x.clone().requires_grad_() for x in inputs]
    tangents = [numbers(*x.shape, seed=20 + i) for i, x in enumerate(inputs)]
    attends_as_torch(function, inputs, tangents)


@pytest.mark.parametrize("is_causal", [True, False])
def test_attention_inside_a_checkpoint(is_causal):
    """Which is run again, without tangents, by PyTorch's own function."""
    inputs = [x.clone().requires_grad_() for x in qkv]

    def function(q, k, v):
        return attention(q, k, v, is_causal=is_causal)

    z, t = lean(lambda *x: checkpoint(function, *x, use_reentrant=False), inputs, qkv, range(3))
    torch.testing.assert_close(t, difference(function, inputs, qkv, range(3)), atol=1e-8, rtol=0)
    plain = torch.autograd.grad(function(*inputs).square().sum(), inputs)
    for found, own in zip(torch.autograd.grad(z.square().sum(), inputs), plain, strict=True):
        torch.testing.assert_close(found, own, rtol=0, atol=1e-14)


def test_attention_in_half_precision_does_not_overflow():
    q, k, v = numbers(1, 1, 4, 16), numbers(1, 1, 8192, 16), numbers(1, 1, 8192, 16, seed=1) + 20
    exact = [0.1 * q, 0.1 * k, v]
    tangents = [torch.zeros_like(q), torch.zeros_like(k), v]
    _, wanted = lean(attention, exact, tangents, range(3))
    _, t = lean(attention, [x.half() for x in exact], [x.half() for x in tangents], range(3))
    torch.testing.assert_close(t.double(), wanted, rtol=5e-3, atol=0)


def test_attention_under_a_transform_of_others():
    """Nothing of it is wrapped, but a function with a backward of its own cannot run there."""
    q, k, v = (x.clone().requires_grad_() for x in qkv)
    with forward_ad.dual_level(), GraphFreeTangents():
        q = forward_ad.make_dual(q, qkv[1])
        found = torch.vmap(lambda _: attention(q, k, v).sum(), randomness="error")(torch.ones(2))
    assert found.shape == (2,)


def test_attention_computes_outputs_once():
    """P serves outputs and tangent: torch's kernel is asked for gradients alone."""
    inputs = [x.clone().requires_grad_() for x in qkv]
    with torch.profiler.profile() as seen:
        z, _ = lean(lambda q, k, v: attention(q, k, v, is_causal=True), inputs, qkv, range(3))
        z.sum().backward()
    names = {event.name for event in seen.events()}
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" not in names
    assert "aten::_scaled_dot_product_flash_attention_for_cpu_backward" in names


def test_attention_of_a_chosen_kernel_is_left_to_it():
    """Its gradients may be wanted with a graph, which the fused kernel's have not."""
    inputs = [x.clone().requires_grad_() for x in qkv]
    with sdpa_kernel(SDPBackend.MATH):
        z, _ = lean(attention, inputs, qkv, range(3))
    (first,) = torch.autograd.grad(z.square().sum(), inputs[:1], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), inputs[:1])
    assert bool(second.isfinite().all())


def test_attention_under_autocast_has_its_precision():
    inputs = [x.float().requires_grad_() for x in qkv]
    with torch.autocast("cpu", torch.bfloat16):
        z, t = lean(attention, inputs, [x.float() for x in qkv], range(3))
        wanted = attention(*inputs)
    assert z.dtype == t.dtype == torch.bfloat16
    assert torch.equal(z, wanted)


@pytest.mark.parametrize("shape", [(2, 4, 0, 5), (0, 4, 3, 5)])
def test_attention_of_nothing(shape):
    inputs = [numbers(*shape).requires_grad_() for _ in range(3)]
    z, t = lean(attention, inputs, [x.detach() for x in inputs], range(3))
    assert z.shape == t.shape == shape


def test_attention_with_dropout_has_one_mask():
    """The tangent belongs to the outputs' own mask."""
    inputs = [x.clone().requires_grad_() for x in qkv]

    def dropped(q, k, v):
        return attention(q, k, v, dropout_p=0.5)

    torch.manual_seed(0)
    z, t = lean(
        dropped, inputs, [torch.zeros_like(qkv[0]), torch.zeros_like(qkv[1]), qkv[2]], range(3)
    )
    torch.testing.assert_close(z.detach(), t)  # linear in v, with v as its own tangent


@pytest.mark.parametrize("how", ["view", "slice", "item", "in place"])
def test_what_is_changed_in_place_keeps_its_tangent(how):
    x = numbers(4, 3).requires_grad_()

    def function(x):
        y = x * 2
        if how == "view":
            y.view(-1)[:5].mul_(x.view(-1)[:5])
        elif how == "slice":
            part = y[:, 1:]
            part += x[:, 1:] ** 2
        elif how == "item":
            y[0] = x[1] * x[2]
        else:
            y.add_(x**3)
        return y + 1

    dx = numbers(4, 3, seed=3)
    z, t = lean(function, [x], [dx], [0])
    with forward_ad.dual_level():
        wanted = forward_ad.unpack_dual(function(forward_ad.make_dual(x, dx)))
    torch.testing.assert_close(t, wanted.tangent.detach())
    for found, own in zip(
        torch.autograd.grad(z.sum(), x), torch.autograd.grad(function(x).sum(), x), strict=True
    ):
        torch.testing.assert_close(found, own)


def test_a_derivative_inside_is_refused():
    x = numbers(3).requires_grad_()
    with forward_ad.dual_level(), GraphFreeTangents(), pytest.raises(DerivativeInsideError):
        torch.autograd.grad((forward_ad.make_dual(x, x.detach()) ** 2).sum(), x)


def test_functions_made_of_others_are_looked_into():
    """The linear layers inside multi-head attention follow the rule, and keep no tangent's graph."""
    model = nn.MultiheadAttention(4, 2, batch_first=True)
    seen = []

    class Watching(GraphFreeTangents):
        def compute(self, func, args, kwargs):
            seen.append(func)
            return super().compute(func, args, kwargs)

    x = numbers(2, 3, 4)
    with forward_ad.dual_level(), Watching():
        model(forward_ad.make_dual(x, x), x, x, need_weights=False)
    assert functional.linear in seen
    assert functional.scaled_dot_product_attention in seen
