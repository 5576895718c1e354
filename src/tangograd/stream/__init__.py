"""Compiled single-sample kernels: millions of steps a second, for small models.

A model is one compiled function ``gradients(theta, rng, constants, g, g_tilde)``. It draws a data
sample and a pseudo-sample of the model with ``rng`` and writes their gradients of the log-loss into
``g`` and ``g_tilde``; what else it needs stands in the array ``constants``.
"""

from tangograd.stream.averaged import averaged_sgd
from tangograd.stream.tango import Run, tango

__all__ = ["Run", "averaged_sgd", "tango"]
