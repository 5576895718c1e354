"""The four estimates F̂ of the Fisher matrix, in output space.

With ``J_i`` the Jacobian of the outputs ``z_i`` of sample i, ``s̃_i`` the score of a pseudo-sample
``ỹ_i ~ p_θ(·|x_i)``, ``H_i`` the Fisher information of the output distribution and ``w_i`` the
weights (summing to 1, so ``1/B`` each when all samples count alike):

=============  ====================================  ============================================
``fisher=``    F̂                                     E F̂ over ỹ
=============  ====================================  ============================================
``expected``   ``Σ w_i J_iᵀ H_i J_i``                itself: closed form, no sampling noise
``sampled``    ``Σ w_i g̃_i g̃_iᵀ``                    the Fisher matrix; Definition 1 at B=1
``minibatch``  ``h hᵀ`` with ``h = Σ √w_i g̃_i``      the Fisher matrix: with equal weights this is
                                                     ``B g̃g̃ᵀ``, g̃ the batch mean (the paper's
                                                     minibatch equation); rank one
``empirical``  ``Σ w_i g_i g_iᵀ``                    not the Fisher matrix but the second moment of
                                                     the gradients: the paper's "outer product"
=============  ====================================  ============================================

``h`` has ``√w_i`` because pseudo-gradients are independent and centred given x: the cross terms of
``h hᵀ`` vanish on average and ``E h hᵀ = Σ w_i E g̃_i g̃_iᵀ``.

An estimate is three choices: whose scores stand in for ``s̃`` (the model's or the data's); the
output cotangent ``product`` whose pull-back through the model is ``F̂ v`` when ``t_i = J_i v``; and
the vectors whose outer products make F̂ up, for the statistics of γ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

PseudoScores = Callable[[], Tensor]  # s̃, computed on first use


class OutputFamily(Protocol):
    """What an estimate asks of a likelihood."""

    def score(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        """``∂ℓ/∂z``."""

    def sample(self, outputs: Tensor, /) -> Tensor:
        """``ỹ ~ p(·|z)``."""

    def fisher_product(self, outputs: Tensor, tangents: Tensor, /) -> Tensor:
        """``H t``."""


class FisherEstimate(NamedTuple):
    """One way to estimate the Fisher matrix from a batch; see the table above.

    Attributes:
        pseudo_scores: ``(family, z, s) -> s̃``.
        product: ``(family, z, t, s̃, w) -> `` the output cotangent of ``F̂ v``.
        factor: ``(s̃, w, position) -> (cotangent, weight)`` of one of the vectors whose outer
            products make F̂ up, for a position in [0, 1) along the batch.
        rank_one: F̂ is a single outer product, so that batching adds no independent terms.
        closed_form: F̂ has no noise from ỹ: it is an average over all pseudo-samples.
    """

    pseudo_scores: Callable[[OutputFamily, Tensor, Tensor], Tensor]
    product: Callable[[OutputFamily, Tensor, Tensor, PseudoScores, Tensor], Tensor]
    factor: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
    rank_one: bool = False
    closed_form: bool = False


def _scores_from_model(family: OutputFamily, z: Tensor, s: Tensor) -> Tensor:
    del s
    wide = z.float() if z.dtype.itemsize < 4 else z  # few samplers know half precision
    y = family.sample(wide)
    return family.score(z, y.to(z.dtype) if y.is_floating_point() else y)


def _scores_from_data(family: OutputFamily, z: Tensor, s: Tensor) -> Tensor:
    del family, z
    return s


def _closed_form(
    family: OutputFamily, z: Tensor, t: Tensor, s_tilde: PseudoScores, w: Tensor
) -> Tensor:
    """``w_i H_i t_i``."""
    del s_tilde
    return rows(w, z) * family.fisher_product(z, t)


def _outer_products(
    family: OutputFamily, z: Tensor, t: Tensor, s_tilde: PseudoScores, w: Tensor
) -> Tensor:
    """``w_i s̃_i ⟨s̃_i, t_i⟩``."""
    del family
    return rows(w * row_dot(s_tilde(), t), z) * s_tilde()


def _one_outer_product(
    family: OutputFamily, z: Tensor, t: Tensor, s_tilde: PseudoScores, w: Tensor
) -> Tensor:
    """``√w_i s̃_i Σ_j √w_j ⟨s̃_j, t_j⟩``."""
    del family
    root = w.sqrt()
    return rows(root * (root * row_dot(s_tilde(), t)).sum(), z) * s_tilde()


def _one_row(s_tilde: Tensor, w: Tensor, position: float) -> tuple[Tensor, Tensor]:
    """``g̃_i`` for the sample at that position, and its weight relative to the mean weight."""
    i = int(position * len(w))
    cotangent = torch.zeros_like(s_tilde)
    cotangent[i] = s_tilde[i]
    return cotangent, w[i] * len(w)


def _whole_batch(s_tilde: Tensor, w: Tensor, position: float) -> tuple[Tensor, Tensor]:
    """``h = Σ √w_i g̃_i``."""
    del position
    return rows(w.sqrt(), s_tilde) * s_tilde, w.new_ones(())


ESTIMATES: dict[str, FisherEstimate] = {
    "expected": FisherEstimate(_scores_from_model, _closed_form, _one_row, closed_form=True),
    "sampled": FisherEstimate(_scores_from_model, _outer_products, _one_row),
    "minibatch": FisherEstimate(
        _scores_from_model, _one_outer_product, _whole_batch, rank_one=True
    ),
    "empirical": FisherEstimate(_scores_from_data, _outer_products, _one_row),
}


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    """``⟨a_i, b_i⟩`` for each row i, shape ``(B,)``.

    >>> row_dot(torch.tensor([[1.0, 2.0], [0.0, 3.0]]), torch.tensor([[1.0, 1.0], [5.0, 1.0]]))
    tensor([3., 3.])
    """
    return (a * b).reshape(len(a), -1).sum(1)


def rows(per_row: Tensor, like: Tensor) -> Tensor:
    """``per_row``, of shape ``(B,)``, shaped to multiply the rows of ``like``.

    >>> rows(torch.tensor([1.0, 2.0]), torch.zeros(2, 3, 4)).shape
    torch.Size([2, 1, 1])
    """
    return per_row.reshape(-1, *[1] * (like.dim() - 1))
