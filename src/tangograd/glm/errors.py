"""What is wrong with the user's data, formula or model file."""

from __future__ import annotations


class DataError(ValueError):
    """The data, the formula or the model file break a rule; the text names it and the way out."""
