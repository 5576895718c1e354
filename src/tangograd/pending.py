"""Blocks since the last step, and those of other optimizers of the same parameters."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from tangograd.curvature.observation import Observation
from tangograd.parallel import LOCAL, Communicator

_all: weakref.WeakSet[PendingStep] = weakref.WeakSet()


@dataclass(eq=False)
class PendingStep:
    """What was done since the last step.

    It is changed in place, never replaced: a wrapper that imitates the optimizer's class, as
    Lightning's does, runs the methods with itself for ``self``, and shares this object.

    Attributes:
        blocks: the `tangents` blocks.
        communicator: the processes that train the model of the last one.
        parameters: identities of those trained.
    """

    blocks: list[Observation] = field(default_factory=list)
    communicator: Communicator = LOCAL
    parameters: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        _all.add(self)

    def add(self, block: Observation) -> None:
        """Add a block."""
        self.blocks.append(block)
        self.parameters = frozenset(id(p) for p in block.parameters)

    @property
    def used(self) -> list[Observation]:
        """The blocks whose loss has been differentiated: their brackets are in ``p.grad``."""
        return [block for block in self.blocks if block.used]

    def take(self) -> list[Observation]:
        """Return the blocks whose brackets are in ``p.grad``, and forget all blocks.

        Raises:
            RuntimeError: there are none, or those of another optimizer are in ``p.grad``, too.
        """
        blocks = self.used
        if not blocks:
            raise RuntimeError(
                "step() needs a loss from inside `with optimizer.tangents(model):` (or "
                "`optimizer.evaluate`), and its backward, since the last step; without them this "
                "would silently be SGD."
            )
        self._check_exclusive()
        self.blocks = []
        return blocks

    def clear(self, parameters: Iterable[Tensor]) -> None:
        """Forget used blocks, of all optimizers of these parameters: their gradients are gone."""
        ours = frozenset(id(p) for p in parameters)
        for each in (self, *self._others(ours)):
            each.blocks = [block for block in each.blocks if not block.used]

    def _check_exclusive(self) -> None:
        """Check that ``p.grad`` is the bracket of one optimizer."""
        if self._others(self.parameters):
            raise RuntimeError(
                "p.grad is the sum of the brackets of two TANGO optimizers, each with a velocity "
                "of its own: a block of another one, for some of the same parameters, was "
                "differentiated and its step not taken. Nothing was changed. Call zero_grad(), "
                "and finish the step of one optimizer (block, backward, step, zero_grad) before "
                "the backward of the other."
            )

    def _others(self, parameters: frozenset[int]) -> list[PendingStep]:
        """Return those of other optimizers with used blocks for some of these parameters."""
        return [x for x in _all if x is not self and x.used and x.parameters & parameters]
