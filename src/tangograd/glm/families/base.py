"""Families of distributions of a target around its mean.

A family gives the loss ℓ(η, y) of a target y at a linear predictor η: half the unit deviance up to
a function of y, or minus the log-likelihood times the dispersion φ up to such a function. Of it,

    s = ∂ℓ/∂η  (score),    h = ∂²ℓ/∂η²  (observed),    f = E[h] = E[s²]/φ  (Fisher information),

the expectations over y of the model at η. φ cancels in the estimates and is left out of all of
them. Families know nothing of features.

The methods marked by ``compiled_method`` work on one row. They are called by compiled functions as
well as by Python; the functions at the end of this module apply them to arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tangograd.glm.errors import DataError
from tangograd.glm.numerics.jit import Compiled, compiled, compiled_constants, compiled_method

Array = NDArray[np.float64]

#: (name, link) → class of every family that is defined; see :func:`tangograd.glm.families.by_name`
REGISTRY: dict[tuple[str, str], type[Family]] = {}


class Support(NamedTuple):
    """The targets that a family allows: an interval.

    Attributes:
        description: in words, to follow "the target must be".
        lower: end of the interval.
        upper: the other end.
        closed: the ends that are finite belong to it.
    """

    description: str
    lower: float = -np.inf
    upper: float = np.inf
    closed: bool = True

    def contains(self, y: Array) -> NDArray[np.bool_]:
        """Return whether each target is finite and in the interval."""
        above, below = y > self.lower, y < self.upper
        if self.closed:
            above, below = y >= self.lower, y <= self.upper
        return np.asarray(above & below & np.isfinite(y))

    @property
    def has_boundary(self) -> bool:
        """Return whether targets may be at an end, where the maximum may be infinite."""
        return self.closed and bool(np.isfinite([self.lower, self.upper]).any())

    def is_interior(self, mean: float) -> bool:
        """Return whether a mean is that of a finite linear predictor."""
        return self.lower < mean < self.upper


REAL_NUMBERS = Support("finite numbers")
NON_NEGATIVE = Support("0 or positive", lower=0.0)
POSITIVE = Support("positive", lower=0.0, closed=False)
SHARES = Support("between 0 and 1", lower=0.0, upper=1.0)


class Derivatives(NamedTuple):
    """The loss of rows and its derivatives in their linear predictors.

    Shapes are those of one linear predictor a row, and in brackets those of K of them.

    Attributes:
        loss: ℓ, shape (n,).
        score: s, shape (n,) or (n, K).
        fisher: f, shape (n,) or (n, K, K).
        observed: h, like ``fisher``; the same array for a canonical link.
    """

    loss: Array
    score: Array
    fisher: Array
    observed: Array


class Family(Compiled):
    """A distribution of y around its mean μ, with a link ``η = g(μ)``.

    A concrete family derives from this and from a named tuple of its parameters, and sets the class
    attributes. It implements ``point`` (or ``derivatives``, if it has several outputs), ``mean``,
    ``sample`` and ``expansion_point``, which are compiled, and the NumPy methods below.

    Attributes:
        name: such as ``"poisson"``.
        link: the link's name, such as ``"log"``.
        support: the targets allowed.
        canonical: observed and Fisher information are the same.
        estimates_dispersion: φ is unknown; it is 1 otherwise.
        classes: the target says to which class a row belongs.
        quadratic: the loss is a quadratic function of η.
        centers_penalty: coefficients of all classes are penalised as they are when centred.
        outputs: linear predictors of a row.
    """

    name: ClassVar[str]
    link: ClassVar[str]
    support: ClassVar[Support]
    canonical: ClassVar[bool] = False
    estimates_dispersion: ClassVar[bool] = False
    classes: ClassVar[bool] = False
    quadratic: ClassVar[bool] = False
    centers_penalty: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if issubclass(cls, tuple):
            REGISTRY[cls.name, cls.link] = cls

    @property
    def outputs(self) -> int:
        """Linear predictors of a row."""
        return 1

    @property
    def parameters(self) -> dict[str, float]:
        """Parameters of the distribution that are fixed, by name."""
        return cast(Any, self)._asdict()  # type: ignore[no-any-return]

    # --- one row, compiled

    @compiled_method
    def point(self, eta: float, y: float) -> tuple[float, float, float, float]:
        """Return the loss, score, Fisher information and observed information of a row."""
        raise NotImplementedError

    @compiled_method
    def derivatives(self, eta: Array, y: float, s: Array, F: Array, h: Array) -> float:
        """Return the loss; write the score s, Fisher information F and observed information h.

        Args:
            eta: linear predictors, shape (outputs,).
            y: the target.
            s: shape (outputs,).
            F: shape (outputs, outputs).
            h: of the same shape; F itself will do for a canonical link.
        """
        loss, s[0], F[0, 0], h[0, 0] = self.point(eta[0], y)
        return loss

    @compiled_method
    def mean(self, eta: float) -> float:
        """Return the mean μ of y: the inverse link."""
        raise NotImplementedError

    @compiled_method(_nrt=True)  # numba's generators allocate
    def sample(self, eta: Array, dispersion: float, rng: np.random.Generator) -> float:
        """Draw a target from the model; η has shape (outputs,)."""
        raise NotImplementedError

    @compiled_method
    def expansion_point(self, eta: float, y: float) -> float:
        """Return η, limited on the side that contradicts y, where the loss is far from quadratic.

        A second-order expansion of the loss there says nothing about where its minimum is: the
        curvature vanishes, or overwhelms that of all other rows.
        """
        return eta

    # --- arrays, NumPy

    def check(self, y: Array, where: Callable[[int], str] = "row {}".format) -> None:
        """Raise a DataError that names the first target out of the support."""
        bad = np.flatnonzero(~self.support.contains(y))
        if len(bad):
            first = int(bad[0])
            raise DataError(
                f"the target of a {self.name} model must be {self.support.description}, but it is "
                f"{y[first]:g} in {where(first)}"
                + (f" (and {len(bad) - 1} more rows here are wrong)" if len(bad) > 1 else "")
            )

    def linear_predictor(self, mean: Array) -> Array:
        """Return η of means: the link, kept off the ends of its range."""
        raise NotImplementedError

    def saturated_loss(self, y: Array) -> Array:
        """Return the least loss that any η has at y."""
        raise NotImplementedError

    def log_normalizer(self, y: Array) -> Array:
        """Return the part of the log-likelihood that depends on y alone."""
        return np.zeros_like(y)

    def variance(self, mean: Array) -> Array:
        """Return the variance of y over φ."""
        raise NotImplementedError

    def log_likelihood(
        self, loss: float, saturated: float, normalizer: float, weight: float, dispersion: float
    ) -> float:
        """Return the log-likelihood; NaN if it has no closed form.

        Args:
            loss: Σ w loss of the rows.
            saturated: Σ w ``saturated_loss``.
            normalizer: Σ w ``log_normalizer``.
            weight: Σ w.
            dispersion: φ.
        """
        del saturated, weight, dispersion
        return normalizer - loss

    def unit_deviance(self, y: Array, eta: Array) -> Array:
        """Return twice the log-likelihood lost against μ = y, times φ."""
        return 2 * np.maximum(evaluate(self, eta, y).loss - self.saturated_loss(y), 0.0)

    def constant_loss(self, mean: float, weight: float, variation: float) -> float:
        """Return Σ w loss of the model with one mean for all rows; the loss is affine in y.

        Args:
            mean: of the targets.
            weight: Σ w.
            variation: Σ w (y - mean)².
        """
        del variation
        at = np.array([mean])
        return weight * float(evaluate(self, self.linear_predictor(at), at).loss[0])


compiled_constants("estimates_dispersion", "classes", "quadratic", "centers_penalty")


@compiled
def _evaluate_points(
    family: Family, eta: Array, y: Array, loss: Array, s: Array, f: Array, h: Array
) -> None:
    """Fill arrays with the derivatives of rows of one output."""
    for n in range(len(eta)):
        loss[n], s[n], f[n], h[n] = family.point(eta[n], y[n])


@compiled
def _evaluate_vectors(
    family: Family, eta: Array, y: Array, loss: Array, s: Array, F: Array, h: Array
) -> None:
    """Fill arrays with the derivatives of rows of several outputs."""
    for n in range(len(eta)):
        loss[n] = family.derivatives(eta[n], y[n], s[n], F[n], h[n])


@compiled
def _means(family: Family, eta: Array, mu: Array) -> None:
    for n in range(len(eta)):
        mu[n] = family.mean(eta[n])


@compiled
def _expansion_points(family: Family, eta: Array, y: Array, point: Array) -> None:
    for n in range(len(eta)):
        point[n] = family.expansion_point(eta[n], y[n])


@compiled
def _samples(
    family: Family, eta: Array, dispersion: float, rng: np.random.Generator, y: Array
) -> None:
    for n in range(len(eta)):
        y[n] = family.sample(eta[n], dispersion, rng)


def _rows(eta: ArrayLike) -> Array:
    """Return η in C order, as compiled functions are compiled for."""
    return np.ascontiguousarray(eta, dtype=np.float64)


def evaluate(family: Family, eta: ArrayLike, y: ArrayLike) -> Derivatives:
    """Return the loss and its derivatives of rows.

    Args:
        family: the family.
        eta: linear predictors, shape (n,), or (n, outputs) for any family.
        y: targets, shape (n,).
    """
    eta, y = _rows(eta), _rows(y)
    if eta.shape[:1] != y.shape:
        raise ValueError(f"eta has shape {eta.shape} and y {y.shape}")
    square = (*eta.shape, *eta.shape[1:])
    loss, score, fisher = np.empty_like(y), np.empty_like(eta), np.empty(square)
    observed = fisher if family.canonical else np.empty(square)
    fill = _evaluate_points if eta.ndim == 1 else _evaluate_vectors
    fill(family, eta, y, loss, score, fisher, observed)
    return Derivatives(loss, score, fisher, observed)


def means(family: Family, eta: ArrayLike) -> Array:
    """Return the mean of each row, for a family with one output; shape of η.

    Example:
        >>> from tangograd.glm.families import by_name
        >>> means(by_name("poisson"), [0.0, 1.0]).round(3)
        array([1.   , 2.718])
    """
    flat = _rows(eta).ravel()
    mu = np.empty_like(flat)
    _means(family, flat, mu)
    return mu.reshape(np.shape(eta))


def expansion_points(family: Family, eta: ArrayLike, y: ArrayLike) -> Array:
    """Return where the loss of each row is expanded; shape of η.

    Several outputs, shape (n, outputs), are not limited.
    """
    eta = _rows(eta)
    if eta.ndim > 1:
        return eta
    points = np.empty_like(eta)
    _expansion_points(family, eta, _rows(y), points)
    return points


def samples(family: Family, eta: ArrayLike, dispersion: float, rng: np.random.Generator) -> Array:
    """Draw a target for each row; η has shape (n,) or (n, outputs)."""
    eta = _rows(eta)
    y = np.empty(len(eta))
    _samples(family, eta.reshape(len(eta), -1), float(dispersion), rng, y)
    return y
