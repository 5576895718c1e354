"""The paper's claims, each measured: one module a claim, data out, pictures from the data.

``tangograd reproduce`` runs them. A claim is a :class:`~tangograd.reproduction.base.Claim`; its
verdicts come from :mod:`~tangograd.reproduction.verdicts`, and a reader of the results needs
nothing of this package: they are JSON, PNG and one HTML page.
"""

from importlib import import_module

from tangograd.reproduction.base import Claim

#: The modules, in the order of the page.
MODULES = (
    "figure_one",
    "theorem",
    "noise_free",
    "family",
    "quadratic",
    "bias",
    "frozen",
    "gamma_rules",
    "bounds",
    "minibatch",
    "preconditioning",
    "output_variance",
    "invariance",
    "accelerated",
)


def claims() -> list[Claim]:
    """All claims, in order."""
    return [import_module(f"{__name__}.{module}").CLAIM for module in MODULES]
