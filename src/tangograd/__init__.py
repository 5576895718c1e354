"""Natural-gradient optimisation with no Fisher matrix: TANGO (Ollivier 2017).

TANGO keeps a velocity ``v`` that solves ``F v = gradient`` by stochastic steps, while the
parameters ``θ`` move along ``v``. As the learning rate δt falls, θ follows the exact natural
gradient. The parts combine freely::

    TANGO = likelihood × Fisher estimate × tangents × γ rule × preconditioner

* a **likelihood** (:class:`Categorical`, :class:`Gaussian`, …) turns outputs and targets into a
  log-loss, and knows how to sample from the model and what its Fisher information is;
* a **Fisher estimate** (``fisher="expected"``, ``"sampled"``, ``"minibatch"``, ``"empirical"``)
  says which F̂ multiplies the velocity;
* the **tangents** carry ``J v`` through the model's own forward pass, as dual numbers;
* a **γ rule** (:mod:`tangograd.curvature`) sets the rate of the velocity;
* a **preconditioner** ``C`` (:mod:`tangograd.preconditioners`) speeds it up and leaves its limit
  unchanged.

The paper's two equations are :func:`tangograd.optimizer.tango_update`. The exact objects that
TANGO approaches (dense Fisher matrix, natural gradient and its flow) are in
:mod:`tangograd.reference`.

Names are resolved on first use, so that ``import tangograd`` needs neither PyTorch nor matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tangograd.clipping import clip_move_
    from tangograd.likelihoods import (
        Bernoulli,
        Categorical,
        FromDistribution,
        Gamma,
        Gaussian,
        Likelihood,
        MeanScaleGaussian,
        NegativeBinomial,
        Poisson,
    )
    from tangograd.optimizer import TANGO

__version__ = "0.1.0"

__all__ = [
    "TANGO",
    "Bernoulli",
    "Categorical",
    "FromDistribution",
    "Gamma",
    "Gaussian",
    "Likelihood",
    "MeanScaleGaussian",
    "NegativeBinomial",
    "Poisson",
    "__version__",
    "clip_move_",
]

_MODULES = (
    "curvature",
    "likelihoods",
    "optimizer",
    "parallel",
    "preconditioners",
    "reference",
    "schedules",
)
_HOME = dict.fromkeys(__all__, "tangograd.likelihoods") | {
    "TANGO": "tangograd.optimizer",
    "clip_move_": "tangograd.clipping",
}


def __getattr__(name: str) -> object:
    if name not in __all__ and name not in _MODULES:
        raise AttributeError(f"module 'tangograd' has no attribute {name!r}")
    try:
        if name in _MODULES:
            return importlib.import_module(f"tangograd.{name}")
        return getattr(importlib.import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"tangograd.{name} needs PyTorch, which is not installed: "
            "install it for your machine, or run pip install 'tangograd[torch]'",
            name="torch",
        ) from error


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
