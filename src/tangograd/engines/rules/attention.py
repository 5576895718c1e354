"""Fused attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tangograd.engines.rules.duals import Rule, cut, dual, plain, tangent_of, total


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
    return dual(z, t)


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
        dS = total(
            ([] if dQ is None else [dQ @ K.transpose(-2, -1)])
            + ([] if dK is None else [Q @ dK.transpose(-2, -1)])
        )
        assert dS is not None
        dP = dS.mul_(scale).sub_((P * dS).sum(-1, keepdim=True)).mul_(P)
        terms.append(dP @ V)
    return total(terms)
