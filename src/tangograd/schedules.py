"""Schedules of δt that need no tuning.

A constant δt forgets at the rate δt: after some ``10/δt`` steps the start is forgotten, and what is
left is a noise of the order √δt. From there on, ``δt_k = 1/k`` averages the noise away, as Polyak's
averaging does, without knowing how long the run will be.

``benchmarks/tuning_free.py schedules`` compares, over 5 seeds (test loss of a classifier after 1000
steps; excess loss of one pass over a logistic regression, in units of d/2n):

=================================  =========  ========
δt                                 test loss  one pass
=================================  =========  ========
constant                           0.462      52
:func:`constant_then_average`      0.369      1
to 0 linearly (``LinearLR``)       0.458      9
to 0 (``CosineAnnealingLR``)       0.425      5
=================================  =========  ========

So one pass over data is best averaged, and a constant δt leaves much noise. After 1000 steps the
classifier has learned its 3500 images by heart, whatever the schedule: its test loss is lowest much
earlier, so stop on validation data. Any scheduler of torch works as well: δt is the ``lr`` of each
group.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


class _ThenAverage:
    """A factor of δt: 1 at first, then such that ``1/δt`` grows by one a step."""

    def __init__(self, lr: float, constant: int) -> None:
        self.lr, self.constant = lr, constant

    def __call__(self, step: int) -> float:
        return 1 / (1 + self.lr * max(step - self.constant, 0))


def constant_then_average(optimizer: Optimizer, constant: int | None = None) -> LambdaLR:
    """Keep δt for a number of steps, then average: ``δt_k = 1 / (1/δt + k - constant)``.

    Args:
        optimizer: its groups' ``lr`` is driven; call ``step()`` of the result after each of its
            steps.
        constant: how long δt stays; by default ``10/δt`` steps, after which less than e⁻¹⁰ of the
            start is left.

    Example:
        >>> import torch
        >>> from tangograd import TANGO
        >>> optimizer = TANGO([torch.zeros(1, requires_grad=True)], lr=0.5)
        >>> schedule = constant_then_average(optimizer, constant=2)
        >>> [round(0.5 * factor(step), 3) for factor in schedule.lr_lambdas for step in range(5)]
        [0.5, 0.5, 0.5, 0.333, 0.25]
    """
    factors: list[Callable[[int], float]] = []
    for group in optimizer.param_groups:
        lr = float(group["lr"])
        if not 0 < lr <= 1:
            raise ValueError(f"constant_then_average starts from 0 < lr <= 1; got {lr}")
        factors.append(_ThenAverage(lr, round(10 / lr) if constant is None else constant))
    return LambdaLR(optimizer, factors)
