"""The largest γ for which the paper's theorem can hold."""

from __future__ import annotations

import torch
from torch import Tensor


def necessary_gamma(fishers: Tensor, *, weights: Tensor | None = None, batch: float = 1.0) -> float:
    """Return ``tr F / tr E Â²``, a bound on γ that any R² of the theorem implies.

    The trace of ``E Â² ≼ R² E Â`` gives ``γ ≤ 1/R² ≤ tr F / tr E Â²``. Past twice this bound,
    ``E‖v‖²`` grows without limit at δt = 0: the map ``S ↦ E (I-γÂ) S (I-γÂ)`` is self-adjoint and
    increases the trace of I. With Â the mean of ``batch`` independent draws ``F_x``,

    ``tr E Â² = E tr F_x² / B + (1 - 1/B) tr F²``,  ``F = E F_x``.

    Args:
        fishers: the values of ``F_x``, shape ``(n, d, d)``, in the metric of C: outer products
            ``g̃g̃ᵀ`` for sampled estimates, ``J_xᵀ H_x J_x`` for the closed form.
        weights: their probabilities, shape ``(n,)``; equal by default.
        batch: B, the number of draws of which Â is the mean.

    Example: outer products of constant norm 2 are bounded by ``1/‖g̃‖²``.

        >>> necessary_gamma(torch.tensor([[[4.0]]]))
        0.25
    """
    p = torch.full((len(fishers),), 1 / len(fishers)).to(fishers) if weights is None else weights
    F = torch.einsum("n,nij->ij", p, fishers)
    within = (p * fishers.square().sum((1, 2))).sum()
    between = F.square().sum()
    return float(F.trace() / (within / batch + (1 - 1 / batch) * between))
