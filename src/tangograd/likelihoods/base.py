"""The base class of likelihoods: a batch, its loss, and its contribution to TANGO's bracket."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from tangograd.estimates import ESTIMATES, pseudo_scores, row_dot, rows
from tangograd.likelihoods.batch import Batch, Encoded, Flatten, Weights, first_position
from tangograd.likelihoods.terms import build_term
from tangograd.session import Term, communicator, current

Fisher = Literal["expected", "sampled", "minibatch", "empirical"]


class Options(TypedDict, total=False):
    """The arguments of :class:`Likelihood` that families pass on."""

    fisher: Fisher
    generator: torch.Generator | None
    event_dims: int | None


class Likelihood(nn.Module, ABC):
    """Base class of likelihoods: one subclass for each family of output distributions.

    Args:
        fisher: the estimate F̂ of the Fisher matrix that TANGO uses; see
            :mod:`tangograd.estimates`.
        generator: source of the pseudo-samples; by default one seeded from torch's global
            generator, so that ``torch.manual_seed`` before construction makes a run repeatable.
            Its state is saved with the module's ``state_dict``. Processes that train one model
            draw independently even if they construct the likelihood with the same seed, so the
            state of one process serves all.
        event_dims: the number of trailing dimensions of the outputs that make up one sample.
    """

    #: How the shapes of outputs and targets correspond, for error messages.
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

    # ------------------------------------------------------------------ mathematics of the family

    @abstractmethod
    def log_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``ℓ = -ln p(y|z)`` of each sample, of the leading shape."""

    @abstractmethod
    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``s = ∂ℓ/∂z``, shaped like the outputs."""

    @abstractmethod
    def sample(self, outputs: Tensor) -> Tensor:
        """Draw ``ỹ ~ p(·|z)``, shaped like the targets."""

    @abstractmethod
    def fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """Return ``H t`` with ``H = E s̃ s̃ᵀ``, shaped like the outputs."""

    def midpoint_product(self, z: Tensor, y: Tensor, t: Tensor, *, prior: float = 0.0) -> Tensor:
        """Return ``H⁺(z, y) t``, the product with the midpoint Fisher information.

        H⁺ is the Fisher information halfway between the prediction and the target, scaled such that

        1. its expectation over ``y ~ p(·|z)`` is H(z) exactly, and
        2. it does not vanish where the prediction is confident and wrong. For families with a
           logit or log link, the Newton step of a single sample, ``(H⁺)⁻¹ s``, is bounded: by 3
           for logits, and by 2 for log-means.

        So a preconditioner or a step size learned from H⁺ is the one learned from H if the model is
        right, and saturated outputs do not make it infinite. The idea is related to the quadratic
        bounds of Böhning and Lindsay [1]_, which have the second property but not the first.

        This default, for families without a formula of their own, is ``H⁺ = (H + s sᵀ)/2``.

        Args:
            z: outputs, shape ``(B, *event)``.
            y: targets, B rows.
            t: shaped like z.
            prior: weight with which the midpoint is mixed with an uninformed prediction. A batch
                in which all predictions are confident and right has ``H⁺ ≈ 0``; with
                ``prior = 1/(20 B)`` it keeps a twentieth of the information of one uninformed
                observation. Property 1 then holds up to O(prior). What is uninformed depends on the
                family; this default ignores the argument.

        References:
            .. [1] D. Böhning and B. G. Lindsay, "Monotonicity of quadratic-approximation
               algorithms", Annals of the Institute of Statistical Mathematics 40 (1988), 641-663.
        """
        del prior
        s = self.score(z, y)
        return (self.fisher_product(z, t) + rows(row_dot(s, t), s) * s) / 2

    def midpoint_sample(self, z: Tensor, y: Tensor, *, prior: float = 0.0) -> Tensor:
        """Draw a random b, shaped like z, with ``E b = 0`` and ``E b bᵀ = H⁺(z, y)`` in each row.

        Rows are independent. The arguments are those of :meth:`midpoint_product`. The default is
        ``b = (s̃ ± s)/√2`` with a random sign and the score s̃ of a pseudo-sample.
        """
        del prior
        s_tilde, s = pseudo_scores(self, z), self.score(z, y)
        return (s_tilde + rows(self._signs(s.new_empty(len(s))), s) * s) / math.sqrt(2)

    # -------------------------------------------------------------------- targets and their checks

    @abstractmethod
    def _target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        """Return the shape that targets must have for these outputs."""

    @abstractmethod
    def _outside_domain(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, str]:
        """Return which targets are outside the family's domain, and the domain in words.

        The mask has the shape of the targets, or their leading shape.
        """

    def _check_layout(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise a ValueError if the shape of the targets does not fit the outputs."""
        wanted = self._target_shape(outputs)
        if tuple(targets.shape) != wanted:
            raise ValueError(
                f"{type(self).__name__} needs targets of shape {wanted} for outputs of shape "
                f"{tuple(outputs.shape)} ({self.layout}; no broadcasting); "
                f"got {tuple(targets.shape)}"
            )

    def _convert(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the targets in the data type that the formulas use."""
        return targets.to(outputs.dtype)

    def _counting(self, targets: Tensor) -> Tensor | None:
        """Return which samples count by a convention of the family; ``None`` if it has none."""
        del targets
        return None

    def _encode(self, z: Tensor, y: Tensor) -> Encoded:
        """Apply the family's options (class weights, …) to the flat targets of a batch."""
        del z
        return Encoded(y)

    def batch(
        self,
        outputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        fisher_weights: Tensor | None = None,
    ) -> Batch:
        """Flatten and check a batch; the arguments are those of :meth:`forward`.

        Shapes are checked here. What depends on data is not read from the device: see
        :attr:`Batch.invalid`.

        Raises:
            ValueError: the shapes do not match, or the batch is empty.
        """
        if targets.requires_grad and not outputs.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "the arguments seem to be swapped: the targets require gradients and the outputs "
                "do not. Call likelihood(outputs, targets)."
            )
        if not outputs.is_floating_point():
            raise TypeError(
                f"outputs are real numbers, such as logits; got {outputs.dtype}. Call "
                "likelihood(outputs, targets)."
            )
        events = self.event_dimensions(outputs)
        samples = outputs.shape[: outputs.dim() - events]
        if samples.numel() == 0:
            raise ValueError(NOTHING_COUNTS)
        given = Weights.checked(samples, weights, fisher_weights)
        counts, counting = given.counts(), self._counting(targets)
        if counting is not None and counting.shape == samples:
            counting = counting.reshape(-1)
            counts = counting if counts is None else counts & counting
        flatten = Flatten.of(samples, counts)
        z = flatten(outputs)
        shaped = z.detach().reshape(outputs.shape)
        self._check_layout(shaped, targets)
        converted = self._convert(z, targets.detach())
        outside, domain = self._outside_domain(shaped, converted)
        if counts is not None:
            outside = outside & counts.reshape(*samples, *[1] * (outside.dim() - len(samples)))
        encoded = self._encode(z.detach(), flatten(converted))
        loss_weights, fisher, W = given.normalised(z.detach(), counts, encoded)
        bad_weights, rule = given.outside_domain()
        invalid = outside.any()
        if not all(x is None for x in (*given, counts, encoded.mass)):
            invalid |= ~(fisher.sum() > 0)
        if bad_weights is not None:
            invalid = invalid | bad_weights

        def explain() -> str:
            if bad_weights is not None and bool(bad_weights):
                return rule
            if not bool(outside.any()):
                return NOTHING_COUNTS
            where = first_position(outside)
            return (
                f"{type(self).__name__} needs targets that are {domain}; "
                f"got {converted[where].tolist()} at position {where}"
            )

        return Batch(
            z=z,
            y=encoded.y,
            weights=loss_weights,
            fisher_weights=fisher,
            total_weight=W,
            element_weights=encoded.element_weights,
            invalid=invalid,
            explain=explain,
            flatten=flatten,
        )

    # --------------------------------------------------------------------------------------- loss

    def forward(
        self,
        outputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        fisher_weights: Tensor | None = None,
    ) -> Tensor:
        """Return the mean log-loss ``Σ w_i ℓ_i / Σ w_i``, a scalar.

        Args:
            outputs: ``z``, shape ``(*samples, *event)``.
            targets: ``y``; see the family.
            weights: ``w``, shape ``(*samples)``; all 1 by default. A sample of weight 0 does not
                count, whatever its outputs and target are.
            fisher_weights: ``w^F``, shape ``(*samples)``, not negative; by default ``w``, which
                must then not be negative. With them, w may have any sign (an advantage of a policy
                gradient, for example). The loss is ``Σ w_i ℓ_i / Σ w^F_i``, and the Fisher matrix
                ``Σ w^F_i J_iᵀ H_i J_i / Σ w^F_i``.
        """
        pass_ = current.get()
        if pass_ is not None:
            return pass_.contribute(self, outputs, targets, weights, fisher_weights)
        batch = self.batch(outputs, targets, weights, fisher_weights)
        batch.raise_if_invalid()
        return self.mean_loss(batch)

    def mean_loss(self, batch: Batch) -> Tensor:
        """Return ``Σ w_i ℓ_i`` of a batch."""
        return torch.dot(batch.weights, self._sample_losses(batch))

    def _sample_losses(self, batch: Batch) -> Tensor:
        """Return the loss of each row; families that set ``element_weights`` apply them here."""
        return self.log_loss(batch.z, batch.y)

    def term(self, batch: Batch, t: Tensor) -> Term:
        """Return the contribution of a batch to the bracket ``g - F̂ v``, in output space.

        Args:
            batch: with the graph of its outputs.
            t: the tangents of its outputs, of the same shape.
        """
        return build_term(self, batch, t)

    def _observe(self, batch: Batch) -> Tensor | None:
        """Return sums over a batch of training data, from which the likelihood learns."""
        del batch
        return None

    def _after_step(self, sums: Tensor) -> None:
        """Update from the sums of a step's batches, once the optimizer has taken the step."""

    def event_dimensions(self, outputs: Tensor) -> int:
        """Return the number of trailing dimensions of one sample."""
        events = min(1, outputs.dim() - 1) if self.event_dims is None else self.event_dims
        if not 0 <= events <= outputs.dim():
            raise ValueError(
                f"{type(self).__name__} got outputs of shape {tuple(outputs.shape)}; "
                f"they need a dimension of samples and {self.event_dims or 1} of the event"
            )
        return events

    # ----------------------------------------------------------------------------- random numbers

    def _generator_on(self, device: torch.device) -> torch.Generator:
        """Return the generator, or one seeded by it for another device or for this process."""
        if self.generator.device == device and communicator().size == 1:
            return self.generator
        return torch.Generator(device).manual_seed(self._seed())

    def _noise(self, like: Tensor) -> Tensor:
        """Draw standard normal numbers, shaped like a tensor."""
        generator = self._generator_on(like.device)
        return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)

    def _signs(self, like: Tensor) -> Tensor:
        """Draw random signs, shaped like a tensor."""
        generator = self._generator_on(like.device)
        signs = torch.randint(0, 2, like.shape, device=like.device, generator=generator)
        return signs.to(like.dtype) * 2 - 1

    def _seed(self) -> int:
        """Draw a seed that differs between processes whose generators are in the same state."""
        return int(torch.randint(2**62, (), generator=self.generator)) + communicator().rank

    def get_extra_state(self) -> Tensor:
        """Return the generator's state, which is saved with ``state_dict``."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the generator's state, so that a resumed run draws the same pseudo-samples."""
        self.generator.set_state(state.cpu())

    def extra_repr(self) -> str:
        """Return the options that ``print`` shows."""
        return f"fisher={self.fisher!r}"


#: The message for a batch without any sample that counts.
NOTHING_COUNTS = (
    "no sample counts: the batch is empty, or every target is ignored or has weight 0, so the mean "
    "loss is undefined. Skip such batches."
)
