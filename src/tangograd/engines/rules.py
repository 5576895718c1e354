"""Tangents of single operations by hand: ``(x, dx) -> (f(x), Df(x) dx)``, the second without graph.

They are here because PyTorch has no formula (fused attention, ``embedding_bag``, ``weight_norm``),
or because its own is costlier: it multiplies by zeros where an input has no tangent, and keeps
tangents in the outputs' graph. Everything else goes through PyTorch's formula.

A rule is called with the function and its arguments, and returns dual outputs, or
``NotImplemented`` to leave the call to PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils import _pytree as pytree

aten = torch.ops.aten
Rule = Callable[..., Any]

MAXIMUM = 2  # a mode of embedding_bag
LAYERS: frozenset[Callable[..., Any]] = frozenset(
    {functional.linear, torch.conv1d, torch.conv2d, torch.conv3d}
)


def tangent_of(x: object) -> Tensor | None:
    """The tangent of a dual number; ``None`` for anything else."""
    return forward_ad.unpack_dual(x).tangent if isinstance(x, Tensor) else None


def plain(x: Any) -> Any:
    """A dual number without its tangent, with its graph; anything else as it is."""
    return forward_ad.unpack_dual(x).primal if isinstance(x, Tensor) else x


def _sum(terms: list[Tensor]) -> Tensor | None:
    total: Tensor | None = None
    for term in terms:
        total = term if total is None else total + term
    return total


def _dual(z: Tensor, t: Tensor | None) -> Tensor:
    if t is None:
        return z
    dual: Tensor = forward_ad.make_dual(z, t if t.dtype == z.dtype else t.to(z.dtype))
    return dual


def cut(outputs: Any, args: tuple[Any, ...] = ()) -> Any:
    """Take tangents out of the graph; what was changed in place stays the same object."""
    if isinstance(outputs, tuple | list):
        return pytree.tree_map_only(Tensor, lambda x: cut(x, args), outputs)
    t = tangent_of(outputs)
    if t is None or not t.requires_grad or any(outputs is x for x in args):
        return outputs
    return _dual(plain(outputs), t.detach())


def _layer(
    func: Rule,
    input: Tensor,  # noqa: A002 - torch's name
    weight: Tensor,
    bias: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``d(x W + b) = dx W + x dW + db``."""
    dx, dW, db = tangent_of(input), tangent_of(weight), tangent_of(bias)
    x, W, b = plain(input), plain(weight), plain(bias)
    z = func(x, W, b, *args, **kwargs)
    with torch.no_grad():
        t = None
        if dW is not None:
            t = func(x, dW, db, *args, **kwargs)
        if dx is not None:
            through = func(dx, W, db if t is None else None, *args, **kwargs)
            t = through if t is None else t.add_(through)
        elif dW is None and db is not None:
            return NotImplemented
    return _dual(z, t)


def _bilinear(func: Rule, a: Tensor, b: Tensor) -> Any:
    """``d(a b) = da b + a db``."""
    da, db = tangent_of(a), tangent_of(b)
    a, b = plain(a), plain(b)
    z = func(a, b)
    with torch.no_grad():
        t = _sum(([] if da is None else [func(da, b)]) + ([] if db is None else [func(a, db)]))
    return _dual(z, t)


def _sum_or_difference(
    sign: float, func: Rule, a: Any, b: Any, *, alpha: float = 1.0, **kwargs: Any
) -> Any:
    """``d(a + αb) = da + α db``."""
    if kwargs:
        return NotImplemented
    da, db = tangent_of(a), tangent_of(b)
    z = func(plain(a), plain(b), **({} if alpha == 1 else {"alpha": alpha}))
    if not isinstance(z, Tensor):
        return z
    with torch.no_grad():
        if da is not None and db is not None:
            t = torch.add(da, db, alpha=sign * alpha)
        elif da is not None:
            t = da.expand_as(z)
        elif db is not None:
            t = (db * (sign * alpha)).expand_as(z)
        else:
            return z
    return _dual(z, t)


def _product(func: Rule, a: Any, b: Any, **kwargs: Any) -> Any:
    """``d(a b) = da b + a db``, element by element."""
    if kwargs:
        return NotImplemented
    da, db = tangent_of(a), tangent_of(b)
    a, b = plain(a), plain(b)
    z = func(a, b)
    with torch.no_grad():
        t = _sum(([] if da is None else [da * b]) + ([] if db is None else [a * db]))
    return _dual(z, t) if isinstance(z, Tensor) else z


def _linear(func: Rule, x: Any, *args: Any, **kwargs: Any) -> Any:
    """``d f(x) = f(dx)``, for functions that return new tensors: views keep to PyTorch's rules."""
    dx = tangent_of(x)
    if dx is None:
        return NotImplemented
    z = func(plain(x), *args, **kwargs)
    with torch.no_grad():
        t = func(dx, *args, **kwargs)
    return _dual(z, t)


def _pointwise(
    backward: Callable[..., Tensor], func: Rule, x: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """A function of each element: the derivative's formula serves both directions."""
    dx, x = tangent_of(x), plain(x)
    z = func(x, *args, **kwargs)
    if dx is None:
        return z
    with torch.no_grad():
        t = backward(dx, x, z, *args, **kwargs)
    return _dual(z, t)


def _softmax(func: Rule, x: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> Any:
    """The softmax has a symmetric Jacobian, so its backward is its tangent."""
    if args or kwargs or not isinstance(dim, int):
        return NotImplemented
    dx, x = tangent_of(x), plain(x)
    z = func(x, dim)
    if dx is None:
        return z
    with torch.no_grad():
        t = aten._softmax_backward_data(dx.to(z.dtype), z, dim, z.dtype)
    return _dual(z, t)


def _normalised(
    x: Tensor, dx: Tensor | None, dims: tuple[int, ...], eps: float
) -> tuple[Tensor, Tensor | None]:
    """``x̂ = (x - mean)/σ`` and ``dx̂ = (dx - mean dx - x̂ mean(x̂ dx))/σ``."""
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    rstd = (variance + eps).rsqrt()
    normal = (x - mean).mul_(rstd)
    if dx is None:
        return normal, None
    along = (normal * dx).mean(dims, keepdim=True)
    return normal, (dx - dx.mean(dims, keepdim=True)).sub_(normal * along).mul_(rstd)


def _affine(
    normal: Tensor,
    moved: Tensor | None,
    w: Tensor | None,
    dw: Tensor | None,
    db: Tensor | None,
) -> Tensor | None:
    """``d(x̂ w + b)``, for w and b of shapes that broadcast."""
    terms = []
    if moved is not None:
        terms.append(moved if w is None else moved.mul_(w))
    if dw is not None:
        terms.append(normal.mul_(dw))
    if db is not None:
        terms.append(db)
    return _sum(terms)


def _layer_norm(
    func: Rule,
    input: Tensor,  # noqa: A002 - torch's name
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *args: Any,
) -> Any:
    """Over the last dimensions."""
    dx, dw, db = tangent_of(input), tangent_of(weight), tangent_of(bias)
    x, w, b = plain(input), plain(weight), plain(bias)
    z = func(x, normalized_shape, w, b, eps, *args)
    if dx is None and dw is None and db is None:
        return z
    with torch.no_grad():
        dims = tuple(range(-len(tuple(normalized_shape)), 0))
        t = _affine(*_normalised(x, dx, dims, eps), w, dw, db)
    return _dual(z, None if t is None else t.expand_as(z))


def _group_norm(
    func: Rule,
    input: Tensor,  # noqa: A002
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *args: Any,
) -> Any:
    """Over groups of channels, which are the second dimension."""
    dx, dw, db = tangent_of(input), tangent_of(weight), tangent_of(bias)
    x, w, b = plain(input), plain(weight), plain(bias)
    z = func(x, num_groups, w, b, eps, *args)
    if dx is None and dw is None and db is None:
        return z
    with torch.no_grad():
        groups = (x.shape[0], num_groups, -1)
        normal, moved = _normalised(
            x.reshape(groups), None if dx is None else dx.reshape(groups), (-1,), eps
        )
        channels = (-1, *[1] * (x.dim() - 2))
        w, dw, db = (None if y is None else y.reshape(channels) for y in (w, dw, db))
        moved = None if moved is None else moved.reshape(x.shape)
        t = _affine(normal.reshape(x.shape), moved, w, dw, db)
    return _dual(z, None if t is None else t.expand_as(z))


def _batch_norm(
    func: Rule,
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    *args: Any,
) -> Any:
    """Over everything but channels in training; with given numbers otherwise."""
    dx, dw, db = tangent_of(input), tangent_of(weight), tangent_of(bias)
    x, w, b = plain(input), plain(weight), plain(bias)
    z = func(x, w, b, running_mean, running_var, training, momentum, eps, *args)
    if dx is None and dw is None and db is None:
        return z
    channels = (1, -1, *[1] * (x.dim() - 2))
    with torch.no_grad():
        w, dw, db = (None if y is None else y.reshape(channels) for y in (w, dw, db))
        if training:
            normal, moved = _normalised(x, dx, tuple(i for i in range(x.dim()) if i != 1), eps)
        else:
            assert running_mean is not None
            assert running_var is not None
            rstd = (running_var.reshape(channels) + eps).rsqrt()
            normal = (x - running_mean.reshape(channels)) * rstd
            moved = None if dx is None else dx * rstd
        t = _affine(normal, moved, w, dw, db)
    return _dual(z, None if t is None else t.expand_as(z))


def _embedding(func: Rule, weight: Tensor, indices: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Linear in the weight."""
    dW = tangent_of(weight)
    z = func(plain(weight), indices, *args, **kwargs)
    if dW is None:
        return z
    with torch.no_grad():
        t = func(dW, indices, *args, **kwargs)
    return _dual(z, t)


def _embedding_bag(
    func: Rule,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    *args: Any,
) -> Any:
    """Sums and means are linear in the weight, and in the weights of the samples."""
    if mode == MAXIMUM:
        return NotImplemented
    dW, dw = tangent_of(weight), tangent_of(per_sample_weights)
    W, w = plain(weight), plain(per_sample_weights)

    def bags(W: Tensor, w: Tensor | None) -> Any:
        return func(W, indices, offsets, scale_grad_by_freq, mode, sparse, w, *args)

    z, *others = bags(W, w)
    with torch.no_grad():
        t = _sum(
            ([] if dW is None else [bags(dW, w)[0]]) + ([] if dw is None else [bags(W, dw)[0]])
        )
    return (_dual(z, t), *others)


def _weight_norm(func: Rule, v: Tensor, g: Tensor, dim: int = 0) -> Any:
    """``W = g v/‖v‖``, norms over all dimensions but one."""
    dv, dg = tangent_of(v), tangent_of(g)
    v, g = plain(v), plain(g)
    z = func(v, g, dim)
    with torch.no_grad():
        norm = torch.norm_except_dim(v, 2, dim)
        direction = v / norm
        terms = []
        if dg is not None:
            terms.append(direction * dg)
        if dv is not None:
            dims = [i for i in range(v.dim()) if i != dim % v.dim()] if dim != -1 else None
            along = (direction * dv).sum(dims, keepdim=True) if dims != [] else direction * dv
            terms.append((dv - direction * along) * (g / norm))
    return _dual(z, _sum(terms))


def _attention(
    func: Rule,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Outputs by PyTorch's fused kernel; ``d(P V) = P dV + P ∘ (dS - rowsum(P ∘ dS)) V``.

    With ``S = scale Q Kᵀ + mask`` and ``P = softmax S``. With dropout the mask is needed, so the
    call goes to a kernel that has a formula.
    """
    duals = [tangent_of(x) for x in (query, key, value, attn_mask)]
    options = {
        "attn_mask": attn_mask,
        "dropout_p": dropout_p,
        "is_causal": is_causal,
        "scale": scale,
        "enable_gqa": enable_gqa,
    }
    if all(dual is None for dual in duals):
        return func(query, key, value, **options)
    if dropout_p > 0 or duals[3] is not None:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return cut(func(query, key, value, **options))
    dQ, dK, dV = duals[:3]
    Q, K, V = plain(query), plain(key), plain(value)
    z = func(Q, K, V, **options)
    with torch.no_grad():
        t = _attention_tangent(Q, K, V, dQ, dK, dV, attn_mask, is_causal, scale)
    return _dual(z, t)


def _attention_tangent(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    dQ: Tensor | None,
    dK: Tensor | None,
    dV: Tensor | None,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Tensor | None:
    scale = 1 / math.sqrt(Q.shape[-1]) if scale is None else scale
    groups = Q.shape[-3] // K.shape[-3] if Q.dim() > 2 else 1
    if groups > 1:
        K, V = K.repeat_interleave(groups, -3), V.repeat_interleave(groups, -3)
        dK, dV = (None if x is None else x.repeat_interleave(groups, -3) for x in (dK, dV))
    S = (Q * scale) @ K.transpose(-2, -1)
    if is_causal:
        ones = torch.ones(S.shape[-2:], dtype=torch.bool, device=S.device)
        S.masked_fill_(ones.tril_().logical_not_(), -math.inf)
    if mask is not None:
        S = S.masked_fill_(~mask, -math.inf) if mask.dtype == torch.bool else S.add_(mask)
    P = torch.softmax(S, -1)
    P = torch.where(P.isnan(), 0.0, P) if mask is not None else P  # rows that see nothing
    terms = [] if dV is None else [P @ dV]
    if dQ is not None or dK is not None:
        dS = _sum(
            ([] if dQ is None else [dQ @ K.transpose(-2, -1)])
            + ([] if dK is None else [Q @ dK.transpose(-2, -1)])
        )
        assert dS is not None
        dP = dS.mul_(scale).sub_((P * dS).sum(-1, keepdim=True)).mul_(P)
        terms.append(dP @ V)
    return _sum(terms)


def _recurrent(func: Rule, *args: Any, **kwargs: Any) -> Any:
    """The formula is there for PyTorch's own kernels, not for oneDNN's."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        return cut(func(*args, **kwargs))
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _gelu(dx: Tensor, x: Tensor, z: Tensor, approximate: str = "none") -> Tensor:
    del z
    result: Tensor = aten.gelu_backward(dx, x, approximate=approximate)
    return result


RULES: dict[Callable[..., Any], Rule] = {
    **dict.fromkeys(LAYERS, _layer),
    **dict.fromkeys(
        (
            torch.matmul,
            Tensor.matmul,
            Tensor.__matmul__,
            torch.bmm,
            Tensor.bmm,
            torch.mm,
            Tensor.mm,
        ),
        _bilinear,
    ),
    **dict.fromkeys(
        (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), partial(_sum_or_difference, 1.0)
    ),
    **dict.fromkeys((torch.sub, Tensor.sub, Tensor.__sub__), partial(_sum_or_difference, -1.0)),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), _product),
    **dict.fromkeys((Tensor.contiguous, Tensor.clone, torch.clone), _linear),
    **dict.fromkeys(
        (torch.relu, Tensor.relu),
        partial(_pointwise, lambda dx, _, z: aten.threshold_backward(dx, z, 0)),
    ),
    **dict.fromkeys(
        (torch.tanh, Tensor.tanh), partial(_pointwise, lambda dx, _, z: aten.tanh_backward(dx, z))
    ),
    **dict.fromkeys(
        (torch.sigmoid, Tensor.sigmoid),
        partial(_pointwise, lambda dx, _, z: aten.sigmoid_backward(dx, z)),
    ),
    torch._C._nn.silu: partial(_pointwise, lambda dx, x, _: aten.silu_backward(dx, x)),
    functional.gelu: partial(_pointwise, _gelu),
    **dict.fromkeys((torch.softmax, Tensor.softmax), _softmax),
    torch.layer_norm: _layer_norm,
    torch.group_norm: _group_norm,
    torch.batch_norm: _batch_norm,
    torch.embedding: _embedding,
    torch.embedding_bag: _embedding_bag,
    torch._weight_norm: _weight_norm,
    functional.scaled_dot_product_attention: _attention,
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrent),
}
