"""Past this γ the theorem cannot hold."""

from __future__ import annotations

import torch
from torch import Tensor

from tangograd.gamma.base import average


class NecessaryBound:
    """Watches the condition on γ that any R² implies.

    The trace of ``E Â² ≼ R² E Â`` gives ``γ ≤ 1/R² ≤ tr F / tr E Â²``, a necessary condition for
    the theorem. (Past twice this, ``E‖v‖²`` grows without bound at δt = 0: the map
    ``S ↦ E (I-γÂ) S (I-γÂ)`` is self-adjoint and increases the trace of I.) In the form that fits
    the estimate, with B the samples in a batch and all products in the metric of C:

    * one outer product: ``γ ≤ E‖g̃‖² / E‖g̃‖⁴``, the paper's;
    * a mean of B of them: ``γ ≤ tr F / (E‖g̃‖⁴/B + (1-1/B) tr F²)``;
    * a mean of B closed forms ``F_x``: the same with ``E tr F_x²`` in place of ``E‖g̃‖⁴``,

    where ``tr F² = E (g̃ᵀg̃')²`` over pairs of samples, and ``tr F_x² = E (g̃ᵀg̃')²`` over pairs of
    pseudo-samples for one x.

    Example: outer products of constant norm 1, at γ = 2.

        >>> bound = NecessaryBound()
        >>> for _ in range(16):
        ...     bound.update(2 * torch.eye(1), torch.ones(1), torch.zeros(1), batch=1.0)
        >>> bound.excess
        2.0
    """

    #: Pseudo-gradients to see before saying anything.
    ENOUGH = 16

    def __init__(self) -> None:
        self.seen = 0
        self._trace, self._within, self._between = (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)
        self._batch = 1.0

    def update(self, gram: Tensor, weights: Tensor, sample: Tensor, batch: float) -> None:
        """See n pseudo-gradients of one step.

        Args:
            gram: ``(n, n)``, the products ``γ g̃_iᵀ C g̃_j``.
            weights: ``(n,)``, relative weights of the samples.
            sample: ``(n,)``, which sample each belongs to: a sample that comes twice has two
                pseudo-samples, because F̂ averages over them.
            batch: B, the number of independent terms in that step's F̂.
        """
        n = len(weights)
        self.seen += n
        self._batch = batch
        self._trace = average(*self._trace, gram.diagonal(), weights)
        i, j = torch.triu_indices(n, n, offset=1)
        same = sample[i] == sample[j]
        squares, pair_weights = gram[i, j].square(), weights[i] * weights[j]
        if bool(same.any()):
            self._within = average(*self._within, squares[same], weights[i][same])
        else:
            self._within = average(*self._within, gram.diagonal().square(), weights)
        self._between = average(*self._between, squares[~same], pair_weights[~same])

    @property
    def excess(self) -> float:
        """γ over the necessary bound; 0 until :attr:`ENOUGH` has been seen."""
        if self.seen < self.ENOUGH or self._trace[0] == 0:
            return 0.0
        one = 1 / self._batch
        return (one * self._within[0] + (1 - one) * self._between[0]) / self._trace[0]
