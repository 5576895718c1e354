"""Figures as data: panels of curves, points, bands, limits and words, drawn by :func:`draw`.

A mark is a call of a method of matplotlib's axes, so that a picture can be written to JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from tangograd.reproduction import verdicts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The palette of Okabe and Ito, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY, BLACK = "#CC79A7", "#56B4E9", "#666666", "black"


@dataclass(frozen=True)
class Mark:
    """A call of a method of the axes."""

    method: str
    args: Sequence[Any]
    options: dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """One pair of axes: marks, properties of the axes, and the place of a legend inside them."""

    marks: Sequence[Mark]
    options: dict[str, Any] = field(default_factory=dict)
    legend: str | None = None


@dataclass(frozen=True)
class Picture:
    """A figure."""

    panels: Sequence[Panel]  # row by row
    size: Sequence[float] = (8.0, 4.5)  # in inches; 8 wide is readable in a README
    legend: int = 0  # number of columns of the legend below the panels, 0 for none
    rows: int = 1
    layout: dict[str, Any] = field(default_factory=dict)  # as in ``plt.subplots``


def curve(
    x: ArrayLike,
    y: ArrayLike,
    colour: str,
    label: str | None = None,
    width: float = 2.0,
    style: str = "-",
    alpha: float = 1.0,
) -> Mark:
    """Return a line through points; without points, an entry of the legend alone."""
    options = {"color": colour, "label": label, "lw": width, "alpha": alpha}
    return Mark("plot", [np.asarray(x), np.asarray(y), style], options)


def exact(x: ArrayLike, y: ArrayLike, colour: str) -> Mark:
    """Return the thick pale line that shows exact values behind measured ones."""
    return curve(x, y, colour, width=4.0, alpha=0.3)


def expected(x: ArrayLike, y: ArrayLike, label: str | None = None) -> Mark:
    """Return the dotted black line that shows exact means over measured ones."""
    return curve(x, y, BLACK, label, 1.0, ":")


def path(
    rows: ArrayLike, colour: str, label: str | None = None, width: float = 1.4, style: str = "-"
) -> Mark:
    """Return the path through rows (x, y), without points nearer than 0.02 to the last one.

    Paths wider than 4 are pale.
    """
    first, *others = np.asarray(rows, np.float64).round(4)
    kept = [first]
    for point in others:
        if np.abs(point - kept[-1]).max() >= 0.02:
            kept.append(point)
    x, y = np.transpose(kept)
    return curve(x, y, colour, label, width, style, 0.45 if width > 4 else 1.0)


def points(
    x: ArrayLike,
    y: ArrayLike,
    colour: str,
    label: str | None = None,
    *,
    bars: ArrayLike | None = None,
    marker: str = "o",
    size: float = 5.0,
    hollow: bool = False,
) -> Mark:
    """Return markers, with error bars from ``bars[0]`` to ``bars[1]`` where these are given."""
    options: dict[str, Any] = {"fmt": marker, "ms": size, "color": colour, "label": label}
    options |= {"mfc": "white" if hollow else colour, "lw": 1.2, "zorder": 3}
    if bars is not None:
        options["yerr"] = np.abs(np.asarray(bars) - np.asarray(y))
    return Mark("errorbar", [np.atleast_1d(x), np.atleast_1d(y)], options)


def quantiles(
    x: ArrayLike, samples: ArrayLike, colour: str, label: str | None = None, low: float = 0.1
) -> Mark:
    """Return the medians of rows of samples, with bars between the quantiles low and 1-low."""
    bottom, middle, top = np.quantile(np.asarray(samples), [low, 0.5, 1 - low], axis=-1)
    return points(x, middle, colour, label, bars=(bottom, top))


def means(x: ArrayLike, samples: ArrayLike, colour: str, label: str | None = None) -> Mark:
    """Return the means of rows of samples, with bars of two standard errors."""
    rows = np.asarray(samples)
    centre, two = rows.mean(1), 2 * rows.std(1, ddof=1) / np.sqrt(rows.shape[1])
    return points(x, centre, colour, label, bars=(centre - two, centre + two), size=4)


def averages(
    x: ArrayLike, samples: ArrayLike, exactly: ArrayLike, colour: str, label: str | None = None
) -> list[Mark]:
    """Return the means of columns of samples, their intervals, and their exact values."""
    intervals = [verdicts.mean(column) for column in np.asarray(samples).T]
    low, high = ([getattr(i, end) for i in intervals] for end in ("low", "high"))
    band = Mark("fill_between", [x, low, high], {"color": colour, "alpha": 0.25, "lw": 0})
    means = curve(x, [i.estimate for i in intervals], colour, label)
    return [band, means, expected(x, exactly)]


def limit(value: float, colour: str, label: str | None = None, **options: Any) -> Mark:
    """Return a line across the whole panel at a value of y."""
    options = {"color": colour, "label": label, "lw": 1.2, "zorder": 0} | options
    return Mark("axhline", [value], options)


def area(low: float, high: float, colour: str, label: str | None = None) -> Mark:
    """Return the area between two values of x."""
    return Mark("axvspan", [low, high], {"color": colour, "alpha": 0.13, "lw": 0, "label": label})


def text(x: float, y: float, words: str, colour: str, **options: Any) -> Mark:
    """Return a few words at a point of the panel."""
    return Mark("text", [x, y, words], {"color": colour, "fontsize": 9} | options)


def panel(*marks: Mark, legend: str | None = None, log: str = "", **options: Any) -> Panel:
    """Return a panel; ``log="xy"`` stands for two logarithmic scales."""
    return Panel(marks, {f"{axis}scale": "log" for axis in log} | options, legend)


def draw(picture: Picture, figure: Figure) -> None:
    """Draw a picture on an empty figure; labels that occur twice are named once."""
    columns, named = len(picture.panels) // picture.rows, dict[str, Any]()
    axes = figure.subplots(picture.rows, columns, squeeze=False, **picture.layout).ravel()
    for ax, panel in zip(axes, picture.panels, strict=True):
        for mark in panel.marks:
            getattr(ax, mark.method)(*mark.args, **mark.options)
        ax.set(**panel.options)
        if "xticks" in panel.options:
            ax.minorticks_off()
        if panel.legend:
            ax.legend(loc=panel.legend, frameon=False, fontsize="small")
        else:
            handles, labels = ax.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
    if picture.legend:
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": picture.legend}
        figure.legend(list(named.values()), list(named), frameon=False, **place)
