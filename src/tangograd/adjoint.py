"""The adjoint test ``⟨u, J v⟩ = ⟨Jᵀu, v⟩``: tangents and gradients belong to the same function."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tangograd.session import Term, TrainingPass

#: Allowed disagreement, in units of rounding.
ROUNDING = 1e4
#: Allowed relative disagreement where parts of the model may run in 16 bits.
ROUNDING_16_BITS = 0.02


class DisagreementError(RuntimeError):
    """Tangents and gradients are derivatives of different functions."""


def vjp(
    outputs: Sequence[Tensor], parameters: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor]:
    """Return ``Jᵀ u``: the outputs' cotangents, pulled back to trainable parameters."""
    found = torch.autograd.grad(
        outputs, parameters, cotangents, retain_graph=True, allow_unused=True
    )
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]


def check_adjoint(
    u: Sequence[Tensor],
    t: Sequence[Tensor],
    gradient: Sequence[Tensor],
    v: Sequence[Tensor],
    *,
    outputs: Sequence[Tensor] = (),
    exact: bool = True,
    random: bool = False,
) -> None:
    """Check that ``⟨u, t⟩ = ⟨gradient, v⟩``, up to rounding.

    Args:
        u: cotangents of outputs.
        t: tangents of outputs, which should be ``J v``.
        gradient: ``Jᵀu``.
        v: tangents of parameters.
        outputs: with their graph, which shows whether parts of the model change the precision.
        exact: whether t is a derivative and not a finite difference.
        random: whether u and v are random, with independent elements. Both sides are then sums of
            terms with random signs, small beside the product of the norms, and so is their
            rounding error.

    Raises:
        DisagreementError: the two sides differ by more than rounding.
    """
    # parts of the model may run in 16 bits, with or without autocast
    coarse = any(x.dtype.itemsize < 8 for x in (*u, *gradient))
    precision = max((torch.finfo(x.dtype) for x in u), key=lambda kind: kind.eps)
    u, t, gradient, v = ([x.detach().double() for x in vector] for vector in (u, t, gradient, v))
    if random:
        size = _spread(u, t) + _spread(v, gradient)
    else:
        size = (_dot(u, u) * _dot(t, t)).sqrt() + (_dot(gradient, gradient) * _dot(v, v)).sqrt()
    numbers = torch.stack([x.cpu() for x in (_dot(u, t), _dot(gradient, v), size)])
    forward, backward, size = numbers.tolist()
    underflows = size < precision.smallest_normal**0.5
    allowed = ROUNDING * precision.eps if exact else max(math.sqrt(precision.eps) * 1e2, 1e-6)
    if coarse:
        allowed = max(allowed, ROUNDING_16_BITS)
    difference = 0.0 if underflows else abs(forward - backward)
    if difference > allowed * size and any("ToCopy" in node.name() for node in graph(outputs)):
        allowed = max(allowed, ROUNDING * torch.finfo(torch.float32).eps)
    if difference > allowed * size:
        raise DisagreementError(
            f"tangents and gradients disagree ({forward:.6g} against {backward:.6g}) in the model, "
            "so F̂v would be wrong. Something in it cuts one and not the other: a part that "
            "depends on parameters under torch.no_grad() (use .detach() instead, which cuts "
            "both), parameters used outside the model's call, or a custom operation whose "
            "backward is not its derivative."
        )


def check_term(
    pass_: TrainingPass, term: Term, cotangent: Tensor, gradient: Sequence[Tensor]
) -> None:
    """Check the tangents of a term against the gradient that belongs to a cotangent of it."""
    v = [pass_.scale * v.double() for v in pass_.tangents]
    t, outputs = [term.tangents], [term.outputs]
    check_adjoint([cotangent], t, gradient, v, outputs=outputs, exact=pass_.source.exact)


def graph(outputs: Sequence[Tensor]) -> Iterator[torch.autograd.graph.Node]:
    """Yield the autograd nodes that the outputs depend on."""
    waiting, seen = [z.grad_fn for z in outputs], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [other for other, _ in node.next_functions]


def _spread(numbers: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """Return the standard deviation of ``⟨numbers, others⟩`` for independent numbers."""
    pairs = [(x, y) for x, y in zip(numbers, others, strict=True) if y.numel()]
    return _sum([x.square().mean() * y.square().sum() for x, y in pairs]).sqrt()


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return _sum([(x * y).sum() for x, y in zip(a, b, strict=True)])


def _sum(numbers: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(numbers)).sum() if numbers else torch.zeros((), dtype=torch.float64)
