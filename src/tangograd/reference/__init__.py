"""The exact objects that TANGO approaches, for small models: oracle, baseline, teaching.

Everything works from outputs that carry their autograd graph, so a model, a function of raw
parameters or any expression will do. Nothing here uses forward-mode differentiation or TANGO's own
products: it is an independent check of both.
"""

from tangograd.reference.dense import fisher_matrix, natural_gradient
from tangograd.reference.descent import AveragedSGD, NaturalGradient
from tangograd.reference.flow import natural_gradient_flow
from tangograd.reference.necessary import necessary_gamma

__all__ = [
    "AveragedSGD",
    "NaturalGradient",
    "fisher_matrix",
    "natural_gradient",
    "natural_gradient_flow",
    "necessary_gamma",
]
