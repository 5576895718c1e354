"""A Kronecker-factored C for linear and convolution layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from tangograd.preconditioners.base import Preconditioner
from tangograd.preconditioners.learned import InverseDiagonal
from tangograd.statistics import Factors, Statistics
from tangograd.vectors import dot, moved


class Kronecker(Preconditioner):
    """``C = (A + α I)⁻¹ ⊗ (G + β I)⁻¹`` for each layer, the inverse diagonal Fisher elsewhere.

    A and G are second moments of a layer's inputs and of the cotangents of its outputs (K-FAC's
    factors), averaged over refreshes. The damping ``α β`` is the mean curvature over all layers, so
    there is none to tune. TANGO corrects for what ``A ⊗ G`` misses of F: the limit is exact with
    any C.

    Large factors keep their leading :data:`RANK` directions, and one number for all others, which
    damping makes alike anyway: two thin products a side, in place of a large one, and no inverse of
    a large matrix. The directions follow the factors by subspace iteration.

    Example: for one sample a and one output, A is ``a aᵀ``.

        >>> C, a = Kronecker(), torch.tensor([[1.0, 2.0]])
        >>> layer = Factors(0, None, a.T @ a, torch.eye(1))
        >>> C.update(Statistics(1, [torch.ones(1, 2)], [], [layer]))
        >>> C.apply_inverse(C.apply([torch.tensor([[3.0, 4.0]])]))
        [tensor([[3.0000, 4.0000]])]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"fisher_diagonal", "layers"})

    #: Averages of the factors forget at this rate an update.
    FORGETTING = 0.3

    def __init__(self) -> None:
        self.updates = 0
        self._rest = InverseDiagonal()
        self._averages: list[Factors] = []
        self._spans: dict[int, tuple[Tensor, Tensor]] = {}  # leading directions of A and of G
        self._layers: list[_Layer] = []

    def update(self, statistics: Statistics) -> None:
        """Average the factors on."""
        if not all(bool(f.A.isfinite().all() & f.G.isfinite().all()) for f in statistics.layers):
            return
        self.updates += 1
        self._rest.update(statistics)
        rate = max(1 / self.updates, self.FORGETTING)
        known = {old.weight: old for old in self._averages}
        for new in statistics.layers:
            old = known.get(new.weight)
            if old is None:
                self._averages.append(new)
            elif old.A.shape == new.A.shape:
                old.A.lerp_(new.A, rate)
                old.G.lerp_(new.G, rate)
        for weight, _, A, G in self._averages:
            if not _mean(A) * _mean(G) > 0:
                continue  # no signal has come through this layer yet
            P, Q = self._spans.get(weight, (None, None))
            self._spans[weight] = (_leading(A, P), _leading(G, Q))
        self._set()

    def _set(self) -> None:
        """Damp the factors.

        The damping ``c I`` of ``A ⊗ G``, c being the mean curvature over all layers, is shared out
        between the factors in proportion to the means of their diagonals.
        """
        means = [(_mean(f.A), _mean(f.G)) for f in self._averages]
        elements = [len(f.A) * len(f.G) for f in self._averages]
        total = sum(a * g * n for (a, g), n in zip(means, elements, strict=True))
        c = total / max(sum(elements), 1)
        self._layers = []
        for (weight, bias, A, G), (a, g) in zip(self._averages, means, strict=True):
            if weight in self._spans:
                P, Q = self._spans[weight]
                right = _Spiked.of(A, P, (c * a / g) ** 0.5)
                left = _Spiked.of(G, Q, (c * g / a) ** 0.5)
                self._layers.append(_Layer(weight, bias, left, right))

    def apply(self, tensors: list[Tensor]) -> list[Tensor]:
        """``(G + β)⁻¹ X (A + α)⁻¹`` for the matrix ``X = [weight | bias]`` of a layer."""
        return self._multiply(tensors, self._rest.apply, lambda f, X: f.solve(X))

    def apply_inverse(self, tensors: list[Tensor]) -> list[Tensor]:
        """``(G + β) X (A + α)``."""
        return self._multiply(tensors, self._rest.apply_inverse, lambda f, X: f.multiply(X))

    def squared_norm(self, tensors: list[Tensor]) -> float:
        """``xᵀ C⁻¹ x``, at half the cost of ``C⁻¹ x``."""
        total, covered = 0.0, set()
        for layer in self._layers:
            covered |= {layer.weight, layer.bias}
            total += _squared_norm(layer.left, layer.right, layer.matrix(tensors))
        alone = [i for i in range(len(tensors)) if i not in covered]
        if alone:
            inverse = self._rest.apply_inverse(tensors)
            total += dot([tensors[i] for i in alone], [inverse[i] for i in alone])
        return total

    def _multiply(
        self,
        tensors: list[Tensor],
        rest: Callable[[list[Tensor]], list[Tensor]],
        product: Callable[[_Spiked, Tensor], Tensor],
    ) -> list[Tensor]:
        done: dict[int, Tensor] = {}
        for layer in self._layers:
            Y = product(layer.left, product(layer.right, layer.matrix(tensors).T).T)
            if layer.bias is not None:
                Y, done[layer.bias] = Y[:, :-1], Y[:, -1]
            done[layer.weight] = Y.reshape(tensors[layer.weight].shape)
        if len(done) == len(tensors):
            return [done[i] for i in range(len(tensors))]
        return [done.get(i, other) for i, other in enumerate(rest(tensors))]

    def check(self, parameters: Sequence[Tensor]) -> None:
        """Loaded factors must fit the parameters."""
        self._rest.check(parameters)
        for weight, _, A, G in self._averages:
            shape = tuple(parameters[weight].shape) if weight < len(parameters) else ()
            columns = parameters[weight].numel() // shape[0] if shape else 0
            if len(G) != (shape or (0,))[0] or len(A) not in (columns, columns + 1):
                raise ValueError(
                    f"Kronecker has learned factors of sides {len(G)} and {len(A)} for parameter "
                    f"number {weight}, which has shape {shape}; give each group its own"
                )

    def start(self, parameters: Sequence[Tensor]) -> None:
        """Layers, and so their factors, are known after the first step."""
        self._rest.start(parameters)

    def follow(self, parameters: Sequence[Tensor]) -> None:
        """The factors and their leading directions."""
        self._rest.follow(parameters)
        if all(f.A is moved(f.A, parameters[f.weight]) for f in self._averages):
            return
        self._averages = [
            Factors(w, b, moved(A, parameters[w]), moved(G, parameters[w]))
            for w, b, A, G in self._averages
        ]
        self._spans = {
            w: (moved(P, parameters[w]), moved(Q, parameters[w]))
            for w, (P, Q) in self._spans.items()
        }
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """Factors and their leading directions, as lists of tensors and numbers."""
        return {
            "updates": self.updates,
            "rest": self._rest.state_dict(),
            "averages": [list(factors) for factors in self._averages],
            "spans": [[weight, P, Q] for weight, (P, Q) in self._spans.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved factors."""
        self.updates = state["updates"]
        self._rest.load_state_dict(state["rest"])
        self._averages = [
            Factors(weight, bias, A.clone(), G.clone()) for weight, bias, A, G in state["averages"]
        ]
        self._spans = {weight: (P.clone(), Q.clone()) for weight, P, Q in state["spans"]}
        self._set()


#: Directions kept of a factor; smaller factors are kept whole.
RANK = 64


class _Spiked(NamedTuple):
    """``M = Q diag(values) Qᵀ + rest (I - Q Qᵀ)``, Q having orthonormal columns.

    Attributes:
        Q: the leading directions.
        values: the eigenvalues of M along them.
        rest: that of all other directions; ``None`` when Q is square.
    """

    Q: Tensor
    values: Tensor
    rest: float | None

    @classmethod
    def of(cls, matrix: Tensor, Q: Tensor, damping: float) -> _Spiked:
        """The matrix plus damping, Q spanning its leading directions."""
        # in double precision: single precision has returned NaN for singular matrices
        values, U = torch.linalg.eigh((Q.T @ matrix @ Q).double())
        values, U = values.clamp(min=0).to(matrix.dtype), U.to(matrix.dtype)
        others = len(matrix) - Q.shape[1]
        rest = float(matrix.trace() - values.sum()) / others if others else None
        rest = None if rest is None else max(rest, 0.0) + damping
        return cls(Q @ U, values + damping, rest)

    def multiply(self, X: Tensor) -> Tensor:
        """``M X``."""
        return self._times(self.values, self.rest, X)

    def solve(self, X: Tensor) -> Tensor:
        """``M⁻¹ X``."""
        return self._times(1 / self.values, None if self.rest is None else 1 / self.rest, X)

    def _times(self, values: Tensor, rest: float | None, X: Tensor) -> Tensor:
        Y = self.Q.T @ X
        if rest is None:
            return self.Q @ (values.unsqueeze(1) * Y)
        return torch.addmm(X, self.Q, (values - rest).unsqueeze(1) * Y, beta=rest)


def _leading(matrix: Tensor, before: Tensor | None) -> Tensor:
    """Orthonormal columns that span about the leading directions, from those known before."""
    if len(matrix) <= 2 * RANK:
        return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    if before is None:
        start = torch.Generator().manual_seed(0)
        before = torch.randn(len(matrix), RANK, generator=start, dtype=matrix.dtype)
        before = _iterate(matrix, _iterate(matrix, before.to(matrix.device)))
    return _iterate(matrix, before)


def _iterate(matrix: Tensor, Q: Tensor) -> Tensor:
    """Two subspace iterations."""
    matrix = matrix / matrix.trace()
    found: Tensor = torch.linalg.qr(matrix @ torch.linalg.qr(matrix @ Q).Q).Q
    return found


class _Layer(NamedTuple):
    """A layer's damped factors; left acts on rows of the weight, right on its columns."""

    weight: int
    bias: int | None
    left: _Spiked
    right: _Spiked

    def matrix(self, tensors: list[Tensor]) -> Tensor:
        """``[weight | bias]``."""
        X = tensors[self.weight].reshape(len(tensors[self.weight]), -1)
        if self.bias is None:
            return X
        return torch.cat([X, tensors[self.bias].unsqueeze(1)], 1)


def _squared_norm(left: _Spiked, right: _Spiked, X: Tensor) -> float:
    """``tr Xᵀ L X R``: with ``M = rest I + Q diag(values - rest) Qᵀ``, four sums of squares."""
    a, b = left.rest or 0.0, right.rest or 0.0
    on_left, on_right = left.values - a, right.values - b
    QX = left.Q.T @ X
    total = float(on_left @ (QX @ right.Q).square() @ on_right)
    if b:
        total += b * float(on_left @ QX.square().sum(1))
    if a:
        total += a * float(on_right @ (X @ right.Q).square().sum(0))
    if a and b:
        total += a * b * float(X.square().sum())
    return total


def _mean(matrix: Tensor) -> float:
    return float(matrix.diagonal().mean())
