"""The pictures of a report: coefficients, calibration, residuals, loss along the stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from rich.cells import cell_len

from tangograd.glm.fitted import Array, Fitted
from tangograd.glm.reports.metrics import Calibration, HeldOut, calibration, residual_bins
from tangograd.glm.reports.summary import Coefficient, Summary
from tangograd.glm.reports.svg import FAINT, INK, MARKERS, SERIES, WIDTH, drawing, svg_element
from tangograd.glm.reports.wording import number, plural, printable, shorten

MOST_COEFFICIENTS = 30
MOST_CLASSES = len(SERIES)
NAME_WIDTH = 20
HUGE = 1e15


@dataclass(frozen=True)
class Picture:
    """A picture for the page.

    Attributes:
        name: its id.
        title: above it.
        svg: an element of HTML, with its description for those who do not see it.
        caption: how to read it.
    """

    name: str
    title: str
    svg: str
    caption: str


def pictures(fitted: Fitted, held_out: HeldOut | None, *, level: float = 0.95) -> list[Picture]:
    """All pictures that can be drawn with what is known.

    Args:
        fitted: the model.
        held_out: rows that were not learned from; without them, there is neither calibration nor
            residuals.
        level: of the intervals.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with drawing():
        found = [draw_coefficients(Summary(fitted, level=level))]
        drawable = None if held_out is None else _drawable(held_out)
        if drawable is not None and len(drawable.y):
            sides = list(_sides(fitted, drawable))
            found.append(draw_calibration(sides))
            if any(side.residual is not None for side in sides):
                found.append(draw_residuals(sides))
        if len(fitted.trace_rows):
            found.append(draw_loss(fitted))
    return found


def _drawable(held_out: HeldOut) -> HeldOut:
    """The rows with weight whose numbers a picture can show."""
    keep = np.ones(len(held_out.y), bool)
    columns = {field.name: getattr(held_out, field.name) for field in fields(held_out)}
    known = {name: column for name, column in columns.items() if column is not None}
    for column in known.values():
        small = np.abs(column) < HUGE
        keep &= small.all(axis=1) if small.ndim == 2 else small
    if held_out.weights is not None:
        keep &= held_out.weights > 0
    return replace(held_out, **{name: column[keep] for name, column in known.items()})


@dataclass(frozen=True)
class Side:
    """What is held out, as one regression: that of a class, or all there is."""

    label: str
    y: Array
    mean: Array
    weights: Array | None
    residual: Array | None
    position: Array
    axis: str
    share: bool  # the mean is a probability


def _sides(fitted: Fitted, held_out: HeldOut) -> Iterator[Side]:
    mean, w = held_out.mean, held_out.weights
    if mean.ndim == 2 and mean.shape[1] == 2:
        mean = mean[:, 1]
    if mean.ndim == 1:
        share = fitted.family == "binomial"
        residual = held_out.pearson
        if residual is None and share:
            residual = _binary_residual(held_out.y, mean)
        position, axis = mean, "prediction"
        if held_out.eta is not None:
            position, axis = held_out.eta, "linear predictor"
        yield Side("", held_out.y, mean, w, residual, position, axis, share)
        return
    hits = (held_out.y[:, None] == np.arange(mean.shape[1])).astype(float)
    labels = fitted.classes or tuple(range(mean.shape[1]))
    if len(labels) > MOST_CLASSES:
        labels, hits, mean = ("all classes",), hits.reshape(-1, 1), mean.reshape(-1, 1)
        w = None if w is None else np.repeat(w, len(mean) // len(w))
    for k, label in enumerate(labels):
        y, p = hits[:, k], mean[:, k]
        yield Side(printable(label), y, p, w, _binary_residual(y, p), p, "probability", True)


def _binary_residual(y: Array, p: Array) -> Array:
    return np.asarray((y - p) / np.sqrt(np.clip(p * (1 - p), 1e-12, None)), float)


def draw_coefficients(summary: Summary) -> Picture:
    """Coefficients in units of their standard errors, the clearest first.

    On one axis, coefficients of columns in different units compare only so; the estimates
    themselves stand beside it.
    """
    lines = [line for line in summary.coefficients() if line.estimate is not None]
    slopes = [line for line in lines if line.name != "intercept"]
    candidates = slopes or lines
    known = summary.errors is not None
    if known:
        candidates = [line for line in candidates if line.z is not None]
    chosen = sorted(candidates, key=lambda line: -abs(_position(line, known)))[:MOST_COEFFICIENTS]
    several = len(summary.fitted.outcomes) > 1
    figure, axes = _figure(0.75 + 0.235 * max(len(chosen), 1))
    places = np.arange(len(chosen))
    x = np.clip([_position(line, known) for line in chosen], -HUGE, HUGE)
    reach = _quantile(summary) if known else 0.0
    if known:
        axes.axvspan(-reach, reach, color=FAINT, alpha=0.3, lw=0)
    axes.axvline(0, color=INK, lw=0.8)
    for k, outcome in enumerate(summary.fitted.outcomes):
        members = [i for i, line in enumerate(chosen) if line.outcome == outcome]
        look = _look(k + several)
        where = x[members], places[members]
        axes.errorbar(*where, xerr=reach or None, label=printable(outcome), ls="", **look)
    _spread_axis(axes, np.append(x, 0.0), reach)
    labelled = several and len(summary.fitted.outcomes) >= MOST_CLASSES
    names = [_label(line, labelled) for line in chosen]
    axes.set_yticks(places, names, parse_math=False)
    axes.set_ylim(len(chosen) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    estimates = axes.secondary_yaxis("right")
    estimates.set_yticks(places, [number(line.estimate) for line in chosen], parse_math=False)
    estimates.tick_params(axis="y", length=0)
    estimates.spines["right"].set_visible(False)
    percent = f"{100 * summary.level:.4g}%"
    axes.set_xlabel(f"estimate / std err, {percent} interval" if known else "estimate")
    if several and not labelled:
        _legend(figure, axes)
    caption = _coefficients_caption(summary, len(chosen), len(candidates), bool(slopes))
    listed = "; ".join(_spoken(line, several) for line in chosen[:5])
    most = f"; the first are {listed}" if len(chosen) > 5 else f": {listed}"
    description = f"Dot plot of {plural(len(chosen), 'coefficient')}{most}."
    element = svg_element(figure, "coefficients", description)
    return Picture("coefficients", "Coefficients", element, caption)


def _position(line: Coefficient, known: bool) -> float:
    value = line.z if known else line.estimate
    return 0.0 if value is None else value


def _quantile(summary: Summary) -> float:
    return summary.fitted.quantile(summary.level)


def _spread_axis(axes: Any, x: Array, reach: float) -> None:
    """Linear near zero and logarithmic beyond, if some coefficients are much larger."""
    low, high = float(x.min()) - reach, float(x.max()) + reach
    most = max(-low, high)
    small = 4.0 if reach else float(np.median(np.abs(x)))
    axes.margins(x=0.06)
    if not 0 < 12 * small < most:
        return
    axes.set_xscale("asinh", linear_width=small / 2)
    room = 0.22 * (np.arcsinh(2 * high / small) - np.arcsinh(2 * low / small))
    ticks = [0.0]
    for power in range(int(np.log10(most)), -16, -1):
        for tick in (-(10.0**power), 10.0**power):
            gaps = np.abs(np.arcsinh(2 * tick / small) - np.arcsinh(2 * np.array(ticks) / small))
            if low <= tick <= high and gaps.min() > room:
                ticks.append(tick)
    axes.set_xticks(sorted(ticks))
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter("{x:g}")


def _label(line: Coefficient, labelled: bool) -> str:
    name = printable(line.name)
    if not labelled:
        return shorten(name, NAME_WIDTH)
    outcome = shorten(printable(line.outcome), NAME_WIDTH // 2 - 2)
    return f"{outcome}: {shorten(name, NAME_WIDTH - cell_len(outcome) - 2)}"


def _spoken(line: Coefficient, several: bool) -> str:
    z = "" if line.z is None else f" (z {line.z:.1f})"
    outcome = f"{printable(line.outcome)}: " if several else ""
    return f"{outcome}{printable(line.name)} {number(line.estimate)}{z}"


def _coefficients_caption(summary: Summary, drawn: int, of: int, slopes: bool) -> str:
    percent = f"{100 * summary.level:.4g}%"
    if summary.errors is not None:
        parts = [
            "Dots: the estimates in units of their standard errors (z), so that columns of "
            f"all units compare; lines: {percent} intervals. In the grey band, zero is within "
            "the interval. On the right, the estimates themselves."
        ]
        order = "|z|"
    else:
        parts = ["The estimates, in the units of their columns; this fit has no standard errors."]
        order = "|estimate|"
    if drawn < of:
        parts.append(f"Only the {drawn} with the largest {order} of {of:,} are drawn.")
    if slopes and "intercept" in summary.fitted.names:
        parts.append("The intercept is not drawn.")
    if summary.fitted.classes is not None:
        parts.append(f"Against class {printable(summary.fitted.classes[0])}.")
    return " ".join(parts)


def draw_calibration(sides: Sequence[Side]) -> Picture:
    """Observed against predicted means of held-out rows, with twice their standard errors."""
    figure, axes = _figure(3.4)
    found = [(side, calibration(side.mean, side.y, side.weights)) for side in sides]
    ends = np.concatenate([np.r_[bins.predicted, bins.observed] for _, bins in found])
    low, high = float(ends.min()), float(ends.max())
    logarithmic = not sides[0].share and 0 < 30 * low < high
    axes.plot([low, high], [low, high], color=INK, lw=0.9, ls="--")
    for k, (side, bins) in enumerate(found):
        error = 2 * np.nan_to_num(bins.standard_error)
        below = np.minimum(error, 0.9 * bins.observed) if logarithmic else error
        axes.errorbar(
            bins.predicted,
            bins.observed,
            yerr=[below, error],
            ls="-" if len(sides) > 1 else "",
            lw=0.8,
            label=side.label,
            **_look(k),
        )
    if logarithmic:
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
    axes.set(xlabel="mean prediction", ylabel="mean observed")
    if len(sides) > 1:
        _legend(figure, axes)
    count = plural(len(found[0][1].predicted), "bin")
    description = (
        f"Calibration in {count} of held-out rows: {'; '.join(map(_gap, found))}. The dashed "
        "line is where both are equal."
    )
    caption = (
        f"Held-out rows in {count} by their prediction: mean prediction and mean observed, "
        "with two standard errors. On the dashed line both are equal."
    )
    element = svg_element(figure, "calibration", description)
    return Picture("calibration", "Calibration", element, caption)


def _gap(found: tuple[Side, Calibration]) -> str:
    side, bins = found
    gaps = np.abs(bins.observed - bins.predicted)
    label = f"{side.label}, " if side.label else ""
    low, high = number(bins.predicted.min()), number(bins.predicted.max())
    return f"{label}predictions {low} to {high}, the largest gap {number(gaps.max())}"


def draw_residuals(sides: Sequence[Side]) -> Picture:
    """Mean Pearson residuals along the predictor, and for a single outcome a sample of rows."""
    found = [
        (side, residual_bins(side.position, side.residual, variance=1.0 if side.share else None))
        for side in sides
        if side.residual is not None
    ]
    single = len(found) == 1
    figure, panels = _figure(4.4 if single else 0.6 + 1.25 * len(found), rows=len(found) + single)
    for k, (panel, (side, bins)) in enumerate(zip(panels[single:], found, strict=True)):
        error = 2 * np.nan_to_num(bins.standard_error)
        panel.errorbar(bins.position, bins.mean, yerr=error, ls="", **_look(k))
        panel.axhline(0, color=INK, lw=0.8)
        panel.set_ylabel("mean residual" if single else "mean")
        if not single:
            label = shorten(side.label, 2 * NAME_WIDTH)
            panel.set_title(label, loc="left", fontsize=10.5, color=SERIES[k], parse_math=False)
    above = _draw_points(panels[0], found[0][1].points) if single else ""
    axis, count = found[0][0].axis, plural(len(found[0][1].mean), "bin")
    panels[-1].set_xlabel(axis)
    worst = max(float(np.abs(bins.mean).max()) for _, bins in found)
    description = (
        f"Mean Pearson residuals of held-out rows in {count} along the {axis}; the largest is "
        f"{number(worst)} in size."
    )
    words = "mean Pearson residuals" if single else "Mean Pearson residuals of held-out rows"
    caption = (
        f"{above}{words} in {count} by the {axis}, with two standard errors: around zero if "
        "the model is right, a curve if something is missing."
    )
    return Picture("residuals", "Residuals", svg_element(figure, "residuals", description), caption)


def _draw_points(axes: Any, points: Array) -> str:
    axes.scatter(*points.T, s=5, color="#808080", alpha=0.5, lw=0, rasterized=True)
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_ylabel("residual")
    low, high = np.quantile(points, [0.002, 0.998], axis=0)
    margin = np.where(high > low, 0.08 * (high - low), 1.0)
    low, high = low - margin, high + margin
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    outside = int(np.any((points < low) | (points > high), axis=1).sum())
    beyond = f" ({outside} more beyond the frame)" if outside else ""
    return f"Above: {plural(len(points) - outside, 'held-out row')}{beyond}. Below: "


def draw_loss(fitted: Fitted) -> Picture:
    """The mean loss a row along the stream."""
    from matplotlib.ticker import EngFormatter

    figure, axes = _figure(3.0)
    rows, loss = fitted.trace_rows, fitted.trace_loss
    axes.plot(rows, loss, "o-", color=SERIES[0], ms=3.5, lw=1.4)
    if rows[-1] > rows[0]:
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter("")
    low, high = float(loss.min()), float(np.quantile(loss, 0.9))
    cut = bool(high > low and loss.max() > high + 4 * (high - low))
    if cut:
        axes.set_ylim(low - 0.1 * (high - low), high + 2 * (high - low))
    axes.set(xlabel="rows", ylabel="mean loss a row")
    caption = (
        "Half the deviance a row (of classes, minus the log-likelihood), averaged over the rows "
        "since the previous point: flat where the model has learned what it can."
    )
    if cut:
        caption += " The largest losses are beyond the frame."
    description = (
        f"Mean loss a row from {number(float(loss[0]))} after {rows[0]:,} rows to "
        f"{number(float(loss[-1]))} after {rows[-1]:,}."
    )
    return Picture(
        "loss", "Loss along the stream", svg_element(figure, "loss", description), caption
    )


def _figure(height: float, rows: int = 1) -> tuple[Any, Any]:
    """A figure with panels one above the other: a single one, or an array of several."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, 1, sharex=True)


def _look(k: int) -> dict[str, Any]:
    """Colour and shape: classes are told apart without colours, too."""
    return {"color": SERIES[k % 6], "marker": MARKERS[k % 6], "ms": 4.5, "elinewidth": 1.4}


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    shown = [shorten(label, 2 * NAME_WIDTH) for label in labels]
    columns = 1 if max(map(cell_len, shown)) > 16 else 2
    height = 0.2 * -(-len(shown) // columns)
    figure.set_figheight(figure.get_figheight() + height)
    legend = figure.legend(
        handles, shown, loc="outside upper left", ncols=columns, frameon=False, borderpad=0
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
