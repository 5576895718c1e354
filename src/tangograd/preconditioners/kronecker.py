"""Kronecker factors for matrix parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from tangograd.curvature.statistics import LONGEST_SIDE, Factors, Statistics
from tangograd.preconditioners.base import Preconditioner, check_entries, saved_count, saved_tensors
from tangograd.preconditioners.diagonal import InverseDiagonal
from tangograd.preconditioners.factors import (
    DampedFactor,
    damped_factor,
    directions_like,
    leading_directions,
)
from tangograd.vectors import moved


class Kronecker(Preconditioner):
    """``C = (A + α I)⁻¹ ⊗ (G + β I)⁻¹`` for matrix parameters, the inverse diagonal elsewhere.

    For a linear layer or a convolution, A and G are second moments of its inputs and of the
    cotangents of its outputs (K-FAC's factors), and its bias is one more column of the weight.
    Other matrix parameters have factors from pseudo-gradients
    (:mod:`tangograd.curvature.pseudo_gradients`). Embeddings, and matrices with a side above 4096,
    are left to the diagonal. The damping ``α β`` follows from the mean curvature of the layers, so
    there is none to tune. TANGO corrects for what ``A ⊗ G`` misses of F: the limit is exact with
    any C.

    Example: for one sample a and one output, A is ``a aᵀ``.

        >>> C, a = Kronecker(), torch.tensor([[1.0, 2.0]])
        >>> C.init([torch.zeros(1, 2)])
        >>> layer = Factors(0, None, a.T @ a, torch.eye(1))
        >>> C.update(Statistics(1, [torch.ones(1, 2)], [], [layer]))
        >>> C.apply_inverse(C.apply([torch.tensor([[3.0, 4.0]])]))
        [tensor([[3., 4.]])]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"fisher_diagonal", "layers"})

    #: Averages of the factors forget at this rate an update, and more slowly with small batches:
    #: they are of at least so many samples.
    FORGETTING, SAMPLES = 0.3, 64
    #: The damping of a layer is at most this multiple of its own mean curvature.
    OWN_CURVATURE = 10.0

    def __init__(self) -> None:
        self.updates = 0
        self._rest = InverseDiagonal()
        self._blocks: dict[int, _Averages] = {}  # by the position of the weight
        self._layers: list[_Layer] = []

    def init(self, parameters: Sequence[Tensor]) -> None:
        """Prepare averages for the diagonal and for the factors of all matrices."""
        self._rest.init(parameters)
        if not self._blocks:
            self._blocks = {
                i: _Averages.zeros(p) for i, p in enumerate(parameters) if _is_matrix(p)
            }

    def update(self, statistics: Statistics) -> None:
        """Update the averages of the factors."""
        self.updates += 1
        self.init(statistics.fisher_diagonal)  # parameters had no values before, on "meta"
        self._rest.update(statistics)
        forgetting = min(self.FORGETTING, statistics.samples / self.SAMPLES)
        rate = max(1 / self.updates, forgetting)
        sums = [factor.sum() for layer in statistics.layers for factor in (layer.A, layer.G)]
        finite = torch.stack(sums).isfinite().all() if sums else torch.tensor(True)
        for new in statistics.layers:
            if new.weight in self._blocks:
                self._blocks[new.weight].add(new, rate, finite)
        self._set()

    def _set(self) -> None:
        """Damp the factors.

        The damping ``c I`` of ``A ⊗ G`` is divided between the factors in proportion to their
        levels: the mean of the diagonal of G, and the median of that of A, since one input column
        of a much larger scale than the others would otherwise drown them. c is the mean curvature
        over all layers, but at most :data:`OWN_CURVATURE` times that of the layer itself: a layer
        whose outputs hardly matter yet, as with tiny initial weights, learns all the same.
        """
        self._layers = []
        known = [(weight, block) for weight, block in self._blocks.items() if block.updates]
        if not known:
            return
        levels = [
            (_median_of_positive(block.inputs.diagonal()), block.G.diagonal().mean())
            for _, block in known
        ]
        elements = [len(block.inputs) * len(block.G) for _, block in known]
        totals = [a * g * n for (a, g), n in zip(levels, elements, strict=True)]
        mean = torch.stack(totals).sum() / sum(elements)
        for (weight, block), (a, g) in zip(known, levels, strict=True):
            seen = a * g > 0  # before any signal has come through the layer, C is the identity
            c = torch.minimum(mean, self.OWN_CURVATURE * a * g)
            n = len(block.inputs)
            right = damped_factor(block.inputs, block.P[:n], (c * a / g).sqrt(), seen)
            left = damped_factor(block.G, block.Q, (c * g / a).sqrt(), seen)
            self._layers.append(_Layer(weight, block.bias, left, right))

    def apply(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return ``(G + β)⁻¹ X (A + α)⁻¹`` for the matrix ``X = [weight | bias]`` of a layer."""
        return self._multiply(
            tensors, self._rest.apply, lambda f, X: f.right.solve_right(f.left.solve(X))
        )

    def apply_inverse(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return ``(G + β) X (A + α)``."""
        return self._multiply(
            tensors,
            self._rest.apply_inverse,
            lambda f, X: f.right.multiply_right(f.left.multiply(X)),
        )

    def _multiply(
        self,
        tensors: list[Tensor],
        rest: Callable[[list[Tensor]], list[Tensor]],
        product: Callable[[_Layer, Tensor], Tensor],
    ) -> list[Tensor]:
        """Multiply each layer by its factors, and the other tensors by the diagonal."""
        done: dict[int, Tensor] = {}
        for layer in self._layers:
            Y = product(layer, layer.matrix(tensors)).to(tensors[layer.weight].dtype)
            if layer.bias is not None:
                Y, done[layer.bias] = Y[:, :-1], Y[:, -1]
            done[layer.weight] = Y.reshape(tensors[layer.weight].shape)
        if len(done) == len(tensors):
            return [done[i] for i in range(len(tensors))]
        return [done.get(i, other) for i, other in enumerate(rest(tensors))]

    def check(self, parameters: Sequence[Tensor]) -> None:
        """Check that the factors fit the parameters."""
        self._rest.check(parameters)
        for weight, block in self._blocks.items():
            p = parameters[weight] if weight < len(parameters) else None
            if p is None or (len(block.G), len(block.A) - 1) != _sides(p):
                raise ValueError(
                    f"Kronecker has factors of sides {len(block.G)} and {len(block.A) - 1} for "
                    f"parameter number {weight}, which has shape "
                    f"{None if p is None else tuple(p.shape)}; give each group its own"
                )

    def to_(self, parameters: Sequence[Tensor]) -> None:
        """Move the factors and their leading directions."""
        self._rest.to_(parameters)
        there = {w: block.moved(parameters[w]) for w, block in self._blocks.items()}
        if any(there[w].A is not block.A for w, block in self._blocks.items()):
            self._blocks = there
            self._set()

    def state_dict(self) -> dict[str, Any]:
        """Return factors and their leading directions, as lists of tensors and numbers.

        The lists have an entry for each matrix at all times, so that a distributed checkpoint can
        be loaded before the first step.
        """
        saved: dict[str, Any] = {"updates": self.updates, "rest": self._rest.state_dict()}
        for name in _TENSORS:
            saved[name] = [getattr(block, name).contiguous() for block in self._blocks.values()]
        saved["seen"] = [block.updates for block in self._blocks.values()]
        saved["bias"] = [-1 if b.bias is None else b.bias for b in self._blocks.values()]
        saved["called"] = [int(block.called) for block in self._blocks.values()]
        return saved

    def from_state(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> Self:
        """Return one with saved factors."""
        check_entries(self, state, {"updates", "rest", "seen", "bias", "called", *_TENSORS})
        loaded = copy.copy(self)
        loaded.updates = saved_count(self, "updates", state["updates"])
        loaded._rest = self._rest.from_state(state["rest"], parameters)
        loaded._blocks = {}
        loaded.init(parameters)
        blocks = loaded._blocks
        tensors = {}
        for name in _TENSORS:
            like = [getattr(block, name) for block in blocks.values()]
            tensors[name] = saved_tensors(self, name, state[name], like)
        for name in ("seen", "bias", "called"):
            if not isinstance(state[name], list | tuple) or len(state[name]) != len(blocks):
                raise ValueError(f"the saved {name!r} of Kronecker is damaged")
        for k, weight in enumerate(blocks):
            bias = state["bias"][k]
            one = {name: tensors[name][k] for name in _TENSORS}
            rows = len(one["G"])
            fits = isinstance(bias, int) and -1 <= bias < len(parameters)
            if not fits or (bias >= 0 and tuple(parameters[bias].shape) != (rows,)):
                raise ValueError(f"the saved Kronecker has a bias at the position {bias!r}")
            seen = saved_count(self, "seen", state["seen"][k])
            called = bool(saved_count(self, "called", state["called"][k]))
            place = None if bias < 0 else bias
            block = _Averages(**one, updates=seen, bias=place, called=called)
            blocks[weight] = block.moved(parameters[weight])
        loaded._set()
        return loaded


@dataclass
class _Averages:
    """Averages of the factors of one matrix parameter, in at least single precision.

    Attributes:
        A: second moments of the inputs, with a last row and column for a bias.
        G: second moments of the cotangents of the outputs.
        P: leading directions of A; without columns if A is kept dense.
        Q: those of G.
        updates: the number of updates.
        bias: the position of the bias that is joined to the matrix.
        called: whether they come from calls of a layer, and not from pseudo-gradients.
    """

    A: Tensor
    G: Tensor
    P: Tensor
    Q: Tensor
    updates: int = 0
    bias: int | None = None
    called: bool = False

    @classmethod
    def zeros(cls, p: Tensor) -> _Averages:
        """Return zeros for a parameter; they take no memory before the first update."""
        rows, columns = _sides(p)
        zero = p.new_zeros((), dtype=torch.promote_types(p.dtype, torch.float32))
        A, G = zero.expand(columns + 1, columns + 1), zero.expand(rows, rows)
        return cls(A, G, directions_like(A), directions_like(G))

    @property
    def inputs(self) -> Tensor:
        """A, without the part of a bias if there is none."""
        return self.A if self.bias is not None else self.A[:-1, :-1]

    def add(self, new: Factors, rate: float, finite: Tensor) -> None:
        """Update the averages; factors from calls of a layer replace those without."""
        if new.called and not self.called:
            self.updates = 0
        if self.updates == 0:
            self.A, self.G, self.P, self.Q = (
                torch.zeros_like(getattr(self, name), memory_format=torch.contiguous_format)
                for name in _TENSORS
            )
            self.bias, self.called, rate = new.bias, new.called, 1.0
        if (new.bias, new.called) != (self.bias, self.called):
            return
        self.updates += 1
        known = finite & (new.G.diagonal().sum() > 0)  # zeros: the layer was not used
        for average, x in ((self.inputs, new.A), (self.G, new.G)):
            average.add_(torch.where(known, x - average, 0.0), alpha=rate)
        n = len(self.inputs)
        self.P[:n] = leading_directions(self.inputs, self.P[:n])
        self.Q = leading_directions(self.G, self.Q)

    def moved(self, p: Tensor) -> _Averages:
        """Return the averages where the parameter is."""
        like = p.new_empty(0, dtype=torch.promote_types(p.dtype, torch.float32))
        A, G, P, Q = (moved(getattr(self, name), like) for name in _TENSORS)
        return replace(self, A=A, G=G, P=P, Q=Q)


_TENSORS = tuple(field.name for field in fields(_Averages))[:4]


def _is_matrix(p: Tensor) -> bool:
    """Return whether a parameter can have factors; a table ``(1, n, m)`` is no layer's weight."""
    table = p.dim() == 3 and len(p) == 1
    return p.dim() > 1 and not table and p.numel() > 0 and max(_sides(p)) <= LONGEST_SIDE


def _sides(p: Tensor) -> tuple[int, int]:
    """Return the numbers of rows and columns of a parameter as a matrix."""
    rows = len(p)
    return rows, p.numel() // max(rows, 1)


def _median_of_positive(diagonal: Tensor) -> Tensor:
    """Return the median of the entries that are not negligible beside their mean; 0 for zeros."""
    negligible = 1e-6 * diagonal.mean()
    return diagonal.where(diagonal > negligible, torch.nan).nanmedian().nan_to_num(0.0)


class _Layer(NamedTuple):
    """A layer's damped factors; left acts on rows of the weight, right on its columns."""

    weight: int
    bias: int | None
    left: DampedFactor
    right: DampedFactor

    def matrix(self, tensors: list[Tensor]) -> Tensor:
        """Return ``[weight | bias]``, in the precision of the factors."""
        X = tensors[self.weight].reshape(len(tensors[self.weight]), -1)
        if self.bias is not None:
            X = torch.cat([X, tensors[self.bias].unsqueeze(1)], 1)
        return X.to(torch.promote_types(X.dtype, torch.float32))
