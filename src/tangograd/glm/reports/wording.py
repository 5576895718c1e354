"""Names and numbers as the reader sees them: safe to show, and short."""

from __future__ import annotations

import math
from html import escape

from rich.cells import cell_len, set_cell_size

from tangograd.glm.fitted import Fitted

UNKNOWN = "–"
_REGRESSIONS = {
    ("gaussian", "identity"): "linear regression",
    ("binomial", "logit"): "logistic regression",
    ("binomial", "probit"): "probit regression",
    ("binomial", "cloglog"): "complementary log-log regression",
    ("poisson", "log"): "Poisson regression",
    ("tweedie", "log"): "Tweedie regression",
}


def model_words(fitted: Fitted) -> str:
    """What was fitted, in words.

    >>> import numpy as np
    >>> model_words(Fitted("gamma", "log", ("a",), np.ones(1), 9, 9.0, 1.0, 0.0, 0.0, 0.0, False))
    'gamma regression'
    """
    if fitted.family == "multinomial":
        return "multinomial logistic regression"
    family = fitted.family.replace("_", " ")
    return _REGRESSIONS.get((fitted.family, fitted.link), f"{family} regression")


def effort(fitted: Fitted) -> str:
    """How often the rows were learned from, in words.

    >>> import numpy as np
    >>> effort(Fitted("gamma", "log", ("a",), np.ones(1), 9, 9.0, 1.0, 0.0, 0.0, 0.0, False))
    'in one pass'
    """
    if fitted.converged:
        return "to convergence"
    return "in one pass" if fitted.passes == 1 else f"in {fitted.passes} passes"


def plural(count: int, noun: str) -> str:
    """The number and its noun.

    >>> plural(1, "row"), plural(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def printable(text: object) -> str:
    r"""The text with its control and other invisible characters spelled out.

    >>> print(printable("a\x1b[31m"))
    a\x1b[31m
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def html(text: object) -> str:
    """The text to stand in HTML, as content or attribute.

    >>> html('<b a="1">')
    '&lt;b a=&quot;1&quot;&gt;'
    """
    return escape(printable(text))


def shorten(text: str, width: int) -> str:
    """The text in at most ``width`` terminal columns, its middle left out if need be.

    >>> shorten("C(region)[T.north-west]", 14)
    'C(regio…-west]'
    """
    if cell_len(text) <= width:
        return text
    head = set_cell_size(text, width // 2).rstrip()
    tail = set_cell_size(text[::-1], width - 1 - width // 2).rstrip()[::-1]
    return f"{head}…{tail}"


def number(x: float | None) -> str:
    """Four significant digits, for tables; a dash where there is no number.

    >>> number(0.5), number(-12345.678), number(7.892e-05), number(None)
    ('0.5000', '-12345.7', '7.892e-05', '–')
    """
    if x is None or not math.isfinite(x):
        return UNKNOWN
    size = abs(x)
    if size and not 1e-3 <= size < 1e6:
        return f"{x:.3e}"
    return f"{x:.1f}" if size >= 999.95 else f"{x:#.4g}" if x else "0"


def total(x: float, width: int = 24) -> str:
    """Return a sum over rows, to the thousandth where it is small, in at most ``width`` columns.

    >>> total(-89.8861), total(12345678.91), total(-4716293.026, width=10)
    ('-89.886', '12345678.9', '-4716293.0')
    """
    if not math.isfinite(x):
        return UNKNOWN
    forms = {".3f": 1e6, ".1f": 1e10, ".0f": 1e10, ".5e": math.inf}
    texts = [f"{x:{form}}" for form, most in forms.items() if abs(x) < most]
    return next((text for text in texts if len(text) <= width), f"{x:.3e}")


def amount(x: float) -> str:
    """Return a number of rows, or a sum of weights, with all its digits before the point.

    >>> amount(12345678.0), amount(123.25), amount(1e18)
    ('12,345,678', '123.25', '1e+18')
    """
    if abs(x) >= 1e15 or not math.isfinite(x):
        return f"{x:.7g}"
    return f"{x:,.0f}" if x == round(x) or abs(x) >= 1e6 else f"{x:,.7g}"


def z_score(z: float | None) -> str:
    """Thousandths, as in statsmodels.

    >>> z_score(1.95996), z_score(None)
    ('1.960', '–')
    """
    return number(z) if z is None or not abs(z) < 1000 else f"{z:.3f}"


def p_value(p: float | None) -> str:
    """Thousandths, and no zero that is not one.

    >>> p_value(0.0456), p_value(1e-9), p_value(None)
    ('0.046', '<0.001', '–')
    """
    if p is None or not math.isfinite(p):
        return UNKNOWN
    return "<0.001" if p < 0.001 else f"{p:.3f}"
