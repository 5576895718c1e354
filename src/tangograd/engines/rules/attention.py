"""Fused attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from tangograd.engines.rules.duals import Rule, cut, dual, plain, tangent_of

#: of the queries of causal attention, each with the keys up to its last one
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
    """Outputs by PyTorch's fused kernel; ``d(P V) = P dV + (P ∘ dS) V - rowsum(P ∘ dS) P V``.

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
    Q, K, V = plain(query), plain(key), plain(value)
    z = func(Q, K, V, **options)
    with torch.no_grad():
        t = _attention_tangent((Q, K, V), duals[:3], z, attn_mask, is_causal, scale)
    return dual(z, t)


def _attention_tangent(
    values: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
    z: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    Q, K, V = values
    dQ, dK, dV = tangents
    scale = 1 / math.sqrt(Q.shape[-1]) if scale is None else scale
    groups = Q.shape[-3] // K.shape[-3] if Q.dim() > 2 else 1
    if groups > 1:
        K, V = K.repeat_interleave(groups, -3), V.repeat_interleave(groups, -3)
        dK, dV = (None if x is None else x.repeat_interleave(groups, -3) for x in (dK, dV))
    # products of heads that lie side by side in memory are slow: each gets its own place
    Q = Q.clone(memory_format=torch.contiguous_format).mul_(scale)
    K, V = K.contiguous(), V.contiguous()
    dQ = None if dQ is None else dQ * scale
    dV = None if dV is None else dV.contiguous()
    if not is_causal:
        return _rows_tangent((Q, K, V), (dQ, dK, dV), z, mask)
    length, parts = Q.shape[-2], []
    for n in range(BLOCKS):  # the first queries see only the first keys
        first, last = (i * length // BLOCKS for i in (n, n + 1))
        own, seen = slice(first, last), slice(last)
        pairs = ((dQ, own), (dK, seen), (dV, seen))
        moving = [None if x is None else x[..., some, :] for x, some in pairs]
        resting = Q[..., own, :], K[..., seen, :], V[..., seen, :]
        parts.append(_rows_tangent(resting, moving, z[..., own, :], None, first))
    return torch.cat(parts, -2)


def _rows_tangent(
    values: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
    z: Tensor,
    mask: Tensor | None,
    first: int | None = None,
) -> Tensor:
    """The tangent for some of the queries, which have the scale in them.

    Args:
        values: queries, keys and values.
        tangents: theirs.
        z: the outputs.
        mask: as for PyTorch's attention.
        first: of causal attention, the number of the first query.
    """
    Q, K, V = values
    dQ, dK, dV = tangents
    S = Q @ K.transpose(-2, -1)
    if first is not None:
        S.add_(torch.full(S.shape[-2:], -math.inf, dtype=S.dtype, device=S.device).triu_(first + 1))
    if mask is not None:
        S = S.masked_fill_(~mask, -math.inf) if mask.dtype == torch.bool else S.add_(mask)
    P = torch.softmax(S, -1)
    P = torch.where(P.isnan(), 0.0, P) if mask is not None else P  # rows that see nothing
    terms = [] if dV is None else [P @ dV]
    pairs = ([] if dQ is None else [(dQ, K)]) + ([] if dK is None else [(Q, dK)])
    if pairs:
        left, right = (torch.cat(side, -1) for side in zip(*pairs, strict=True))
        P_dS = (left @ right.transpose(-2, -1)).mul_(P)
        terms += [P_dS @ V, P_dS.sum(-1, keepdim=True).neg_() * z]
    return reduce(torch.add, terms)
