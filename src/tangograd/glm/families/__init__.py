"""Families of distributions, by name. A family is one file, here or in another package."""

from __future__ import annotations

from tangograd.glm.families.base import (
    REGISTRY,
    Derivatives,
    Family,
    Support,
    evaluate,
    expansion_points,
    means,
    samples,
)
from tangograd.glm.families.binomial import Cloglog, Logit, Probit
from tangograd.glm.families.gamma import Gamma
from tangograd.glm.families.gaussian import Gaussian
from tangograd.glm.families.multinomial import Multinomial
from tangograd.glm.families.negative_binomial import NegativeBinomial
from tangograd.glm.families.poisson import Poisson
from tangograd.glm.families.tweedie import Tweedie

__all__ = [
    "Cloglog",
    "Derivatives",
    "Family",
    "Gamma",
    "Gaussian",
    "Logit",
    "Multinomial",
    "NegativeBinomial",
    "Poisson",
    "Probit",
    "Support",
    "Tweedie",
    "by_name",
    "evaluate",
    "expansion_points",
    "means",
    "names",
    "samples",
]


def names() -> tuple[str, ...]:
    """Return the names of all families."""
    return tuple(sorted({name for name, _ in REGISTRY}))


def by_name(name: str | Family, link: str | None = None, **parameters: float) -> Family:
    """Return a family by its name, with its first link unless another is named.

    Args:
        name: ``"gaussian"`` (link identity), ``"binomial"`` (logit, probit, cloglog),
            ``"poisson"``, ``"gamma"``, ``"negative_binomial"``, ``"tweedie"`` (log),
            ``"multinomial"`` (logit), or that of a class derived from :class:`Family`. A family
            is returned as it is.
        link: the link's name.
        **parameters: ``dispersion`` of the negative binomial (1 by default: the variance is
            μ + dispersion μ²), ``power`` of the Tweedie family (1.5; between 1 and 2: the variance
            is φ μ^power), ``count`` of the classes of the multinomial.

    Example:
        >>> by_name("tweedie", power=1.7).parameters
        {'power': 1.7}
        >>> by_name("binomial", "square")
        Traceback (most recent call last):
        ...
        ValueError: the links of binomial are logit, probit, cloglog; got 'square'
    """
    if isinstance(name, Family):
        if link not in (None, name.link) or parameters:
            raise ValueError(f"the family {name} has its link and parameters already")
        return name
    links = [known for of, known in REGISTRY if of == name]
    if not links:
        raise ValueError(f"the families are {', '.join(names())}; got {name!r}")
    if link is not None and link not in links:
        raise ValueError(f"the links of {name} are {', '.join(links)}; got {link!r}")
    chosen = REGISTRY[name, link or links[0]]
    unknown = set(parameters) - set(chosen._fields)  # type: ignore[attr-defined]
    if unknown:
        raise ValueError(f"{name} has no {' or '.join(sorted(unknown))}")
    return chosen(**parameters)
