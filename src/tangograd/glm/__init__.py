"""Generalised linear models of any amount of data, at maximum-likelihood accuracy in one pass.

:class:`TangoRegressor` and :class:`TangoClassifier` are scikit-learn estimators; ``tangograd fit``
is the same for files. A model has a :class:`Family` of responses; :func:`family` makes those that
have a parameter.
"""

from __future__ import annotations

from tangograd.glm.classifier import TangoClassifier
from tangograd.glm.errors import DataError
from tangograd.glm.families import Family, family
from tangograd.glm.regressor import TangoRegressor

__all__ = ["DataError", "Family", "TangoClassifier", "TangoRegressor", "family"]
