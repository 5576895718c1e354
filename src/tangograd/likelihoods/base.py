"""What the families share: flattening, weights, checks, and the hand-over to TANGO."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from tangograd.distributed import here
from tangograd.fisher import ESTIMATES, rows
from tangograd.session import NonFiniteLossError, Term, current

Fisher = Literal["expected", "sampled", "minibatch", "empirical"]


class Options(TypedDict, total=False):
    """The arguments of :class:`Likelihood` that families pass on."""

    fisher: Fisher
    generator: torch.Generator | None
    event_dims: int | None


class Batch(NamedTuple):
    """A batch, one row a sample, without those that do not count.

    Attributes:
        z: the outputs.
        y: the targets.
        w: the weights, summing to 1.
        W: the sum that they had.
        select: ``(*samples, *event) -> (B, *event)``, what made z of the outputs.
    """

    z: Tensor
    y: Tensor
    w: Tensor
    W: float
    select: Callable[[Tensor], Tensor]


class Likelihood(nn.Module, ABC):
    """Base of the families: flattening, weights, checks, and the hand-over to TANGO.

    Args:
        fisher: which F̂ TANGO uses with this likelihood; see :mod:`tangograd.fisher`.
        generator: source of the pseudo-samples; by default one seeded from torch's global
            generator, so that ``torch.manual_seed`` before construction makes a run repeatable.
            Its state is saved with the module's ``state_dict``. Processes that train one model
            draw independently, though they construct it with the same seed: one's state serves all.
        event_dims: how many trailing dimensions of the outputs make up one sample.
    """

    #: How outputs and targets go together, in words.
    layout = "one target for each output element"

    def __init__(
        self,
        *,
        fisher: Fisher = "expected",
        generator: torch.Generator | None = None,
        event_dims: int | None = None,
    ) -> None:
        super().__init__()
        if fisher not in ESTIMATES:
            raise ValueError(f"fisher must be one of {', '.join(ESTIMATES)}; got {fisher!r}")
        if event_dims is not None and event_dims < 0:
            raise ValueError(f"event_dims counts dimensions, so it is at least 0; got {event_dims}")
        if generator is None:
            generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        self.fisher = fisher
        self.generator = generator
        self.event_dims = event_dims

    @abstractmethod
    def log_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """``ℓ = -ln p(y|z)`` of each sample, of the leading shape."""

    @abstractmethod
    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """``s = ∂ℓ/∂z``, shaped like the outputs."""

    @abstractmethod
    def sample(self, outputs: Tensor) -> Tensor:
        """``ỹ ~ p(·|z)``, shaped like the targets."""

    @abstractmethod
    def fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """``H t`` with ``H = E s̃ s̃ᵀ``, shaped like the outputs."""

    @abstractmethod
    def _target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        """The shape that targets must have for these outputs."""

    @abstractmethod
    def _outside_domain(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, str]:
        """Where targets are not in the family's domain, and the domain in words."""

    def forward(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mean log-loss ``Σ w_i ℓ_i / Σ w_i``, a scalar.

        Args:
            outputs: ``z``, shape ``(*samples, *event)``.
            targets: ``y``; see the family.
            weights: ``w``, shape ``(*samples)``, non-negative; all 1 by default.
        """
        pass_ = current.get()
        if pass_ is None:
            return self.mean_loss(self.batch(outputs, targets, weights))
        return pass_.contribute(self, outputs, targets, weights)

    def mean_loss(self, batch: Batch) -> Tensor:
        """Return ``Σ w_i ℓ_i`` of a batch."""
        return torch.dot(batch.w, self.log_loss(batch.z, batch.y))

    def term(self, batch: Batch, t: Tensor) -> Term:
        """Return the bracket ``g - F̂ v`` of a batch in output space.

        Args:
            batch: with the graph of its outputs.
            t: the tangents of its outputs, of the same shape.

        Raises:
            NonFiniteLossError: the loss is infinite or NaN; no random numbers have been drawn.
        """
        z, y, w, W, select = batch
        plain = z.detach()
        observation = self._observe(plain, y, w, W)
        loss = self.mean_loss(batch._replace(z=plain))
        _require_finite_loss(loss, plain)
        estimate = ESTIMATES[self.fisher]
        s = self.score(plain, y)

        @cache
        def s_tilde(copy: int) -> Tensor:
            del copy  # each has draws of its own
            return estimate.pseudo_scores(self, plain, s)

        def product(t: Tensor) -> Tensor:
            return estimate.product(self, plain, t, lambda: s_tilde(0), w)

        def probe() -> Tensor:  # signs make the scores of data, too, independent and centred
            scores = estimate.pseudo_scores(self, plain, s)
            return rows(w.sqrt() * self._signs(w), s) * scores

        return Term(
            outputs=z,
            tangents=t,
            gradient=rows(w, s) * s,
            product=product(t),
            weights=w,
            total_weight=W,
            rank_one=estimate.rank_one,
            closed_form=estimate.closed_form,
            draw=lambda position, copy: estimate.factor(s_tilde(copy), w, position),
            probe=probe,
            again=product,
            rows=select,
            loss=loss,
            after_step=self._after_step,
            observation=observation,
        )

    def _observe(self, z: Tensor, y: Tensor, w: Tensor, W: float) -> Any:
        """What to remember of a batch of training data."""
        del z, y, w, W

    def _after_step(self, observations: list[Any]) -> None:
        """Learn from the batches of a step, once the optimizer has made it."""

    def _convert(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Targets in the type that the formulas work with."""
        return targets.to(outputs.dtype)

    def batch(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Batch:
        """Check a batch and flatten it to one row per sample, without the ignored samples."""
        outputs = _at_least_single(outputs)
        events = self.event_dimensions(outputs)
        leading = outputs.shape[: outputs.dim() - events]
        wanted = self._target_shape(outputs)
        if tuple(targets.shape) != wanted:
            raise ValueError(
                f"{type(self).__name__} needs targets of shape {wanted} for outputs of shape "
                f"{tuple(outputs.shape)} ({self.layout}; no broadcasting); "
                f"got {tuple(targets.shape)}"
            )
        targets = self._convert(outputs, targets.detach())
        kept = None
        if weights is not None or not self._plainly_valid(outputs, targets):
            kept = self._counting(targets, leading, weights)
            self._check_domain(outputs, targets, kept)

        def select(tensor: Tensor) -> Tensor:
            if tensor.is_floating_point():
                tensor = _at_least_single(tensor)
            if len(leading) != 1:
                tensor = tensor.reshape(-1, *tensor.shape[len(leading) :])
            return tensor if kept is None else tensor[kept.reshape(-1)]

        z, y = select(outputs), select(targets)
        W = float(len(z))
        if weights is None and W:
            return Batch(z, y, z.new_full((len(z),), 1 / W), W, select)
        if weights is not None:
            w = weights.detach().to(z.dtype).reshape(-1)
            w = w if kept is None else w[kept.reshape(-1)]
            W = float(w.sum(dtype=torch.float64))
        if W == 0:
            raise ValueError(
                "no sample counts: the batch is empty, or every target is ignored or has weight "
                "0, so the mean loss is undefined. Skip such batches."
            )
        return Batch(z, y, w / W, W, select)

    def _plainly_valid(self, outputs: Tensor, targets: Tensor) -> bool:
        """Whether a quick look shows that all targets are in the domain and none is ignored."""
        del outputs, targets
        return False

    def _counting(
        self, targets: Tensor, leading: torch.Size, weights: Tensor | None
    ) -> Tensor | None:
        """Which samples count, of the leading shape; ``None`` when all do."""
        ignored = self._ignored(targets)
        if weights is not None:
            if weights.shape != leading:
                raise ValueError(
                    f"weights need one value a sample, shape {tuple(leading)}; "
                    f"got {tuple(weights.shape)}"
                )
            if not bool(((weights >= 0) & weights.isfinite()).all()):
                raise ValueError("weights must be finite and not negative")
            ignored = weights == 0 if ignored is None else ignored | (weights == 0)
        return None if ignored is None or not bool(ignored.any()) else ~ignored

    def _check_domain(self, outputs: Tensor, targets: Tensor, kept: Tensor | None) -> None:
        """Say where a target that counts is outside the family's domain."""
        outside, domain = self._outside_domain(outputs, targets)
        if kept is not None:
            outside = outside & kept.reshape(*kept.shape, *[1] * (outside.dim() - kept.dim()))
        if bool(outside.any()):
            where = tuple(int(i) for i in outside.nonzero()[0])
            raise ValueError(
                f"{type(self).__name__} needs targets that are {domain}; "
                f"got {targets[where].tolist()} at position {where}"
            )

    def _ignored(self, targets: Tensor) -> Tensor | None:
        """Samples that a family's own convention leaves out, of the leading shape."""
        del targets
        return None

    def event_dimensions(self, outputs: Tensor) -> int:
        """The number of trailing dimensions of one sample."""
        events = min(1, outputs.dim() - 1) if self.event_dims is None else self.event_dims
        if not 0 <= events <= outputs.dim():
            raise ValueError(
                f"{type(self).__name__} got outputs of shape {tuple(outputs.shape)}; "
                f"they need a dimension of samples and {self.event_dims or 1} of the event"
            )
        return events

    def _generator_on(self, device: torch.device) -> torch.Generator:
        """The generator, or one that it seeds: for another device, or one of several processes."""
        if self.generator.device == device and here().size == 1:
            return self.generator
        return torch.Generator(device).manual_seed(self._seed())

    def _noise(self, like: Tensor) -> Tensor:
        """Standard normal numbers, shaped like a tensor."""
        generator = self._generator_on(like.device)
        return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)

    def _signs(self, like: Tensor) -> Tensor:
        """Random signs, shaped like a tensor."""
        generator = self._generator_on(like.device)
        signs = torch.randint(0, 2, like.shape, device=like.device, generator=generator)
        return signs.to(like.dtype) * 2 - 1

    def _seed(self) -> int:
        """Another one for each process, though the generators of all may be in the same state."""
        return int(torch.randint(2**62, (), generator=self.generator)) + here().rank

    def get_extra_state(self) -> Tensor:
        """The generator's state, saved with ``state_dict``."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Continue the pseudo-samples where the saved run stood."""
        self.generator.set_state(state.cpu())

    def extra_repr(self) -> str:
        """Shown by ``print``."""
        return f"fisher={self.fisher!r}"


def _at_least_single(tensor: Tensor) -> Tensor:
    """Losses of 16-bit outputs are computed in single precision, as torch's are by autocast."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _require_finite_loss(loss: Tensor, z: Tensor) -> None:
    if math.isfinite(float(loss)):
        return
    bad = (~z.isfinite()).nonzero()
    reason = (
        f"the outputs are not finite, first at row {int(bad[0][0])}"
        if len(bad)
        else "the outputs are finite but too large for the log-loss"
    )
    raise NonFiniteLossError(
        f"the loss is {loss.item()}: {reason}. The step is not taken and the state is untouched; "
        "check the inputs, or lower gamma or lr.",
        loss,
    )


class Elementwise(Likelihood):
    """Families in which each output element has its own scalar target, independent given z."""

    #: The domain of the targets, in words.
    domain: str

    @abstractmethod
    def _element_loss(self, z: Tensor, y: Tensor) -> Tensor:
        """``-ln p(y|z)`` of each element."""

    @abstractmethod
    def _fisher_diagonal(self, z: Tensor) -> Tensor:
        """``E (∂ℓ/∂z)²`` of each element."""

    @abstractmethod
    def _inside(self, y: Tensor) -> Tensor:
        """Whether each target is in the domain (NaN is not)."""

    def log_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of the elements' log-losses over the event."""
        loss = self._element_loss(outputs, self._convert(outputs, targets))
        return (
            loss.sum(tuple(range(-self.event_dimensions(outputs), 0)))
            if self.event_dimensions(outputs)
            else loss
        )

    def fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """``H`` is diagonal."""
        return self._fisher_diagonal(outputs) * tangents

    def _target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        return tuple(outputs.shape)

    def _outside_domain(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, str]:
        del outputs
        return ~self._inside(targets), self.domain


def positive(name: str, value: float) -> float:
    """The value, or an error that names it."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be positive and finite; got {value}")
    return float(value)
