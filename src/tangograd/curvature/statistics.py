"""What a refresh step tells a preconditioner."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

#: The longest side of a parameter, as a matrix, that has Kronecker factors: they are square.
LONGEST_SIDE = 4096


class Factors(NamedTuple):
    """Kronecker factors of a layer: its block of F is about ``A ⊗ G``, for ``[weight | bias]``.

    Attributes:
        weight: the position of the weight in its group.
        bias: that of the bias; ``None`` without one.
        A: second moments of the inputs, ``(inputs [+ 1], inputs [+ 1])``.
        G: second moments of the outputs' cotangents, ``(outputs, outputs)``.
        called: whether they come from calls of a layer, and not from pseudo-gradients.
    """

    weight: int
    bias: int | None
    A: Tensor
    G: Tensor
    called: bool = True


@dataclass
class Statistics:
    """What one refresh tells a preconditioner about its group of parameters.

    Attributes:
        draws: the number of pseudo-gradients of the batch that went into it.
        fisher_diagonal: an unbiased estimate of the diagonal of F, shaped like the parameters.
        gradient: g, shaped like the parameters.
        layers: Kronecker factors, of the layers whose weight is in the group.
        used: whether each parameter was trainable in the step; all of them by default.
        samples: the effective number of samples in the step, of all processes.
    """

    draws: int
    fisher_diagonal: list[Tensor]
    gradient: list[Tensor]
    layers: list[Factors]
    samples: float = math.inf
    used: list[bool] | None = None
