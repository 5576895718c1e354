"""Likelihoods of real and of positive targets."""

from __future__ import annotations

import math
from typing import Literal, Unpack

import torch
from torch import Tensor

from tangograd.likelihoods.base import Fisher, Likelihood, Options
from tangograd.likelihoods.batch import Batch
from tangograd.likelihoods.elementwise import Elementwise, positive
from tangograd.session import communicator


class Gaussian(Elementwise):
    """Regression: outputs are means, ``ℓ = (y-z)²/2σ² + ½ ln 2πσ²``, ``H = 1/σ²``.

    The midpoint Fisher information is H itself, since H does not depend on z.

    The paper sets σ² to the actual mean squared error. With ``"expected"`` and ``"sampled"``, σ²
    only rescales γ (TANGO with σ² and γ is TANGO with 1 and γ/σ²); it matters for the choice of a
    fixed γ, and for ``"empirical"``.

    Args:
        variance: σ², or ``"tracked"``: a running mean of the squared error on the training batches,
            kept in the buffer ``variance``. The first batch sets it; then the k-th optimizer step
            moves it by 1/k, and by 1% from the hundredth step on. The effective rate is γ/σ²: a
            fixed γ that is right for the first σ² becomes too large as σ² falls, so combine
            ``"tracked"`` with a γ rule.
        **options: ``fisher``, ``generator`` and ``event_dims``; see :class:`Likelihood`.

    Example:
        >>> Gaussian(variance=4.0)(torch.zeros(1), torch.tensor([2.0]))  # ½ + ½ ln 8π
        tensor(2.1121)
    """

    domain = "finite numbers"
    variance: Tensor | float
    steps: Tensor
    _known: Tensor

    def __init__(
        self, variance: float | Literal["tracked"] = 1.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(**options)
        self.tracked = variance == "tracked"
        initial = 1.0 if isinstance(variance, str) else float(variance)
        if isinstance(variance, str) and not self.tracked:
            raise ValueError(f'variance must be a number or "tracked"; got {variance!r}')
        if not (0 < initial < math.inf):
            raise ValueError(f"variance must be positive and finite; got {variance}")
        if self.tracked:
            self.register_buffer("variance", torch.tensor(initial))
            self.register_buffer("steps", torch.tensor(0))
            self.register_buffer("_known", torch.tensor(False), persistent=False)
        else:
            self.variance = initial
        self._stepped = False  # whether this object has seen a step: the first batch sets σ²

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``(z - y)/σ²``."""
        return (outputs - targets) / self._variance(outputs)

    def sample(self, outputs: Tensor) -> Tensor:
        """Draw ``z + σ ε``."""
        noise = self._noise(outputs)
        return outputs + self._variance(outputs).sqrt() * noise

    def _element_loss(self, z: Tensor, y: Tensor) -> Tensor:
        variance = self._variance(z)
        return (y - z).square() / (2 * variance) + (2 * math.pi * variance).log() / 2

    def _fisher_diagonal(self, z: Tensor) -> Tensor:
        return self._variance(z).reciprocal().expand_as(z)

    def _inside(self, y: Tensor) -> Tensor:
        return y.isfinite()

    def _midpoint_diagonal(self, z: Tensor, y: Tensor, prior: float) -> Tensor:
        del y, prior
        return self._fisher_diagonal(z)

    def _variance(self, like: Tensor) -> Tensor:
        if isinstance(self.variance, Tensor):
            return self.variance.to(like)
        return torch.full((), self.variance, dtype=like.dtype, device=like.device)

    def _observe(self, batch: Batch) -> Tensor | None:
        """Return the sum of squared errors of the batch, and its weight."""
        if not self.tracked:
            return None
        squares = (batch.z - batch.y).square().reshape(len(batch.z), -1).mean(1)
        W = batch.total_weight
        sums = torch.stack([torch.dot(batch.fisher_weights, squares).to(W) * W, W])
        if not self._stepped:
            total, weight = communicator().average(sums)
            self._set_variance(total / weight, (self.steps == 0) & ~self._known)
        return sums

    def _after_step(self, sums: Tensor) -> None:
        self._stepped = True
        self.steps += 1
        rate = self.steps.reciprocal().clamp(min=0.01)
        error = sums[0] / sums[1]
        self._set_variance(self.variance + rate * (error - self.variance), error.isfinite())

    def _set_variance(self, value: Tensor, condition: Tensor) -> None:
        """Set the variance where the value is finite and the condition holds, on the device."""
        assert isinstance(self.variance, Tensor)
        condition = condition & value.isfinite()
        value = value.to(self.variance).clamp(min=torch.finfo(self.variance.dtype).tiny)
        self.variance.copy_(value.where(condition, self.variance))
        self._known.logical_or_(condition)


class Gamma(Elementwise):
    """Positive amounts: outputs are log-means, ``s = k(1 - y/μ)``, ``H = k``.

    The midpoint Fisher information is ``k (1 + y/μ)/2``. It is at least k/2, so ``prior`` is not
    needed and not used.

    Args:
        concentration: the shape k > 0; the coefficient of variation is ``1/√k``.
        **options: ``fisher``, ``generator`` and ``event_dims``; see :class:`Likelihood`.

    Example:
        >>> Gamma(concentration=1.0)(torch.zeros(1), torch.tensor([2.0]))  # exponential: ℓ = y
        tensor(2.)
    """

    domain = "positive and finite"

    def __init__(self, concentration: float, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.concentration = positive("concentration", concentration)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``k(1 - y/μ)``."""
        return self.concentration * (1 - targets * (-outputs).exp())

    def sample(self, outputs: Tensor) -> Tensor:
        """Draw ``μ/k`` times a standard Gamma variable of shape k."""
        shape = torch.full_like(outputs, self.concentration)
        drawn = torch._standard_gamma(shape, generator=self._generator_on(outputs.device))
        return drawn * outputs.exp() / self.concentration

    def _element_loss(self, z: Tensor, y: Tensor) -> Tensor:
        k = self.concentration
        constant = math.lgamma(k) - k * math.log(k)
        return k * (z + y * (-z).exp()) - (k - 1) * y.log() + constant

    def _fisher_diagonal(self, z: Tensor) -> Tensor:
        return torch.full_like(z, self.concentration)

    def _midpoint_diagonal(self, z: Tensor, y: Tensor, prior: float) -> Tensor:
        del prior
        return self.concentration * (1 + y * (-z).exp()) / 2

    def _inside(self, y: Tensor) -> Tensor:
        return (y > 0) & y.isfinite()


class MeanScaleGaussian(Likelihood):
    """Regression with a predicted scale: the last dimension holds the means μ, then the ``ln σ``.

    Outputs ``(…, 2d)``, targets ``(…, d)``. ``s = ((μ-y)/σ², 1 - (y-μ)²/σ²)``,
    ``H = diag(1/σ², 2)``. This is the model of the paper's Figure 1.

    The midpoint Fisher information is ``diag(1/σ², 1 + (y-μ)²/σ²)``. It is never near 0 in units of
    the residual, so ``prior`` is not needed and not used.

    Example:
        >>> MeanScaleGaussian()(torch.zeros(1, 2), torch.zeros(1, 1))  # ½ ln 2π
        tensor(0.9189)
    """

    layout = "one target for each pair of mean and log-scale"

    def __init__(
        self, *, fisher: Fisher = "expected", generator: torch.Generator | None = None
    ) -> None:
        super().__init__(fisher=fisher, generator=generator, event_dims=1)

    def log_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``(y-μ)²/2σ² + ln σ + ½ ln 2π``, summed over the event."""
        mu, log_sigma = outputs.chunk(2, -1)
        error = ((targets - mu) * (-log_sigma).exp()).square()
        return (error / 2 + log_sigma + math.log(2 * math.pi) / 2).sum(-1)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``((μ-y)/σ², 1 - (y-μ)²/σ²)``."""
        mu, log_sigma = outputs.chunk(2, -1)
        precision = (-2 * log_sigma).exp()
        error = mu - targets
        return torch.cat([error * precision, 1 - error.square() * precision], -1)

    def sample(self, outputs: Tensor) -> Tensor:
        """Draw ``μ + σ ε``."""
        mu, log_sigma = outputs.chunk(2, -1)
        noise = self._noise(mu)
        return mu + log_sigma.exp() * noise

    def fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """Return ``(t_μ/σ², 2 t_{ln σ})``."""
        _, log_sigma = outputs.chunk(2, -1)
        t_mu, t_log_sigma = tangents.chunk(2, -1)
        return torch.cat([t_mu * (-2 * log_sigma).exp(), 2 * t_log_sigma], -1)

    def midpoint_product(self, z: Tensor, y: Tensor, t: Tensor, *, prior: float = 0.0) -> Tensor:
        """Return ``(t_μ/σ², (1 + (y-μ)²/σ²) t_{ln σ})``."""
        del prior
        return self._midpoint_diagonal(z, y) * t

    def midpoint_sample(self, z: Tensor, y: Tensor, *, prior: float = 0.0) -> Tensor:
        """Return ``b = ±√H⁺``, with an independent random sign for each element."""
        del prior
        return self._signs(z) * self._midpoint_diagonal(z, y).sqrt()

    def _midpoint_diagonal(self, z: Tensor, y: Tensor) -> Tensor:
        mu, log_sigma = z.chunk(2, -1)
        # by logarithms, since 0 · ∞ is NaN
        error = (2 * ((y - mu).abs().log() - log_sigma)).exp()
        diagonal = torch.cat([(-2 * log_sigma).exp(), 1 + error], -1)
        return diagonal.clamp(max=torch.finfo(z.dtype).max)

    def _target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        if outputs.shape[-1] % 2:
            raise ValueError(
                "MeanScaleGaussian splits the last dimension of the outputs into means and "
                f"log-scales, so it must be even; got shape {tuple(outputs.shape)}"
            )
        return (*outputs.shape[:-1], outputs.shape[-1] // 2)

    def _outside_domain(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, str]:
        del outputs
        return ~targets.isfinite(), "finite numbers"
