"""The families of generalised linear models: domain, mean, deviance and log-likelihood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logit, ndtri, xlogy

from tangograd.glm.errors import DataError
from tangograd.stream import families as compiled
from tangograd.stream.glm import MULTINOMIAL

Array = NDArray[np.float64]
Function = Callable[[Array], NDArray[np.bool_]]


@dataclass(frozen=True)
class Family:
    """A distribution of y around its mean μ, with a link ``η = g(μ)``.

    Use :func:`family` to get one.

    Attributes:
        name: such as ``"poisson"``.
        link: such as ``"log"``.
        code: the number of the compiled functions.
        parameter: what of the distribution is fixed: the dispersion of a negative binomial, the
            power of a Tweedie distribution.
        parameter_name: of that, or empty.
        free_dispersion: φ is estimated.
        domain: in words.
        allowed: which y are in the domain.
        interior: which means are.

    Example:
        >>> family("poisson").mean(np.array([0.0]))
        array([1.])
    """

    name: str
    link: str
    code: int
    free_dispersion: bool
    domain: str
    allowed: Function = field(repr=False, compare=False)
    parameter: float = 0.0
    parameter_name: str = ""

    @property
    def parameters(self) -> dict[str, float]:
        """The fixed parameter by its name, if there is one."""
        return {self.parameter_name: self.parameter} if self.parameter_name else {}

    def check(self, y: Array, where: Callable[[int], str] = lambda i: f"row {i}") -> None:
        """Raise a DataError that names the first y out of the domain."""
        bad = np.flatnonzero(~(np.isfinite(y) & self.allowed(y)))
        if len(bad):
            first = int(bad[0])
            raise DataError(
                f"the target of a {self.name} model must be {self.domain}, but it is "
                f"{y[first]:g} in {where(first)}"
                + (f" (and {len(bad) - 1} more rows here are wrong)" if len(bad) > 1 else "")
            )

    def mean(self, eta: Array) -> Array:
        """μ, shape of η."""
        mu: Array = compiled.means(self.code, np.ascontiguousarray(eta, dtype=np.float64))
        return mu

    def predictor(self, mu: float) -> float:
        """η of a mean, kept off the borders of the domain."""
        if self.link == "identity":
            return mu
        if self.link == "log":
            return float(np.log(mu if mu > 0 else 1e-10))
        mu = min(max(mu, 1e-10), 1 - 1e-10)
        if self.link == "cloglog":
            return float(np.log(-np.log1p(-mu)))
        return float(logit(mu) if self.link == "logit" else ndtri(mu))

    def loss(self, eta: Array, y: Array) -> Array:
        """Half the unit deviance, up to ``saturated(y)``; shape of η."""
        losses: Array = self.points(eta, y)[0]
        return losses

    def points(self, eta: Array, y: Array) -> tuple[Array, Array, Array]:
        """The loss, score and Fisher weight of each row."""
        result: tuple[Array, Array, Array] = compiled.points(
            self.code, self.parameter, np.ascontiguousarray(eta, np.float64), y
        )
        return result

    def saturated(self, y: Array) -> Array:
        """The least loss that any η has at y."""
        if self.code == compiled.GAUSSIAN:
            return np.zeros_like(y)
        if self.code in _BINARY:
            return np.asarray(-xlogy(y, y) - xlogy(1 - y, 1 - y))
        if self.code == compiled.POISSON:
            return np.asarray(y - xlogy(y, y))
        if self.code == compiled.GAMMA:
            return np.asarray(1 + np.log(y))
        a = self.parameter
        if self.code == compiled.NEGATIVE_BINOMIAL:
            return np.asarray((y + 1 / a) * np.log1p(a * y) - xlogy(y, y))
        power: Array = y ** (2 - a)
        return power / (2 - a) - power / (1 - a)

    def sum_saturated(self, y: Array, w: Array) -> float:
        """``Σ w saturated(y)``, which is 0 for some, whatever the weights."""
        if self.code == compiled.GAUSSIAN:
            return 0.0
        if self.code in _BINARY and np.array_equal(y * y, y):  # 0 and 1 alone
            return 0.0
        return float(w @ self.saturated(y))

    def sum_base(self, y: Array, w: Array) -> float:
        """``Σ w base(y)``."""
        return float(w @ self.base(y)) if self.code in _WITH_BASE else 0.0

    def unit_deviance(self, y: Array, eta: Array) -> Array:
        """Twice the log-likelihood lost against μ = y, times φ."""
        return 2 * np.maximum(self.loss(eta, y) - self.saturated(y), 0.0)

    def base(self, y: Array) -> Array:
        """What of the log-likelihood depends on y alone (for gamma, on log y)."""
        if self.code == compiled.POISSON:
            return np.asarray(-gammaln(y + 1))
        if self.code == compiled.GAMMA:
            return np.log(y)
        if self.code == compiled.NEGATIVE_BINOMIAL:
            a = self.parameter
            return np.asarray(y * np.log(a) + gammaln(y + 1 / a) - gammaln(1 / a) - gammaln(y + 1))
        return np.zeros_like(y)

    def log_likelihood(
        self, loss: float, saturated: float, base: float, weight: float, dispersion: float
    ) -> float:
        """From weighted sums over the rows; NaN for Tweedie, whose density has no closed form."""
        if self.code == compiled.TWEEDIE:
            return float("nan")
        if self.code == compiled.GAUSSIAN:
            dispersion = 2 * (loss - saturated) / weight  # the profile's, as usual for σ²
            if not dispersion > 0:
                return float("inf")
            return float(-0.5 * weight * (np.log(2 * np.pi * dispersion) + 1))
        if self.code == compiled.GAMMA:
            if not dispersion > 0:
                return float("inf")
            nu = 1 / dispersion
            return float(-nu * loss + weight * (nu * np.log(nu) - gammaln(nu)) + (nu - 1) * base)
        return base - loss

    def null_loss(self, mean: float, weight: float, variation: float) -> float:
        """Σ w loss of the model with one mean for all.

        Given the mean and the sum of the weights, and ``Σ w (y - mean)²``: the loss is affine in y
        but for gaussian models, where it is half the square.
        """
        if self.code == compiled.GAUSSIAN:
            return 0.5 * variation
        eta = np.array([self.predictor(mean)])
        return float(weight * self.loss(eta, np.array([mean]))[0])


_BINARY = (compiled.LOGIT, compiled.PROBIT, compiled.CLOGLOG)
#: whose densities have a factor of y alone
_WITH_BASE = (compiled.POISSON, compiled.GAMMA, compiled.NEGATIVE_BINOMIAL)


def _positive(y: Array) -> NDArray[np.bool_]:
    return y > 0


def _share(y: Array) -> NDArray[np.bool_]:
    return (y >= 0) & (y <= 1)


def _any(y: Array) -> NDArray[np.bool_]:
    return np.ones_like(y, dtype=bool)


def _not_negative(y: Array) -> NDArray[np.bool_]:
    return y >= 0


_TABLE = {
    ("gaussian", "identity"): (compiled.GAUSSIAN, True, "finite numbers", _any),
    ("binomial", "logit"): (compiled.LOGIT, False, "between 0 and 1", _share),
    ("binomial", "probit"): (compiled.PROBIT, False, "between 0 and 1", _share),
    ("binomial", "cloglog"): (compiled.CLOGLOG, False, "between 0 and 1", _share),
    ("poisson", "log"): (compiled.POISSON, False, "0 or positive", _not_negative),
    ("gamma", "log"): (compiled.GAMMA, True, "positive", _positive),
    ("negative_binomial", "log"): (
        compiled.NEGATIVE_BINOMIAL,
        False,
        "0 or positive",
        _not_negative,
    ),
    ("tweedie", "log"): (compiled.TWEEDIE, True, "0 or positive", _not_negative),
}
_PARAMETERS = {"negative_binomial": ("dispersion", 1.0), "tweedie": ("power", 1.5)}

#: the names that :func:`family` knows
NAMES = tuple(dict.fromkeys(name for name, _ in _TABLE))


def family(name: str | Family, link: str | None = None, **parameters: float) -> Family:
    """A family by its name, with its canonical or log link unless another is named.

    Args:
        name: ``"gaussian"`` (link identity), ``"binomial"`` (logit, probit, cloglog),
            ``"poisson"``, ``"gamma"``, ``"negative_binomial"`` or ``"tweedie"`` (log).
        link: the link's name.
        **parameters: ``dispersion`` of the negative binomial (1 by default: the variance is
            μ + dispersion μ²), ``power`` of the Tweedie family (1.5; between 1 and 2: the variance
            is φ μ^power).

    Example:
        >>> family("tweedie", power=1.7).parameters
        {'power': 1.7}
        >>> family("binomial", "square")
        Traceback (most recent call last):
        ...
        ValueError: the links of binomial are logit, probit, cloglog; got 'square'
    """
    if isinstance(name, Family):
        if link not in (None, name.link) or parameters:
            raise ValueError(f"the family {name} has its link and parameters already")
        return name
    links = [known for of, known in _TABLE if of == name]
    if not links:
        raise ValueError(f"the families are {', '.join(NAMES)}; got {name!r}")
    if link is not None and link not in links:
        raise ValueError(f"the links of {name} are {', '.join(links)}; got {link!r}")
    link = link or links[0]
    parameter_name, default = _PARAMETERS.get(name, ("", 0.0))
    unknown = set(parameters) - {parameter_name}
    if unknown:
        raise ValueError(f"{name} has no {' or '.join(sorted(unknown))}")
    parameter = float(parameters.get(parameter_name, default))
    if name == "tweedie" and not 1 < parameter < 2:
        raise ValueError(f"power must be between 1 (poisson) and 2 (gamma); got {parameter:g}")
    if name == "negative_binomial" and not 0 < parameter < np.inf:
        raise ValueError(f"dispersion must be positive (0 is poisson); got {parameter:g}")
    code, free, domain, allowed = _TABLE[name, link]
    return Family(name, link, code, free, domain, allowed, parameter, parameter_name)


def multinomial() -> Family:
    """Several classes, with the logits of all but the first against it."""
    return Family("multinomial", "logit", MULTINOMIAL, False, "a class", _any)
