"""Estimates of the Fisher matrix from a batch, in output space.

Notation: ``z_i`` are the outputs of sample i and ``J_i`` is their Jacobian; ``H_i`` is the Fisher
information of the output distribution; ``s̃_i`` is the score of a pseudo-sample
``ỹ_i ~ p_θ(·|x_i)`` and ``g̃_i = J_iᵀ s̃_i`` its pseudo-gradient; ``w_i`` are the Fisher weights of
the samples (``1/B`` each without weights).

=============  ====================================  ============================================
``fisher=``    F̂                                     expectation of F̂ over ỹ
=============  ====================================  ============================================
``expected``   ``Σ w_i J_iᵀ H_i J_i``                F̂ itself: closed form, no sampling noise
``sampled``    ``Σ w_i g̃_i g̃_iᵀ``                    the Fisher matrix; Definition 1 at B = 1
``minibatch``  ``h hᵀ`` with ``h = Σ √w_i g̃_i``      the Fisher matrix: with equal weights this is
                                                     ``B g̃g̃ᵀ``, g̃ the batch mean (the paper's
                                                     minibatch equation); rank one
``empirical``  ``Σ w_i g_i g_iᵀ``                    not the Fisher matrix but the second moment of
                                                     the gradients: the paper's "outer product"
=============  ====================================  ============================================

The vector ``h`` uses ``√w_i`` because pseudo-gradients are independent and centred given x: the
cross terms of ``h hᵀ`` have expectation zero, so ``E h hᵀ = Σ w_i E g̃_i g̃_iᵀ``.

An estimate makes three choices: which scores stand for ``s̃`` (scores of pseudo-samples or of the
data); which output cotangent ``product`` has ``F̂ v`` as its pull-back when ``t_i = J_i v``; and
which vectors have outer products that add up to F̂, from which the statistics of γ are computed.
Rows of weight 0 contribute nothing to any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

#: A function that returns s̃, and computes it when it is first called.
PseudoScores = Callable[[], Tensor]


class OutputFamily(Protocol):
    """The methods of a likelihood that an estimate uses."""

    def score(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        """Return ``∂ℓ/∂z``."""

    def sample(self, outputs: Tensor, /) -> Tensor:
        """Draw ``ỹ ~ p(·|z)``."""

    def fisher_product(self, outputs: Tensor, tangents: Tensor, /) -> Tensor:
        """Return ``H t``."""


class FisherEstimate(NamedTuple):
    """One way to estimate the Fisher matrix from a batch; see the table above.

    Attributes:
        pseudo_scores: maps ``(family, z, s)`` to s̃, where s are the scores of the data.
        product: maps ``(family, z, t, s̃, w)`` to the output cotangent of ``F̂ v``.
        factor: maps ``(s̃, w, position)`` to a cotangent and its weight (a 0-d tensor), for a
            position in [0, 1) along the rows of positive weight. The pull-back of the cotangent is
            one of the vectors whose weighted outer products have the mean F̂ over positions.
        rank_one: whether F̂ is a single outer product, so that a larger batch adds no rank.
        closed_form: whether F̂ is the expectation over pseudo-samples, without sampling noise.
    """

    pseudo_scores: Callable[[OutputFamily, Tensor, Tensor], Tensor]
    product: Callable[[OutputFamily, Tensor, Tensor, PseudoScores, Tensor], Tensor]
    factor: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
    rank_one: bool = False
    closed_form: bool = False


def pseudo_scores(family: OutputFamily, z: Tensor) -> Tensor:
    """Draw ``ỹ ~ p(·|z)`` and return its scores ``s̃``, for which ``E s̃ s̃ᵀ = H``."""
    y = family.sample(z)
    return family.score(z, y.to(z.dtype) if y.is_floating_point() else y)


def _scores_from_model(family: OutputFamily, z: Tensor, s: Tensor) -> Tensor:
    del s
    return pseudo_scores(family, z)


def _scores_from_data(family: OutputFamily, z: Tensor, s: Tensor) -> Tensor:
    del family, z
    return s


def _closed_form(
    family: OutputFamily, z: Tensor, t: Tensor, s_tilde: PseudoScores, w: Tensor
) -> Tensor:
    """Return ``w_i H_i t_i``."""
    del s_tilde
    return rows(w, z) * family.fisher_product(z, t)


def _outer_products(
    family: OutputFamily, z: Tensor, t: Tensor, s_tilde: PseudoScores, w: Tensor
) -> Tensor:
    """Return ``w_i s̃_i ⟨s̃_i, t_i⟩``."""
    del family
    return rows(w * row_dot(s_tilde(), t), z) * s_tilde()


def _one_outer_product(
    family: OutputFamily, z: Tensor, t: Tensor, s_tilde: PseudoScores, w: Tensor
) -> Tensor:
    """Return ``√w_i s̃_i Σ_j √w_j ⟨s̃_j, t_j⟩``."""
    del family
    root = w.sqrt()
    return rows(root * (root * row_dot(s_tilde(), t)).sum(), z) * s_tilde()


def _one_row(s_tilde: Tensor, w: Tensor, position: float) -> tuple[Tensor, Tensor]:
    """Return the cotangent of ``g̃_i`` for the row at a position, and ``n w_i``.

    Only the n rows of positive weight are drawn. They are counted on the device.
    """
    positive = w > 0
    n = positive.sum()
    place = (position * n.double()).long()
    i = torch.searchsorted(positive.cumsum(0), place + 1).reshape(1)
    cotangent = torch.zeros_like(s_tilde).index_copy(0, i, s_tilde.index_select(0, i))
    return cotangent, w.index_select(0, i).squeeze(0) * n


def _whole_batch(s_tilde: Tensor, w: Tensor, position: float) -> tuple[Tensor, Tensor]:
    """Return the cotangent of ``h = Σ √w_i g̃_i``, whose weight is 1."""
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
    """Return ``⟨a_i, b_i⟩`` for each row i, shape ``(B,)``.

    >>> row_dot(torch.tensor([[1.0, 2.0], [0.0, 3.0]]), torch.tensor([[1.0, 1.0], [5.0, 1.0]]))
    tensor([3., 3.])
    """
    return (a * b).reshape(len(a), -1).sum(1)


def rows(per_row: Tensor, like: Tensor) -> Tensor:
    """Reshape ``per_row`` of shape ``(B,)`` so that it multiplies the rows of ``like``.

    >>> rows(torch.tensor([1.0, 2.0]), torch.zeros(2, 3, 4)).shape
    torch.Size([2, 1, 1])
    """
    return per_row.reshape(-1, *[1] * (like.dim() - 1))
