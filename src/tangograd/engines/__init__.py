"""Tangent engines: the ways to run a model so that its outputs come with ``J v``.

An :class:`Engine` is entered for a :class:`Site` (a module whose calls are intercepted, a closure,
or raw parameters) and tells the tangents of the outputs while it is open:

* **dual**: one pass with dual parameters, exact;
* **two-pass**: a pass with dual parameters and without a graph, then the ordinary one, exact;
* **double-backward**: ``J v`` is the derivative of ``Jᵀu`` in u; exact, needs backward formulas
  only;
* **finite-difference**: ``(z(θ + εv) - z(θ))/ε``; needs no formulas, and is not exact.

:class:`Select`, which :func:`resolve` returns for each name, is an engine that tries others on the
first batch and delegates to the first that is right.
"""

from tangograd.engines.base import CannotRunError, Engine, NoFormulaError, Site, TangentSource
from tangograd.engines.select import NAMES, Select, resolve

__all__ = [
    "NAMES",
    "CannotRunError",
    "Engine",
    "NoFormulaError",
    "Select",
    "Site",
    "TangentSource",
    "resolve",
]
