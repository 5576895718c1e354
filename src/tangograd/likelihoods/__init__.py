"""Likelihoods: one small class for each family of output distributions.

A likelihood is an ``nn.Module`` that maps outputs ``z`` and targets ``y`` to the mean log-loss
``Σ w_i ℓ_i / Σ w_i``, with ``ℓ = -ln p(y|z)`` in full (constants included). It implements the
mathematics of its family:

* ``log_loss(outputs, targets)``, one value for each sample;
* ``score(outputs, targets)``, the derivative ``s = ∂ℓ/∂z``;
* ``sample(outputs)``, pseudo-samples ``ỹ ~ p(·|z)``, from the likelihood's own generator;
* ``fisher_product(outputs, tangents)``, the product ``H t`` with the Fisher information of the
  output distribution, ``H = E s̃ s̃ᵀ``;
* ``midpoint_product`` and ``midpoint_sample``, the midpoint Fisher information ``H⁺(z, y)``, from
  which preconditioners and γ can be learned safely where outputs are saturated.

Outside ``optimizer.tangents`` it is an ordinary loss with ordinary gradients. Inside, the loss has
the same value and its backward pass sends the cotangent of TANGO's bracket ``g - (1-δt) F̂ v``.

Shapes: the last ``event_dims`` dimensions of the outputs (1 by default, 0 when the outputs have
only one) belong to one sample and are summed; the leading dimensions are samples and are averaged.
Samples of weight 0 do not count: their outputs and targets may be anything.
"""

from tangograd.likelihoods.base import Likelihood
from tangograd.likelihoods.categorical import Bernoulli, Categorical
from tangograd.likelihoods.continuous import Gamma, Gaussian, MeanScaleGaussian
from tangograd.likelihoods.counts import NegativeBinomial, Poisson
from tangograd.likelihoods.distribution import FromDistribution

__all__ = [
    "Bernoulli",
    "Categorical",
    "FromDistribution",
    "Gamma",
    "Gaussian",
    "Likelihood",
    "MeanScaleGaussian",
    "NegativeBinomial",
    "Poisson",
]
