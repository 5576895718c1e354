"""Likelihoods made from ``torch.distributions``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution

from tangograd.estimates import pseudo_scores, row_dot, rows
from tangograd.likelihoods.base import Fisher, Likelihood


class FromDistribution(Likelihood):
    """Any ``torch.distributions`` family, with scores by automatic differentiation.

    ``make(outputs)`` returns a distribution whose ``batch_shape`` starts with the leading
    dimensions of the outputs. A distribution in general has no closed form for H, so the estimate
    defaults to ``"sampled"``, and ``"expected"`` is refused.

    The midpoint Fisher information ``(H + s sᵀ)/2`` uses ``s̃ s̃ᵀ``, whose expectation is H, in
    place of H, with the score s̃ of a pseudo-sample: so the result of ``midpoint_product`` is
    random, with a new draw for each call. ``prior`` is not used.

    Args:
        make: maps outputs ``(B, *event)`` to a ``torch.distributions.Distribution``.
        **options: ``fisher``, ``generator`` and ``event_dims``; see :class:`Likelihood`. Draws use
            a seed from the generator and leave torch's global generator as it was.

    Example:
        >>> from torch.distributions import Laplace
        >>> likelihood = FromDistribution(lambda z: Laplace(z, 1.0))
        >>> likelihood(torch.zeros(2, 1), torch.tensor([[0.0], [1.0]]))  # ln 2 + ½
        tensor(1.1931)
    """

    layout = "batch_shape and event_shape of the distribution"

    def __init__(
        self,
        make: Callable[[Tensor], Distribution],
        *,
        fisher: Fisher = "sampled",
        generator: torch.Generator | None = None,
        event_dims: int | None = None,
    ) -> None:
        if fisher == "expected":
            raise ValueError(
                'FromDistribution has no closed form for the Fisher information: use "sampled" '
                '(or "minibatch", "empirical"), or write a Likelihood with a fisher_product'
            )
        super().__init__(fisher=fisher, generator=generator, event_dims=event_dims)
        self.make = make

    def log_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``-log_prob(y)``, summed over all but the leading dimensions."""
        leading = outputs.shape[: outputs.dim() - self.event_dimensions(outputs)]
        return -self.make(outputs).log_prob(targets).reshape(*leading, -1).sum(-1)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``∂ℓ/∂z``, by automatic differentiation."""
        with torch.enable_grad():
            z = outputs.detach().requires_grad_()
            (s,) = torch.autograd.grad(self.log_loss(z, targets).sum(), z)
        return s

    def sample(self, outputs: Tensor) -> Tensor:
        """Return ``make(outputs).sample()``, seeded from the generator."""
        devices = [outputs.device] if outputs.device.type != "cpu" else []
        with torch.random.fork_rng(devices=devices, device_type=outputs.device.type):
            torch.manual_seed(self._seed())
            return self.make(outputs).sample()

    def fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """Raise NotImplementedError: there is no closed form."""
        raise NotImplementedError("FromDistribution has no closed form for the Fisher information")

    def midpoint_product(self, z: Tensor, y: Tensor, t: Tensor, *, prior: float = 0.0) -> Tensor:
        """Return ``(s̃ ⟨s̃, t⟩ + s ⟨s, t⟩)/2``, which is random and has the expectation ``H⁺ t``."""
        del prior
        s_tilde, s = pseudo_scores(self, z), self.score(z, y)
        product = rows(row_dot(s_tilde, t), s) * s_tilde + rows(row_dot(s, t), s) * s
        return product / 2

    def _target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        distribution = self.make(outputs.detach())
        leading = outputs.shape[: outputs.dim() - self.event_dimensions(outputs)]
        if distribution.batch_shape[: len(leading)] != leading:
            raise ValueError(
                "FromDistribution needs one distribution a sample: for outputs of shape "
                f"{tuple(outputs.shape)}, `make` must return a batch_shape that starts with "
                f"{tuple(leading)}; got {tuple(distribution.batch_shape)} (event_shape "
                f"{tuple(distribution.event_shape)})"
            )
        return tuple(distribution.batch_shape + distribution.event_shape)

    def _convert(self, outputs: Tensor, targets: Tensor) -> Tensor:
        whole = not (targets.is_floating_point() or targets.dtype == torch.bool)
        return targets if whole else targets.to(outputs.dtype)

    def _outside_domain(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, str]:
        support = self.make(outputs.detach()).support
        inside = support.check(targets)  # type: ignore[union-attr]
        return ~inside, f"in the distribution's support, {support}"
