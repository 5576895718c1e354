"""Likelihoods of classes and of binary targets."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from tangograd.likelihoods.base import Fisher, Likelihood, Options
from tangograd.likelihoods.batch import Encoded
from tangograd.likelihoods.elementwise import Elementwise

#: The sum of class probabilities may differ from 1 by this much (they may come in 16 bits).
_PROBABILITY_TOLERANCE = 0.01


class Categorical(Likelihood):
    """Classification: outputs are logits with classes last, targets are classes.

    ``ℓ = -log_softmax(z)_y``, ``s = p - e_y``, ``H = diag(p) - ppᵀ``. Targets are class indices of
    the leading shape or, if they are floating-point numbers, class probabilities q of the outputs'
    shape, for which ``ℓ = -Σ q_c log p_c`` and ``s = p - q``.

    With the arguments of ``nn.CrossEntropyLoss`` the mean loss is that of ``nn.CrossEntropyLoss``
    (which has its classes in dimension 1): class weights enter as weights of the samples, and the
    denominator of the mean is the sum of the weights of the targets' classes for class indices, and
    the number of samples for class probabilities. In general the loss of a sample is
    ``-Σ w_c q_c log p_c``, which is ``m`` times the cross entropy of a target ``q'`` with
    ``m = Σ w_c q_c`` and ``q'_c = w_c q_c / m``. Its score is ``m (p - q')``, and its Fisher
    information is defined as ``m (diag(p) - ppᵀ)``: m times that of the output distribution. This
    is the Hessian of the loss in z. The methods ``log_loss``, ``score`` and so on are those of the
    output distribution; ``weight`` and ``label_smoothing`` enter in ``forward``.

    The midpoint Fisher information is ``4/3 (diag(q) - qqᵀ)`` with ``q = (p + e_y)/2``; ``prior``
    mixes q with the uniform distribution.

    Args:
        ignore_index: class indices of this value do not count.
        weight: w, one non-negative number for each class; samples of a class of weight 0 do not
            count.
        label_smoothing: in [0, 1]: mixes q with the uniform distribution.
        fisher: see :class:`Likelihood`.
        generator: see :class:`Likelihood`.

    Example:
        >>> likelihood = Categorical()
        >>> likelihood(torch.zeros(2, 4), torch.tensor([0, 3]))  # ln 4
        tensor(1.3863)
        >>> likelihood(torch.zeros(1, 2), torch.tensor([[0.9, 0.1]]))  # ln 2
        tensor(0.6931)
    """

    layout = "classes last, one class index a sample"
    weight: Tensor | None

    def __init__(
        self,
        ignore_index: int = -100,
        *,
        weight: Tensor | None = None,
        label_smoothing: float = 0.0,
        fisher: Fisher = "expected",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(fisher=fisher, generator=generator, event_dims=1)
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing must be from 0 to 1; got {label_smoothing}")
        if weight is not None and weight.dim() != 1:
            raise ValueError(
                f"weight needs one number for each class; got shape {tuple(weight.shape)}"
            )
        self.ignore_index = ignore_index
        self.label_smoothing = float(label_smoothing)
        self.register_buffer("weight", _loss_weights("weight", weight))

    def log_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``-log_softmax(z)_y``, or ``-Σ q_c log p_c``."""
        log_p = outputs.log_softmax(-1)
        if targets.is_floating_point():
            impossible = (targets == 0) & (log_p == -math.inf)
            return -(targets * log_p.masked_fill(impossible, 0)).sum(-1)
        return -log_p.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``softmax(z) - e_y``, or ``softmax(z) - q``."""
        p = outputs.softmax(-1)
        if targets.is_floating_point():
            return p - targets
        return _add_at(p, targets, -1)

    def sample(self, outputs: Tensor) -> Tensor:
        """Draw one class for each sample."""
        return self._draw(outputs.softmax(-1))

    def fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """Return ``p ⊙ t - p ⟨p, t⟩``."""
        return _covariance_product(outputs.softmax(-1), tangents)

    def midpoint_product(self, z: Tensor, y: Tensor, t: Tensor, *, prior: float = 0.0) -> Tensor:
        """Return ``4/3 (q ⊙ t - q ⟨q, t⟩)``."""
        return _covariance_product(self._midpoint(z, y, prior), t) * (4 / 3)

    def midpoint_sample(self, z: Tensor, y: Tensor, *, prior: float = 0.0) -> Tensor:
        """Return ``√(4/3) (q - e_c)`` with a class c drawn from q."""
        q = self._midpoint(z, y, prior)
        return _add_at(q, self._draw(q), -1) * math.sqrt(4 / 3)

    def _midpoint(self, z: Tensor, y: Tensor, prior: float) -> Tensor:
        """Return ``q = (p + e_y)/2``, mixed with the uniform distribution."""
        p = z.softmax(-1)
        q = (p + y if y.is_floating_point() else _add_at(p, y, 1)) / 2
        return q + prior * (1 / q.shape[-1] - q) if prior else q

    def _draw(self, p: Tensor) -> Tensor:
        """Draw a class for each row, as ``torch.multinomial`` does, without reading the device."""
        generator = self._generator_on(p.device)
        return (p / torch.empty_like(p).exponential_(generator=generator)).argmax(-1)

    def _target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        return tuple(outputs.shape[:-1])

    def _check_layout(self, outputs: Tensor, targets: Tensor) -> None:
        if self.weight is not None and len(self.weight) != outputs.shape[-1]:
            raise ValueError(
                f"Categorical has weights of {len(self.weight)} classes; "
                f"the outputs have {outputs.shape[-1]}"
            )
        if targets.is_complex() or (targets.is_floating_point() and targets.shape != outputs.shape):
            raise ValueError(
                "Categorical needs integer class indices, or class probabilities of the outputs' "
                f"shape {tuple(outputs.shape)}; got {targets.dtype} of shape {tuple(targets.shape)}"
            )
        if not targets.is_floating_point():
            super()._check_layout(outputs, targets)

    def _convert(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return targets.to(outputs.dtype) if targets.is_floating_point() else targets.long()

    def _counting(self, targets: Tensor) -> Tensor | None:
        if targets.is_floating_point():
            return None
        targets = targets.long()
        counting = targets != self.ignore_index
        if self.weight is not None and not self.label_smoothing:
            known = targets.clamp(0, len(self.weight) - 1)
            counting &= (self.weight[known] != 0) | (known != targets)
        return counting

    def _outside_domain(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, str]:
        classes = outputs.shape[-1]
        if not targets.is_floating_point():
            return targets.clamp(0, classes - 1) != targets, f"classes from 0 to {classes - 1}"
        inside = (targets >= 0).all(-1) & ((targets.sum(-1) - 1).abs() <= _PROBABILITY_TOLERANCE)
        return ~inside, "class probabilities (not negative, with sum 1)"

    def _encode(self, z: Tensor, y: Tensor) -> Encoded:
        classes, smoothing = z.shape[-1], self.label_smoothing
        w = None if self.weight is None else self.weight.to(z)
        divisor = None
        if not y.is_floating_point():
            y = y.clamp(0, classes - 1)  # invalid targets must not index out of bounds
            divisor = None if w is None else w[y]
            if not smoothing:
                return Encoded(y, mass=divisor, divisor=divisor)
            y = one_hot(y, classes).to(z)
        if smoothing:
            y = y * (1 - smoothing) + smoothing / classes
        weighted = y if w is None else w * y
        mass = weighted.sum(-1)
        y = weighted / mass.clamp(min=torch.finfo(z.dtype).tiny).unsqueeze(-1)
        return Encoded(y, mass=mass, divisor=divisor)


class Bernoulli(Elementwise):
    """Binary targets: outputs are logits, targets are in [0, 1].

    ``ℓ = softplus(z) - y z``, ``s = p - y``, ``H = p(1-p)`` with ``p = sigmoid(z)``.

    With ``pos_weight`` w the loss of an element is ``-[w y log p + (1-y) log(1-p)]``, as in
    ``nn.BCEWithLogitsLoss``: ``m = w y + 1 - y`` times the loss for the target ``w y / m``. Its
    Fisher information is defined as ``m p(1-p)``, which is its second derivative in z. The methods
    ``log_loss``, ``score`` and so on are those of the output distribution; ``pos_weight`` enters in
    ``forward``. The loss of a sample is the sum over its elements, where ``nn.BCEWithLogitsLoss``
    takes the mean.

    The midpoint Fisher information is ``4/3 q(1-q)`` with ``q = (p + y)/2``; ``prior`` mixes q
    with ½.

    Args:
        pos_weight: w, a number, or a tensor that broadcasts against one sample's outputs;
            non-negative.
        **options: ``fisher``, ``generator`` and ``event_dims``; see :class:`Likelihood`.

    Example:
        >>> Bernoulli()(torch.zeros(3), torch.tensor([0.0, 1.0, 1.0]))  # ln 2
        tensor(0.6931)
    """

    domain = "between 0 and 1"
    pos_weight: Tensor | None

    def __init__(
        self, pos_weight: Tensor | float | None = None, **options: Unpack[Options]
    ) -> None:
        super().__init__(**options)
        if pos_weight is not None and not isinstance(pos_weight, Tensor):
            pos_weight = torch.tensor(float(pos_weight))
        self.register_buffer("pos_weight", _loss_weights("pos_weight", pos_weight))

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``sigmoid(z) - y``."""
        return outputs.sigmoid() - targets

    def sample(self, outputs: Tensor) -> Tensor:
        """Draw 0 or 1 for each element."""
        return torch.bernoulli(
            outputs.sigmoid().nan_to_num(0.5), generator=self._generator_on(outputs.device)
        )

    def _element_loss(self, z: Tensor, y: Tensor) -> Tensor:
        return softplus(z) - y * z

    def _fisher_diagonal(self, z: Tensor) -> Tensor:
        return z.sigmoid() * (-z).sigmoid()

    def _midpoint_diagonal(self, z: Tensor, y: Tensor, prior: float) -> Tensor:
        q, not_q = (z.sigmoid() + y) / 2, ((-z).sigmoid() + (1 - y)) / 2
        return (q + prior * (0.5 - q)) * (not_q + prior * (0.5 - not_q)) * (4 / 3)

    def _inside(self, y: Tensor) -> Tensor:
        return (y >= 0) & (y <= 1)

    def _encode(self, z: Tensor, y: Tensor) -> Encoded:
        if self.pos_weight is None:
            return Encoded(y)
        of_one_sample = (1, *z.shape[1:])
        pairs = zip(self.pos_weight.shape[::-1], of_one_sample[::-1], strict=False)
        if self.pos_weight.dim() > z.dim() or any(a not in (1, b) for a, b in pairs):
            raise ValueError(
                f"pos_weight of shape {tuple(self.pos_weight.shape)} does not broadcast against "
                f"the outputs of one sample, of shape {tuple(z.shape[1:])}"
            )
        positive = self.pos_weight.to(z) * y
        m = positive + (1 - y)
        return Encoded(positive / m.clamp(min=torch.finfo(z.dtype).tiny), element_weights=m)


def _loss_weights(name: str, weight: Tensor | None) -> Tensor | None:
    """Return a copy of weights of classes.

    Raises:
        ValueError: they are not finite and non-negative.
    """
    if weight is None:
        return None
    if not bool(((weight >= 0) & weight.isfinite()).all()):
        raise ValueError(f"{name} must be finite and not negative; got {weight.tolist()}")
    return weight.detach().clone()


def _add_at(p: Tensor, index: Tensor, value: float) -> Tensor:
    """Return p with a number added to one class of each sample."""
    added = torch.full_like(index, value, dtype=p.dtype).unsqueeze(-1)
    return p.scatter_add(-1, index.long().unsqueeze(-1), added)


def _covariance_product(p: Tensor, t: Tensor) -> Tensor:
    """Return ``(diag(p) - ppᵀ) t``."""
    pt = p * t
    return pt.addcmul(p, pt.sum(-1, keepdim=True), value=-1)
