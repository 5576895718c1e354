"""Fused scaled-dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tangograd.engines.rules.duals import Rule, detach_tangent, make_dual, primal, tangent_of

#: The number of blocks of queries in causal attention, each with the keys up to its last query.
BLOCKS = 2


def attention(
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
    """Apply attention: ``d(P V) = P dV + (P ∘ dS) V - rowsum(P ∘ dS) P V``.

    With ``S = scale Q Kᵀ + mask`` and ``P = softmax S``. Gradients are those of PyTorch's fused
    kernel. Where its backward kernel can be called alone, the outputs ``P V`` come from the P that
    the tangent needs; elsewhere from PyTorch. With dropout the mask is needed, so the call goes to
    a kernel that has a forward formula.
    """
    duals = [tangent_of(x) for x in (query, key, value, attn_mask)]
    func = partial(func, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal)
    func = partial(func, scale=scale, enable_gqa=enable_gqa)
    if all(dual is None for dual in duals):
        return func(query, key, value)
    if dropout_p > 0 or duals[3] is not None or 0 in (query.numel(), key.numel()):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return detach_tangent(func(query, key, value))
    Q, K, V = primal(query), primal(key), primal(value)
    scale = 1 / math.sqrt(Q.shape[-1]) if scale is None else scale
    if attn_mask is None and _has_gradients(Q, K, V):
        return make_dual(*_Attention.apply(is_causal, scale, Q, K, V, *duals[:3]))
    z = func(Q, K, V)
    with torch.no_grad():
        t = _rows((Q, K, V), duals[:3], attn_mask, is_causal, scale).t
    return make_dual(z, t)


def _has_gradients(Q: Tensor, K: Tensor, V: Tensor) -> bool:
    """Return whether the fused backward kernel can be called without the forward kernel."""
    return (
        Q.device.type == "cpu"
        and Q.dtype == K.dtype == V.dtype
        and Q.dtype in (torch.float32, torch.float64)
        and Q.dim() == K.dim() == V.dim() == 4
        and Q.shape[:2] == K.shape[:2] == V.shape[:2]
        and Q.shape[-1] == K.shape[-1] == V.shape[-1]
        and K.shape[2] == V.shape[2]
        and Q.stride(-1) == K.stride(-1) == V.stride(-1) == 1  # of which the kernel is sure
        and torch.backends.cuda.flash_sdp_enabled()  # a switch of all devices
        and not torch.is_autocast_enabled("cpu")  # which goes by the name of the function
        and not torch._C._are_functorch_transforms_active()
    )


class _Attention(torch.autograd.Function):
    """Outputs and tangents from one P, which is not kept, and PyTorch's fused backward kernel."""

    @staticmethod
    def forward(ctx: Any, is_causal: bool, scale: float, *duals: Any) -> tuple[Tensor, Tensor]:
        Q, K, V, *tangents = duals
        found = _rows((Q, K, V), tangents, None, is_causal, scale)
        # in the order of torch's own function, by which a checkpoint, run again, replaces these
        ctx.save_for_backward(K, Q, V, found.logsumexp, found.z)
        ctx.options = is_causal, scale
        ctx.mark_non_differentiable(found.t)
        return found.z, found.t

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        is_causal, scale = ctx.options
        K, Q, V, logsumexp, z = ctx.saved_tensors
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        found = backward(g, Q, K, V, z, logsumexp, 0.0, is_causal, scale=scale)
        return (None, None, *found, None, None, None)


class _Rows(NamedTuple):
    """Outputs, their tangent, and ``log Σ exp S`` of some or all queries."""

    z: Tensor
    t: Tensor
    logsumexp: Tensor


def _rows(
    values: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> _Rows:
    Q, K, V = values
    dQ, dK, dV = tangents
    groups = Q.shape[-3] // K.shape[-3] if Q.dim() > 2 else 1
    if groups > 1:
        K, V = K.repeat_interleave(groups, -3), V.repeat_interleave(groups, -3)
        dK, dV = (None if x is None else x.repeat_interleave(groups, -3) for x in (dK, dV))
    # products of heads that lie side by side in memory are slow: each gets its own place
    Q = Q.clone(memory_format=torch.contiguous_format).mul_(scale)
    K = K.contiguous()
    dQ = None if dQ is None else dQ * scale
    both = V.contiguous() if dV is None else torch.cat((V, dV), -1)
    length, parts = Q.shape[-2], []
    blocks = min(BLOCKS, length) if is_causal else 1
    for n in range(blocks):  # the first queries see only the first keys
        first, last = (i * length // blocks for i in (n, n + 1))
        own, seen = slice(first, last), slice(last if is_causal else None)
        moving = [None if x is None else x[..., s, :] for x, s in ((dQ, own), (dK, seen))]
        resting = Q[..., own, :], K[..., seen, :], both[..., seen, :]
        parts.append(_block(resting, moving, mask, dV is not None, first if is_causal else None))
    z, t, logsumexp = zip(*parts, strict=True)
    return _Rows(_joined(z, values[0]), _joined(t, values[0]), torch.cat(logsumexp, -1))


def _joined(parts: Sequence[Tensor], Q: Tensor) -> Tensor:
    """Concatenate parts of the queries, in memory features last and other dimensions as in Q."""
    order = list(range(parts[0].dim()))
    if Q.dim() == len(order):
        order[:-1] = sorted(order[:-1], key=Q.stride, reverse=True)
    whole = torch.cat([x.permute(*order) for x in parts], order.index(len(order) - 2))
    return whole.permute(*(order.index(i) for i in range(len(order))))


def _block(
    values: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
    mask: Tensor | None,
    moves: bool,
    first: int | None = None,
) -> _Rows:
    """Compute attention of some of the queries, which are already scaled.

    Args:
        values: queries, keys, and values; the tangents of values are appended as columns.
        tangents: of queries and keys.
        mask: as for PyTorch's attention.
        moves: whether values have tangents.
        first: the position of the first query in causal attention.
    """
    Q, K, both = values
    dQ, dK = tangents
    S = Q @ K.transpose(-2, -1)
    if first is not None:
        S.add_(torch.full(S.shape[-2:], -math.inf, dtype=S.dtype, device=S.device).triu_(first + 1))
    if mask is not None:
        S = S.masked_fill_(~mask, -math.inf) if mask.dtype == torch.bool else S.add_(mask)
    highest = S.amax(-1, keepdim=True)
    E = S.sub_(highest).exp_()  # P = E / total
    total = E.sum(-1, keepdim=True)
    if mask is not None:  # rows that see nothing
        E, total = torch.where(E.isnan(), 0.0, E), torch.where(total.isnan(), 1.0, total)
    logsumexp = (highest + total.log()).squeeze(-1)
    if E.dtype.itemsize < 4:  # whose sums could be too large for it
        E, total = E / total, torch.ones_like(total)
    width = both.shape[-1] // 2 if moves else both.shape[-1]
    V, (z, *terms) = both[..., :width], (E @ both).split(width, -1)
    z = z / total
    pairs = ([] if dQ is None else [(dQ, K)]) + ([] if dK is None else [(Q, dK)])
    if pairs:
        left, right = (torch.cat(side, -1) for side in zip(*pairs, strict=True))
        E_dS = (left @ right.transpose(-2, -1)).mul_(E)
        terms += [E_dS @ V, E_dS.sum(-1, keepdim=True).neg_() * z]
    return _Rows(z, reduce(torch.add, terms) / total, logsumexp)
