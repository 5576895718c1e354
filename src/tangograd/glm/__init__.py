"""Generalised linear models of any amount of data, at maximum-likelihood accuracy in one pass.

:class:`TangoRegressor` and :class:`TangoClassifier` are scikit-learn estimators; ``tangograd fit``
is the same for files. A model has a :class:`Family` of responses; :func:`family` makes those that
have a parameter.

The estimators are resolved on first use, so that the commands need not wait for scikit-learn.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tangograd.glm.errors import DataError
from tangograd.glm.families import Family
from tangograd.glm.families import by_name as family

if TYPE_CHECKING:
    from tangograd.glm.classifier import TangoClassifier
    from tangograd.glm.regressor import TangoRegressor

__all__ = ["DataError", "Family", "TangoClassifier", "TangoRegressor", "family"]

_HOME = {"TangoClassifier": "classifier", "TangoRegressor": "regressor"}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'tangograd.glm' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tangograd.glm.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
