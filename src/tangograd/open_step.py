"""What was done since the last step, and by other optimizers of the same parameters."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from tangograd.distributed import ALONE, Peers
from tangograd.measurement import Measurement

_all: weakref.WeakSet[OpenStep] = weakref.WeakSet()


@dataclass(eq=False)
class OpenStep:
    """What was done since the last step.

    It is changed in place, never replaced: a wrapper that imitates the optimizer's class, as
    Lightning's does, runs the methods with itself for ``self``, and has this in common with it.

    Attributes:
        blocks: the `tangents` blocks.
        peers: the processes that train the model of the last one.
        parameters: identities of those trained.
    """

    blocks: list[Measurement] = field(default_factory=list)
    peers: Peers = ALONE
    parameters: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        _all.add(self)

    def add(self, block: Measurement, parameters: Iterable[Tensor]) -> None:
        """One more block."""
        self.blocks.append(block)
        self.parameters = frozenset(id(p) for p in parameters)

    @property
    def used(self) -> list[Measurement]:
        """The blocks whose loss has been differentiated: their brackets are in ``p.grad``."""
        return [block for block in self.blocks if block.used]

    def discard(self, parameters: Iterable[Tensor]) -> None:
        """Forget used blocks, of all optimizers of these parameters: their gradients are gone."""
        ours = frozenset(id(p) for p in parameters)
        for each in (self, *self._others(ours)):
            each.blocks = [block for block in each.blocks if not block.used]

    def check_single(self) -> None:
        """``p.grad`` must be the bracket of one optimizer."""
        if self._others(self.parameters):
            raise RuntimeError(
                "p.grad is the sum of the brackets of two TANGO optimizers, each with a velocity "
                "of its own: a block of another one, for some of the same parameters, was "
                "differentiated and its step not taken. Nothing was changed. Call zero_grad(), "
                "and finish the step of one optimizer (block, backward, step, zero_grad) before "
                "the backward of the other."
            )

    def _others(self, parameters: frozenset[int]) -> list[OpenStep]:
        """Of other optimizers with used blocks for some of these parameters."""
        return [x for x in _all if x is not self and x.used and x.parameters & parameters]
