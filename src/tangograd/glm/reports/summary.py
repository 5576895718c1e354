"""The fitted model as a table: coefficients, their errors and what the user should know."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size

from tangograd.glm.fitted import Array, Fitted
from tangograd.glm.reports.wording import (
    amount,
    html,
    model_words,
    number,
    p_value,
    plural,
    printable,
    shorten,
    total,
    z_score,
)

WIDTH = 80
FACT_WIDTH = (WIDTH - 3) // 2 - 2  # of a label and its value
LIMIT = 200
ENDS = 50
NAME_WIDTH = 60
COLUMN_WIDTHS = (11, 10, 10, 7, 11, 11)
FACTS = "display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 0 2rem"
FACT = "display: flex; justify-content: space-between; gap: 1rem"
EXCESS = "Excess variance over maximum likelihood"
PROGRESSIVE = (
    "Progressive: each row counts at the parameters of the moment before it was learned from; "
    "one pass cannot go back to it with the final ones."
)


@dataclass(frozen=True)
class Coefficient:
    """One line of the table; ``None`` where a number is not known.

    Attributes:
        outcome: the class, of a classifier.
        name: of the column.
        estimate: the coefficient.
        standard_error: of the estimate.
        z: estimate / error; a t statistic where the dispersion is estimated.
        p: two-sided, of the estimate being 0.
        low: lower end of the interval.
        high: upper end of the interval.
    """

    outcome: str | int | float | bool
    name: str
    estimate: float | None
    standard_error: float | None
    z: float | None
    p: float | None
    low: float | None
    high: float | None

    @property
    def cells(self) -> tuple[str, ...]:
        """The numbers as they are shown."""
        errors = number(self.standard_error), z_score(self.z), p_value(self.p)
        return (number(self.estimate), *errors, number(self.low), number(self.high))


class Summary:
    r"""Coefficients with standard errors, z, p and intervals, as text, HTML, data frame or dict.

    ``z = estimate / error``, ``p = 2 Φ(-|z|)``, and the interval is ``estimate ± q error``, q and Φ
    those of the normal distribution; where the dispersion is estimated (gaussian, gamma, tweedie),
    those of the t distribution with the residual degrees of freedom, as in R. With no more rows
    than coefficients there are no tests and no intervals.

    Args:
        fitted: the model.
        level: of the intervals.
        robust: take the standard errors of the sandwich covariance.
        title: above the table; the kind of regression by default.

    Raises:
        ValueError: the level is not between 0 and 1, or robust errors are asked for and not known.

    Example:
        >>> fitted = Fitted(
        ...     "poisson", "log", ("intercept", "x"), np.array([0.5, 0.02]), rows=100, weight=100.0,
        ...     dispersion=1.0, log_likelihood=-140.0, deviance=90.0, null_deviance=120.0,
        ...     progressive=False, standard_errors=np.array([0.1, 0.01]), covariance_kind="full",
        ... )
        >>> print(*str(Summary(fitted)).splitlines()[-3:-1], sep="\n")
        intercept                0.5000    0.1000     5.000 <0.001     0.3040     0.6960
        x                       0.02000   0.01000     2.000  0.046  4.004e-04    0.03960
    """

    def __init__(
        self,
        fitted: Fitted,
        *,
        level: float = 0.95,
        robust: bool = False,
        title: str | None = None,
    ) -> None:
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, such as 0.95; got {level}")
        if robust and fitted.robust_errors is None:
            raise ValueError(
                "this fit has no robust standard errors: fit again with covariance='auto', or "
                "leave out robust=True"
            )
        self.fitted = fitted
        self.level = level
        self.robust = robust
        words = model_words(fitted)
        self.title = title if title is not None else words[0].upper() + words[1:]
        self.errors: Array | None = fitted.robust_errors if robust else fitted.standard_errors

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.to_html()

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings of the numbers."""
        if self.errors is None:
            return ("coef",)
        tail = (1 - self.level) / 2
        letter = "t" if self.fitted.estimates_dispersion else "z"
        ends = f"[{tail:.4g}", f"{1 - tail:.4g}]"
        return ("coef", "std err", letter, f"P>|{letter}|", *ends)

    def coefficients(self) -> list[Coefficient]:
        """All lines, outcome by outcome."""
        fitted = self.fitted
        given = np.full(len(fitted.estimates), np.nan) if self.errors is None else self.errors
        # 0, NaN and infinity: of a column that was left out, or of which the data say nothing
        errors = np.where((given > 0) & np.isfinite(given), given, np.nan)
        if self._saturated:
            errors = np.full_like(errors, np.nan)
        with np.errstate(over="ignore"):
            z = fitted.estimates / errors
        reach = fitted.quantile(self.level) * errors
        interval = fitted.estimates - reach, fitted.estimates + reach
        values = np.column_stack([fitted.estimates, errors, z, fitted.p_values(z), *interval])
        labels = [(outcome, name) for outcome in fitted.outcomes for name in fitted.names]
        return [
            Coefficient(_plain(outcome), name, *map(_finite, line))
            for (outcome, name), line in zip(labels, values.tolist(), strict=True)
        ]

    @property
    def _saturated(self) -> bool:
        """Whether there are no more rows than coefficients, so that nothing can be tested."""
        return math.isnan(self.fitted.reference_freedom)

    def header(self) -> list[tuple[str, str]]:
        """What is said above the coefficients: labels and values."""
        fitted = self.fitted
        progressive = fitted.progressive

        def of_rows(label: str, x: float) -> tuple[str, str]:
            label = f"Progressive {label}" if progressive else label[0].upper() + label[1:]
            return label, total(x, FACT_WIDTH - len(label))

        parameters = [
            (name.replace("_", " ").capitalize(), f"{x:.4g}")
            for name, x in fitted.parameters.items()
        ]
        weights = [("Sum of weights", amount(fitted.weight))] if _weighted(fitted) else []
        return [
            ("Family", fitted.family.replace("_", " ")),
            ("Link", fitted.link),
            *parameters,
            ("Rows", f"{fitted.rows:,}"),
            *weights,
            ("Coefficients", f"{fitted.degrees_of_freedom:,}"),
            ("Df residuals", amount(fitted.residual_freedom)),
            ("Dispersion", number(fitted.dispersion)),
            ("Passes", f"{fitted.passes}"),
            ("Converged", "yes" if fitted.converged else "no"),
            of_rows("log-likelihood", fitted.log_likelihood),
            of_rows("deviance", fitted.deviance),
            of_rows("null deviance", fitted.null_deviance),
            (of_rows("D²", fitted.d2)[0], number(fitted.d2)),
            of_rows("AIC", fitted.aic),
            ("Penalty alpha", f"{fitted.alpha:.4g}"),
            ("Covariance", fitted.covariance_kind + (", robust" if self.robust else "")),
        ]

    @property
    def excess(self) -> str | None:
        """The excess variance over maximum likelihood; None without standard errors."""
        if self.errors is None:
            return None
        excess = 100 * (self.fitted.excess - 1)
        return f"{excess:.1f}%" if math.isfinite(excess) else "not known"

    def notes(self) -> list[str]:
        """How to read the table, then the fit's own notes."""
        fitted = self.fitted
        notes = [PROGRESSIVE] if fitted.progressive else []
        if self.errors is None:
            notes.append(
                "No standard errors, z, p and intervals: this fit kept no covariance; one with "
                "covariance='auto' does."
            )
        else:
            notes += self._notes_on_errors(self.errors)
        if fitted.alpha > 0:
            notes.append(
                f"The penalty alpha = {fitted.alpha:.4g} draws the estimates towards zero; errors "
                "and intervals do not count that bias."
            )
        return notes + list(fitted.notes)

    def _notes_on_errors(self, errors: Array) -> Iterator[str]:
        if self.fitted.covariance_kind == "diagonal":
            yield (
                "Diagonal covariance: correlations between coefficients are ignored, so standard "
                "errors are too small where columns are correlated."
            )
        if self.robust:
            yield (
                "Robust standard errors (sandwich covariance): right also where the family's "
                "variance is not that of the data."
            )
        if self.fitted.excess > 1.0005:
            yield (
                "Standard errors include the excess variance of one pass over maximum likelihood's."
            )
        if self._saturated:
            yield (
                "There are no more rows than coefficients: nothing is left to estimate errors "
                "from, so standard errors, tests and intervals are left out."
            )
            return
        unknown = int(np.sum(~(np.isfinite(errors) & (errors > 0))))
        if unknown:
            some = f"{plural(unknown, 'coefficient')} without a standard error"
            yield f"{some}: the data do not tell the value."

    def _lines(self, limit: int | None) -> Iterator[Coefficient | str]:
        """Coefficients, and sentences that take a whole line."""
        lines = self.coefficients()
        count, classes, outcome = len(lines), self.fitted.classes, None
        cut = limit is not None and count > limit
        for index, line in enumerate(lines):
            if cut and ENDS <= index < count - ENDS:
                if index == ENDS:
                    left = count - 2 * ENDS
                    yield f"… {left:,} more: to_frame() and to_dict() have all {count:,} …"
                continue
            if classes is not None and line.outcome != outcome:
                outcome = line.outcome
                yield f"class {printable(outcome)} against {printable(classes[0])}"
            yield line

    def to_text(self, limit: int | None = LIMIT) -> str:
        """The table in 80 columns, or more where long names could not be told apart in that.

        Args:
            limit: with more coefficients than this, only the first and the last are shown.
        """
        lines = list(self._lines(limit))
        names = [printable(line.name) for line in lines if isinstance(line, Coefficient)]
        widths = COLUMN_WIDTHS[: len(self.columns)]
        space = _telling_width(names, WIDTH - sum(widths))
        width = space + sum(widths)

        def row(name: str, cells: Sequence[str]) -> str:
            numbers = (f"{cell:>{size}}" for cell, size in zip(cells, widths, strict=False))
            return set_cell_size(shorten(name, space), space) + "".join(numbers)

        return "\n".join(
            [
                shorten(printable(self.title), width).center(width).rstrip(),
                "=" * width,
                *_two_columns(self.header(), width),
                *([] if self.excess is None else [f"{EXCESS}: {self.excess}"]),
                "=" * width,
                row("", self.columns),
                "-" * width,
                *(
                    shorten(line, width)
                    if isinstance(line, str)
                    else row(printable(line.name), line.cells)
                    for line in lines
                ),
                "=" * width,
                *(_note(k, text, width) for k, text in enumerate(self.notes(), 1)),
            ]
        )

    def to_html(self, limit: int | None = LIMIT) -> str:
        """The same as a fragment of HTML, all escaped; wide tables scroll in their own box."""
        facts = "".join(
            f'<div style="{FACT}"><dt>{html(label)}</dt>'
            f'<dd style="margin: 0">{html(value)}</dd></div>\n'
            for label, value in self.header() + ([(EXCESS, self.excess)] if self.excess else [])
        )
        heads = "".join(f'<th scope="col">{html(head)}</th>' for head in self.columns)
        rows = "".join(self._html_row(line) for line in self._lines(limit))
        notes = "".join(f"<li>{html(note)}</li>" for note in self.notes())
        return f"""<div class="tangograd-summary">
{f"<p><strong>{html(self.title)}</strong></p>" if self.title else ""}
<dl class="facts" style="{FACTS}">
{facts}</dl>
<div class="wide" style="overflow-x: auto" tabindex="0" role="region"
 aria-label="Coefficients"><table class="coefficients" style="text-align: right">
<thead><tr><th scope="col">name</th>{heads}</tr></thead>
<tbody>{rows}</tbody></table></div>
{f"<ol>{notes}</ol>" if notes else ""}</div>"""

    def _html_row(self, line: Coefficient | str) -> str:
        if isinstance(line, str):
            columns = len(self.columns) + 1
            return f'<tr><th colspan="{columns}"><span>{html(line)}</span></th></tr>\n'
        cells = line.cells[: len(self.columns)]
        numbers = "".join(f"<td>{html(cell)}</td>" for cell in cells)
        return f'<tr><th scope="row">{html(line.name)}</th>{numbers}</tr>\n'

    def to_frame(self) -> Any:
        """A pandas data frame with a row a coefficient, indexed by name, or by class and name.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "to_frame() needs pandas: pip install pandas, or take to_dict()"
            ) from error
        frame = pandas.DataFrame([asdict(line) for line in self.coefficients()])
        frame = frame.rename(columns={"outcome": "class"})
        values = frame.columns[2:] if self.errors is not None else ["estimate"]
        index = ["name"] if self.fitted.classes is None else ["class", "name"]
        return frame.set_index(index)[values].astype(float)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; every number is finite or ``None``."""
        fitted, classes = self.fitted, self.fitted.classes
        coefficients = []
        for line in map(asdict, self.coefficients()):
            outcome = line.pop("outcome")
            coefficients.append(line if classes is None else {"class": outcome, **line})
        numbers = "weight dispersion log_likelihood deviance null_deviance d2 aic alpha excess"
        return {
            "title": self.title,
            "family": fitted.family,
            "link": fitted.link,
            "parameters": {name: _finite(x) for name, x in fitted.parameters.items()},
            "classes": None if classes is None else [_plain(label) for label in classes],
            "rows": int(fitted.rows),
            "degrees_of_freedom": fitted.degrees_of_freedom,
            "df_residuals": fitted.residual_freedom,
            **{name: _finite(getattr(fitted, name)) for name in numbers.split()},
            "progressive": bool(fitted.progressive),
            "passes": int(fitted.passes),
            "converged": bool(fitted.converged),
            "covariance": fitted.covariance_kind,
            "robust": self.robust,
            "level": self.level,
            "coefficients": coefficients,
            "notes": self.notes(),
        }


def _finite(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None


def _plain(label: str | int | float | bool) -> str | int | float | bool:
    """A label without NumPy's type, which JSON does not know."""
    plain: str | int | float | bool = label.item() if isinstance(label, np.generic) else label
    return plain


def _weighted(fitted: Fitted) -> bool:
    return not math.isclose(fitted.weight, fitted.rows, rel_tol=1e-9)


def _telling_width(names: Sequence[str], least: int) -> int:
    """The least width (to a limit) in which names that differ still do so when shortened."""
    longest = min(max(map(cell_len, names), default=0), NAME_WIDTH)
    different = len(set(names))
    for width in range(least, longest):
        if len({shorten(name, width) for name in names}) == different:
            return width
    return max(least, longest)


def _two_columns(facts: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """The facts side by side: the first half on the left."""
    gap = 3
    space = (width - gap) // 2
    half = (len(facts) + 1) // 2
    cells = [
        f"{label}:{shorten(printable(value), space - len(label) - 2):>{space - len(label) - 1}}"
        for label, value in facts
    ]
    for k in range(half):
        right = cells[half + k] if half + k < len(cells) else ""
        yield f"{cells[k]}{' ' * gap}{right}".rstrip()


def _note(index: int, text: str, width: int) -> str:
    mark = f"[{index}] "
    return textwrap.fill(
        printable(text), width, initial_indent=mark, subsequent_indent=" " * len(mark)
    )
