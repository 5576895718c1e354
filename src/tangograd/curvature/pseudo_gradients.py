"""Gradients and pseudo-gradients of a batch, from which preconditioners learn.

``p.grad`` is the bracket ``g - F̂ v``, so on refresh steps these are computed separately, by
vector-Jacobian products through the graph of the forward pass:

* the diagonal of F̂, without bias and without anything per sample: for ``h = Σ √w_i ε_i g̃_i`` with
  random signs, ``E h² = Σ w_i g̃_i²``, element by element;
* the gradient g;
* the Kronecker factors of linear and convolution layers: with inputs a (a row for each use of the
  weight, 1 appended for a bias) and cotangents δ of the outputs in the pull-back of h,
  ``F ≈ A ⊗ G``, ``A = mean a aᵀ``, ``G = Σ δ δᵀ``;
* the Kronecker factors of other matrix parameters, such as the weights of recurrent layers: with
  the part M of h that belongs to the matrix, ``A = Mᵀ M / ‖M‖²`` and ``G = M Mᵀ``. Embeddings are
  left to the diagonal.

The factors with which terms enter the loss are known only after the backward pass:
:func:`combine` multiplies by them when the step is taken. Nothing here reads a number on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tangograd.curvature.statistics import LONGEST_SIDE, Factors, Statistics
from tangograd.engines.mode import EMBEDDINGS, LayerCall
from tangograd.parallel import LOCAL, Communicator
from tangograd.session import Share, TrainingPass

#: Rows that go into the factors of a layer: more make them costlier and little better.
ROWS = 512
GOLDEN = (5**0.5 - 1) / 2


@dataclass
class Pulled:
    """What was pulled back for one term of a block; lists are in the order of ``parameters``."""

    parameters: Sequence[Tensor]
    share: Share
    draws: int
    probe: list[Tensor]
    squares: list[Tensor]
    gradient: list[Tensor]
    layers: dict[int, _Layer]


@dataclass
class _Layer:
    """Sums for one weight, over all its uses."""

    weight: Tensor
    bias: Tensor | None
    A: Tensor | None = None
    rows: int = 0
    G: Tensor | None = None
    called: bool = True

    def add(self, *, A: Tensor | None = None, G: Tensor | None = None) -> None:
        """Add to the sums."""
        if A is not None:
            self.A = A if self.A is None else self.A.add_(A)
        if G is not None:
            self.G = G if self.G is None else self.G.add_(G)


def collect(
    pass_: TrainingPass,
    layers: Sequence[LayerCall],
    needs: frozenset[str],
    draws: int,
    *,
    check: bool,
) -> list[Pulled]:
    """Pull back what is needed of ``{"probe", "fisher_diagonal", "gradient", "layers"}``.

    Args:
        pass_: the forward pass.
        layers: the calls of layers in it, where they are needed.
        needs: what γ and the preconditioners use.
        draws: how many pseudo-gradients.
        check: whether to check that tangents and gradients agree.
    """
    if not needs:
        return []
    calls = [call for call in layers if _has_factors(call)]
    parameters, n = list(pass_.parameters), len(pass_.parameters)
    matrices = _matrices_without_calls(parameters, layers) if "layers" in needs else {}
    communicator = pass_.communicator
    pulled = []
    for term in pass_.terms:
        if not term.outputs.requires_grad:
            continue
        probe: list[Tensor] = []
        squares: list[Tensor] = []
        moments = _input_moments(calls) if "layers" in needs else {}
        moments |= {id(p): _Layer(p, None, rows=1, called=False) for p in matrices.values()}
        for draw in range(draws if needs - {"gradient"} else 0):
            targets = [*parameters, *(call.outputs for call in calls)]
            cotangent = term.midpoint_sample(term.prior)
            h = communicator.probe(term.outputs, targets, cotangent)
            if check and draw == 0:
                communicator.check_term(pass_, term, cotangent, h[:n])
            for call, from_above in zip(calls, h[n:], strict=True):
                layer = moments[id(call.weight)]
                delta = _rows_of_outputs(call, from_above).to(_precision(call.weight))
                thinned = _thinned(delta)
                layer.add(G=thinned.T @ thinned * (len(delta) / len(thinned) / draws))
            for i, p in matrices.items():
                M = h[i].reshape(len(p), -1).to(_precision(p))
                size = M.square().sum().clamp(min=torch.finfo(M.dtype).tiny)
                moments[id(p)].add(A=M.T @ M / (size * draws), G=M @ M.T / draws)
            if draw == 0:
                probe = h[:n]
                squares = [x.square() / draws for x in probe]
            else:
                for total, x in zip(squares, h[:n], strict=True):
                    total.addcmul_(x, x, value=1 / draws)
        gradient = (
            communicator.pull_back([term.outputs], parameters, [term.gradient])
            if "gradient" in needs
            else []
        )
        pulled.append(Pulled(parameters, term.share, draws, probe, squares, gradient, moments))
    return pulled


def combine(
    pulled: Sequence[Pulled],
    group: Sequence[Tensor],
    samples: float = math.inf,
    communicator: Communicator = LOCAL,
) -> Statistics:
    """Return the statistics of one group of parameters, from all terms that went into a step.

    Args:
        pulled: what was pulled back for each term.
        group: the parameters of the group.
        samples: the effective number of samples in the step, of all processes.
        communicator: the processes that train together.
    """
    used = [piece for piece in pulled if piece.share.used]
    diagonal = _total(
        [(piece.share.factor, piece.parameters, piece.squares) for piece in used], group
    )
    gradient = _total(
        [(piece.share.factor, piece.parameters, piece.gradient) for piece in used], group
    )
    return Statistics(
        draws=max((piece.draws for piece in used), default=0),
        fisher_diagonal=communicator.mean_of_tensors(diagonal),
        gradient=communicator.mean_of_tensors(gradient),
        layers=_agreed(_factors(used, group), _total_factor(used), communicator),
        samples=samples,
        used=_used(used, group),
    )


def probe(
    pulled: Sequence[Pulled], parameters: Sequence[Tensor], communicator: Communicator = LOCAL
) -> list[Tensor]:
    """Return h of a whole step, a random vector with ``E h hᵀ = F̂``; empty if there is none."""
    used = [piece for piece in pulled if piece.share.used]
    return communicator.mean_of_probes(
        _total(
            [(piece.share.factor**0.5, piece.parameters, piece.probe) for piece in used], parameters
        )
    )


def _total(
    pieces: Sequence[tuple[Tensor, Sequence[Tensor], list[Tensor]]], parameters: Sequence[Tensor]
) -> list[Tensor]:
    """Return ``Σ factor · tensors`` for these parameters, 0 where there is nothing of them."""
    pieces = [piece for piece in pieces if piece[2]]
    if not pieces:
        return []
    place = {id(p): i for i, p in enumerate(parameters)}
    sums = [torch.zeros_like(p) for p in parameters]
    for factor, theirs, tensors in pieces:
        for p, x in zip(theirs, tensors, strict=True):
            if id(p) in place:
                sums[place[id(p)]].add_(x * factor.to(x.dtype))
    return sums


def _used(used: Sequence[Pulled], group: Sequence[Tensor]) -> list[bool]:
    """Return whether each parameter of a group was trainable in the step."""
    trainable = {id(p) for piece in used for p in piece.parameters}
    return [id(p) in trainable for p in group]


def _total_factor(used: Sequence[Pulled]) -> Tensor:
    return torch.stack([piece.share.factor for piece in used]).sum() if used else torch.zeros(())


def _factors(used: Sequence[Pulled], group: Sequence[Tensor]) -> list[Factors]:
    place = {id(p): i for i, p in enumerate(group)}
    total = _total_factor(used)
    found: dict[int, tuple[Tensor | None, Tensor, Tensor]] = {}
    called = {key for piece in used for key, layer in piece.layers.items() if layer.called}
    for piece in used:
        for key, layer in piece.layers.items():
            if layer.A is None or layer.G is None or key not in place:
                continue
            if key in called and not layer.called:  # another block calls the layer
                continue
            factor = piece.share.factor.to(layer.A.dtype)
            A, G = layer.A * (factor / total.to(factor.dtype) / layer.rows), factor * layer.G
            if key in found:
                _, A_before, G_before = found[key]
                A, G = A_before + A, G_before + G
            found[key] = (layer.bias, A, G)
    factors = []
    taken: set[int] = set()
    for key, (bias, A, G) in found.items():
        b = None if bias is None else place.get(id(bias))
        if bias is not None and (b is None or b in taken):  # not ours: the weight alone
            b, A = None, A[:-1, :-1]
        taken |= {b} if b is not None else set()
        factors.append(Factors(place[key], b, A, G, key in called))
    return factors


def _agreed(layers: list[Factors], total: Tensor, communicator: Communicator) -> list[Factors]:
    """Return the factors over all processes; a layer that one did not use counts as 0 there."""
    if communicator.size == 1:
        return layers
    shapes: dict[tuple[int, int | None, bool], tuple[int, int]] = {}
    described = [((f.weight, f.bias, f.called), (len(f.A), len(f.G))) for f in layers]
    for theirs in communicator.gather(described):
        shapes |= dict(theirs)
    called = {weight for weight, _, is_called in shapes if is_called}
    shapes = {key: sides for key, sides in shapes.items() if key[2] or key[0] not in called}
    if not shapes:
        return []
    own = {(f.weight, f.bias, f.called): f for f in layers}
    like = next(iter(own.values())).A if own else torch.zeros(0, device=communicator.device)
    tensors = []
    for key, (a, g) in shapes.items():
        if key in own:
            tensors += [total.to(like.dtype) * own[key].A, own[key].G]
        else:
            tensors += [like.new_zeros(a, a), like.new_zeros(g, g)]
    tensors = communicator.mean_of_tensors(tensors)
    total = communicator.average(total.to(communicator.device)).to(like.dtype)
    pairs = zip(shapes, tensors[::2], tensors[1::2], strict=True)
    return [
        Factors(weight, bias, A / total, G, of_calls) for (weight, bias, of_calls), A, G in pairs
    ]


def _input_moments(calls: Sequence[LayerCall]) -> dict[int, _Layer]:
    layers: dict[int, _Layer] = {}
    for call in calls:
        layer = layers.setdefault(id(call.weight), _Layer(call.weight, call.bias))
        a = _thinned(_rows_of_inputs(call)).to(_precision(call.weight))
        if layer.bias is not None:
            a = functional.pad(a, (0, 1), value=1.0)
        layer.add(A=a.T @ a)
        layer.rows += len(a)
    return layers


def _thinned(rows: Tensor) -> Tensor:
    """Return at most :data:`ROWS` rows, spread over all of them.

    The places are multiples of the golden ratio: with equal distances, the rows of an image could
    all be from the same column.
    """
    if len(rows) <= ROWS:
        return rows
    places = torch.arange(ROWS, dtype=torch.float64, device=rows.device) * GOLDEN % 1
    return rows[(places * len(rows)).long()]


def _matrices_without_calls(
    parameters: Sequence[Tensor], layers: Sequence[LayerCall]
) -> dict[int, Tensor]:
    """Return the matrix parameters, by position, that no recorded call uses."""
    covered = {id(call.weight) for call in layers}
    found = {}
    for i, p in enumerate(parameters):
        sides = (len(p), p.numel() // max(len(p), 1)) if p.dim() > 1 else (0, 0)
        if id(p) not in covered and min(sides) > 1 and max(sides) <= LONGEST_SIDE:
            found[i] = p
    return found


def _precision(weight: Tensor) -> torch.dtype:
    """Return the type of the factors of a weight: at least single precision."""
    return torch.promote_types(weight.dtype, torch.float32)


def _has_factors(call: LayerCall) -> bool:
    """Return whether a call gives Kronecker factors.

    Embeddings, grouped, three-dimensional and string-padded convolutions, and weights with a long
    side are left to the diagonal.
    """
    rows, elements = len(call.weight), call.weight.numel()
    if call.function in EMBEDDINGS or not elements or max(rows, elements // rows) > LONGEST_SIDE:
        return False
    if call.function is functional.linear:
        return True
    padding, groups = [*call.options, *[1, 0, 1, 1][len(call.options) :]][1::2]
    return groups == 1 and call.weight.dim() <= 4 and not isinstance(padding, str)


def _rows_of_inputs(call: LayerCall) -> Tensor:
    """Return the inputs as ``(uses of the weight, columns of the weight)``."""
    if call.function is functional.linear:
        return call.inputs.reshape(-1, call.inputs.shape[-1])
    stride, padding, dilation = (list(call.options[:3]) + [1, 0, 1][len(call.options) :])[:3]
    x, kernel = call.inputs, tuple(call.weight.shape[2:])
    if len(kernel) == 1:  # as a picture of height 1
        x, kernel = x.unsqueeze(-2), (1, *kernel)
        stride, padding, dilation = [
            (default, *(option if isinstance(option, tuple | list) else (option,)))
            for option, default in ((stride, 1), (padding, 0), (dilation, 1))
        ]
    patches = functional.unfold(x, kernel, dilation=dilation, padding=padding, stride=stride)
    return patches.transpose(-1, -2).reshape(-1, patches.shape[-2])


def _rows_of_outputs(call: LayerCall, cotangent: Tensor) -> Tensor:
    """Return the cotangents as ``(uses of the weight, outputs)``."""
    if call.function is functional.linear:
        return cotangent.reshape(-1, cotangent.shape[-1])
    places = cotangent.dim() - (call.weight.dim() - 2)  # unbatched inputs have no first dimension
    return cotangent.movedim(places - 1, -1).reshape(-1, call.weight.shape[0])
