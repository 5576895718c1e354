"""C: a positive definite matrix that speeds the velocity up and leaves its limit unchanged.

Preconditioned TANGO moves v by ``γ C [g - (1-δt) F̂ v]``: it is plain TANGO on ``C^{-1/2} θ``. At
frozen θ the mean of v still solves ``F v = g``, up to the damping ``(δt/γ) C⁻¹``; C only changes
how fast, through the conditioning of ``C F``.

A preconditioner acts on the list of a whole group's tensors at once, so that it may couple them.

=========================  ===================================  ===================================
``preconditioner=``        C                                    learned from
=========================  ===================================  ===================================
``None``                   the identity: the paper's TANGO
``"auto"``,                :class:`Kronecker`, what won the     inputs and cotangents of layers; one
``"kronecker"``            comparison of                        pseudo-gradient a refresh
                           ``benchmarks/robustness.py``
``"diagonal"``             :class:`InverseDiagonal`             one pseudo-gradient a refresh
``"rmsprop"``              :class:`RMSProp`                     one gradient a refresh
:class:`Diagonal`          given
:class:`Dense`             given
=========================  ===================================  ===================================

Learned ones are refreshed now and then, from gradients and never from the velocity.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

from tangograd.preconditioners.base import Identity, Preconditioner
from tangograd.preconditioners.diagonal import InverseDiagonal, RMSProp
from tangograd.preconditioners.given import Dense, Diagonal
from tangograd.preconditioners.kronecker import Kronecker

__all__ = [
    "PRECONDITIONERS",
    "Dense",
    "Diagonal",
    "Identity",
    "InverseDiagonal",
    "Kronecker",
    "Preconditioner",
    "RMSProp",
    "resolve",
]

PRECONDITIONERS: dict[str | None, Callable[[], Preconditioner]] = {
    None: Identity,
    "auto": Kronecker,
    "diagonal": InverseDiagonal,
    "rmsprop": RMSProp,
    "kronecker": Kronecker,
}


logger = logging.getLogger("tangograd")


def resolve(
    preconditioner: str | Preconditioner | None, *, sharded: bool = False
) -> Preconditioner:
    """Return the object that a user's ``preconditioner=`` means.

    Args:
        preconditioner: a name or an object.
        sharded: whether parameters are shards, of which ``"auto"`` can only have the diagonal.
    """
    if preconditioner == "auto" and sharded:
        _say_diagonal()
        preconditioner = "diagonal"
    if isinstance(preconditioner, Preconditioner):
        return preconditioner
    if not isinstance(preconditioner, str | None) or preconditioner not in PRECONDITIONERS:
        names = ", ".join(repr(name) for name in PRECONDITIONERS)
        raise ValueError(
            f"preconditioner is one of {names}, or an object of tangograd.preconditioners "
            f"(Diagonal, Dense, or your own Preconditioner); got {preconditioner!r}"
        )
    return PRECONDITIONERS[preconditioner]()


@cache
def _say_diagonal() -> None:
    """Say, once in a process, that parameters sharded by ``fully_shard`` have the diagonal."""
    logger.info(
        'preconditioner="auto" is "diagonal" for parameters sharded by fully_shard: Kronecker '
        "factors multiply whole matrices"
    )
