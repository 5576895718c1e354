"""A Kronecker-factored C for linear and convolution layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from tangograd.curvature.statistics import Factors, Statistics
from tangograd.preconditioners.base import Preconditioner, check_entries, saved_count
from tangograd.preconditioners.diagonal import InverseDiagonal
from tangograd.preconditioners.factors import DampedFactor, damped_factor, leading_directions
from tangograd.vectors import moved


class Kronecker(Preconditioner):
    """``C = (A + α I)⁻¹ ⊗ (G + β I)⁻¹`` for each layer, the inverse diagonal Fisher elsewhere.

    A and G are second moments of a layer's inputs and of the cotangents of its outputs (K-FAC's
    factors), averaged over refreshes. The damping ``α β`` follows from the mean curvature of the
    layers, so there is none to tune. TANGO corrects for what ``A ⊗ G`` misses of F: the limit is
    exact with any C.

    Example: for one sample a and one output, A is ``a aᵀ``.

        >>> C, a = Kronecker(), torch.tensor([[1.0, 2.0]])
        >>> layer = Factors(0, None, a.T @ a, torch.eye(1))
        >>> C.update(Statistics(1, [torch.ones(1, 2)], [], [layer]))
        >>> C.apply_inverse(C.apply([torch.tensor([[3.0, 4.0]])]))
        [tensor([[3., 4.]])]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"fisher_diagonal", "layers"})

    #: Averages of the factors forget at this rate an update.
    FORGETTING = 0.3
    #: The damping of a layer is at most this multiple of its own mean curvature.
    OWN_CURVATURE = 10.0

    def __init__(self) -> None:
        self.updates = 0
        self._rest = InverseDiagonal()
        self._averages: dict[int, Factors] = {}  # by the position of the weight
        self._directions: dict[int, tuple[Tensor, Tensor]] = {}  # leading ones of A and G
        self._layers: list[_Layer] = []

    def update(self, statistics: Statistics) -> None:
        """Update the averages of the factors."""
        self.updates += 1
        self._rest.update(statistics)
        rate = max(1 / self.updates, self.FORGETTING)
        sums = [factor.sum() for layer in statistics.layers for factor in (layer.A, layer.G)]
        finite = torch.stack(sums).isfinite().all() if sums else torch.tensor(True)
        for new in statistics.layers:
            old = self._averages.get(new.weight)
            if old is None:
                zeros = new.A.new_zeros(())
                A, G = (torch.where(finite, x, zeros) for x in (new.A, new.G))
                self._averages[new.weight] = new._replace(A=A, G=G)
            elif old.A.shape == new.A.shape:
                for average, x in ((old.A, new.A), (old.G, new.G)):
                    average.add_(torch.where(finite, x - average, 0.0), alpha=rate)
        for weight, _, A, G in self._averages.values():
            P, Q = self._directions.get(weight, (None, None))
            self._directions[weight] = (leading_directions(A, P), leading_directions(G, Q))
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
        if not self._averages:
            return
        factors = list(self._averages.values())
        levels = [(_median_of_positive(f.A.diagonal()), f.G.diagonal().mean()) for f in factors]
        elements = [len(f.A) * len(f.G) for f in factors]
        totals = [a * g * n for (a, g), n in zip(levels, elements, strict=True)]
        mean = torch.stack(totals).sum() / sum(elements)
        for (weight, bias, A, G), (a, g) in zip(factors, levels, strict=True):
            P, Q = self._directions[weight]
            seen = a * g > 0  # before any signal has come through the layer, C is the identity
            c = torch.minimum(mean, self.OWN_CURVATURE * a * g)
            right = damped_factor(A, P, (c * a / g).sqrt(), seen)
            left = damped_factor(G, Q, (c * g / a).sqrt(), seen)
            self._layers.append(_Layer(weight, bias, left, right))

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
            Y = product(layer, layer.matrix(tensors))
            if layer.bias is not None:
                Y, done[layer.bias] = Y[:, :-1], Y[:, -1]
            done[layer.weight] = Y.reshape(tensors[layer.weight].shape)
        if len(done) == len(tensors):
            return [done[i] for i in range(len(tensors))]
        return [done.get(i, other) for i, other in enumerate(rest(tensors))]

    def check(self, parameters: Sequence[Tensor]) -> None:
        """Check that the factors fit the parameters."""
        self._rest.check(parameters)
        for weight, _, A, G in self._averages.values():
            shape = tuple(parameters[weight].shape) if weight < len(parameters) else ()
            columns = parameters[weight].numel() // shape[0] if shape else 0
            if len(G) != (shape or (0,))[0] or len(A) not in (columns, columns + 1):
                raise ValueError(
                    f"Kronecker has factors of sides {len(G)} and {len(A)} for parameter number "
                    f"{weight}, which has shape {shape}; give each group its own"
                )

    def init(self, parameters: Sequence[Tensor]) -> None:
        """Allocate the diagonal; layers, and so their factors, are known after the first step."""
        self._rest.init(parameters)

    def to_(self, parameters: Sequence[Tensor]) -> None:
        """Move the factors and their leading directions."""
        self._rest.to_(parameters)
        averages = self._averages.values()
        if all(f.A is moved(f.A, parameters[f.weight]) for f in averages):
            return
        self._averages = {
            w: Factors(w, b, moved(A, parameters[w]), moved(G, parameters[w]))
            for w, b, A, G in averages
        }
        self._directions = {
            w: (moved(P, parameters[w]), moved(Q, parameters[w]))
            for w, (P, Q) in self._directions.items()
        }
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """Return factors and their leading directions, as lists of tensors and numbers."""
        return {
            "updates": self.updates,
            "rest": self._rest.state_dict(),
            "averages": [list(factors) for factors in self._averages.values()],
            "directions": [[weight, P, Q] for weight, (P, Q) in self._directions.items()],
        }

    def from_state(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> Self:
        """Return one with saved factors."""
        check_entries(self, state, {"updates", "rest", "averages", "directions"})
        loaded = copy.copy(self)
        loaded.updates = saved_count(self, "updates", state["updates"])
        loaded._rest = self._rest.from_state(state["rest"], parameters)
        loaded._averages, loaded._directions = {}, {}
        for entry in _entries("averages", state["averages"], 4):
            weight, bias, A, G = entry
            if bias is not None and bias not in range(len(parameters)):
                raise ValueError(f"the saved Kronecker has a bias at the position {bias!r}")
            loaded._averages[weight] = Factors(weight, bias, _square(A), _square(G))
        for weight, P, Q in _entries("directions", state["directions"], 3):
            if not (isinstance(P, Tensor) and isinstance(Q, Tensor)):
                raise ValueError("the saved Kronecker has directions that are not tensors")
            loaded._directions[weight] = (P.clone(), Q.clone())
        if loaded._averages.keys() != loaded._directions.keys():
            raise ValueError("the saved Kronecker has factors and directions of different layers")
        loaded.check(parameters)
        for weight, (P, Q) in loaded._directions.items():
            factors = loaded._averages[weight]
            if P.shape[:1] != factors.A.shape[:1] or Q.shape[:1] != factors.G.shape[:1]:
                raise ValueError("the saved Kronecker has directions that do not fit its factors")
        loaded.to_(parameters)
        loaded._set()
        return loaded


def _median_of_positive(diagonal: Tensor) -> Tensor:
    """Return the median of the entries that are not negligible beside their mean; 0 for zeros."""
    negligible = 1e-6 * diagonal.mean()
    return diagonal.where(diagonal > negligible, torch.nan).nanmedian().nan_to_num(0.0)


def _entries(name: str, saved: object, length: int) -> list[Any]:
    """Return saved entries of one layer each, or raise ``ValueError``."""
    valid = isinstance(saved, list | tuple) and all(
        isinstance(entry, list | tuple) and len(entry) == length and isinstance(entry[0], int)
        for entry in saved
    )
    if not valid:
        raise ValueError(f"the saved {name!r} of Kronecker is damaged")
    return list(saved)  # type: ignore[call-overload,no-any-return]


def _square(factor: object) -> Tensor:
    if not isinstance(factor, Tensor) or factor.dim() != 2 or factor.shape[0] != factor.shape[1]:
        raise ValueError("the saved Kronecker has a factor that is not a square matrix")
    return factor.clone()


class _Layer(NamedTuple):
    """A layer's damped factors; left acts on rows of the weight, right on its columns."""

    weight: int
    bias: int | None
    left: DampedFactor
    right: DampedFactor

    def matrix(self, tensors: list[Tensor]) -> Tensor:
        """Return ``[weight | bias]``."""
        X = tensors[self.weight].reshape(len(tensors[self.weight]), -1)
        if self.bias is None:
            return X
        return torch.cat([X, tensors[self.bias].unsqueeze(1)], 1)
