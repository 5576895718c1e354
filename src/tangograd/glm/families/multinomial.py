"""One of several classes: multinomial logistic regression."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np

from tangograd.glm.families.base import Array, Family, Support

CLASS_NUMBERS = Support("the number of a class", lower=0.0)


class Multinomial(Family, NamedTuple("MultinomialParameters", [("count", int)])):
    """Categorical distribution with the logits of all classes but the first against it.

    A target is the number of its class, from 0. η of the first class is 0.

    Args:
        count: of the classes.
    """

    name, link, support = "multinomial", "logit", CLASS_NUMBERS
    canonical, classes, centers_penalty = True, True, True

    def __new__(cls, count: int = 3) -> Self:
        if count < 2:
            raise ValueError(f"a multinomial family has two classes or more; got {count}")
        return super().__new__(cls, int(count))

    @property
    def outputs(self) -> int:
        """Classes other than the first."""
        return self.count - 1

    @property
    def parameters(self) -> dict[str, float]:
        """Nothing: the classes are those of the target."""
        return {}

    def derivatives(self, eta: Array, y: float, s: Array, F: Array, h: Array) -> float:
        outputs, own = len(eta), int(y) - 1
        largest = 0.0
        for k in range(outputs):
            largest = max(largest, eta[k])
        total = math.exp(-largest)
        for k in range(outputs):
            s[k] = math.exp(eta[k] - largest)
            total += s[k]
        for k in range(outputs):
            s[k] /= total
        for k in range(outputs):
            for l in range(outputs):  # noqa: E741
                F[k, l] = (s[k] if k == l else 0.0) - s[k] * s[l]
                h[k, l] = F[k, l]
        loss = largest + math.log(total)
        if own >= 0:
            loss -= eta[own]
            s[own] -= 1
        return loss

    def sample(self, eta: Array, dispersion: float, rng: np.random.Generator) -> float:
        largest = 0.0
        for k in range(len(eta)):
            largest = max(largest, eta[k])
        total = math.exp(-largest)
        for k in range(len(eta)):
            total += math.exp(eta[k] - largest)
        u = rng.random() - math.exp(-largest) / total
        drawn = 0.0
        for k in range(len(eta)):
            if u >= 0:
                u -= math.exp(eta[k] - largest) / total
                drawn = k + 1.0
        return drawn

    def saturated_loss(self, y: Array) -> Array:
        return np.zeros_like(y)

    def linear_predictor(self, mean: Array) -> Array:
        """Return η of class probabilities, shape (…, classes)."""
        inside = np.log(np.maximum(mean, 1e-10))
        return np.asarray(inside[..., 1:] - inside[..., :1])

    def probabilities(self, eta: Array) -> Array:
        """Return the probabilities of all classes, shape (n, classes)."""
        eta = np.column_stack([np.zeros(len(eta)), eta])
        p: Any = np.exp(eta - eta.max(axis=1, keepdims=True))
        return np.asarray(p / p.sum(axis=1, keepdims=True))
