"""A fitted model as one page that stands alone: in words, figures, pictures and the whole table."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from tangograd.files import replacing
from tangograd.glm.fitted import Fitted
from tangograd.glm.reports.metrics import HeldOut
from tangograd.glm.reports.pictures import Picture, pictures
from tangograd.glm.reports.summary import Summary
from tangograd.glm.reports.wording import UNKNOWN, effort, html, model_words, number, plural

__all__ = ["HeldOut", "render_report", "write_report"]

LIMIT = 5000
STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --quiet: #595959;
  --line: #d9d9d9; --faint: #c8c8c8; --box: #f4f4f4; --series-0: #0069a6; --series-1: #b84a00;
  --series-2: #00795a; --series-3: #a2447c; --series-4: #6b6b00; --series-5: #5a4fcf; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181b; --quiet: #a9adb3; --line: #3a3e44; --faint: #555b63;
    --box: #202429; --series-0: #5cb8f0; --series-1: #f59a54; --series-2: #3ecda4;
    --series-3: #e08cbd; --series-4: #c9c94e; --series-5: #a9a1ff; } }
* { box-sizing: border-box; }
body { font: 17px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 64rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 0 0 .3rem; }
.lead { font-size: 1.12rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .6rem;
  margin: .6rem 0; padding: 0; }
.tiles div { background: var(--box); border-radius: .4rem; padding: .5rem .7rem; }
.tiles dt { color: var(--quiet); font-size: .85rem; line-height: 1.3; }
.tiles dd { margin: 0; font-size: 1.2rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.pictures { columns: 24rem 2; column-gap: 2.5rem; }
figure { margin: 0 0 1.8rem; break-inside: avoid; max-width: 32rem; }
figure svg { display: block; width: 100%; height: auto; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figure svg text { font-family: system-ui, sans-serif !important; }
figcaption, .quiet { color: var(--quiet); font-size: .88rem; line-height: 1.45; }
.wide { overflow-x: auto; margin: .6rem 0; overflow-wrap: normal; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .22rem .7rem .22rem 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { font-weight: 500; }
thead th, th[colspan] { font-weight: 600; color: var(--quiet); }
.coefficients td, .coefficients thead th + th { text-align: right; white-space: nowrap; }
.coefficients { width: 100%; border-collapse: separate; border-spacing: 0; }
.coefficients th:first-child { position: sticky; left: 0; background: var(--paper);
  background-clip: padding-box; }
.coefficients th[scope=row] { min-width: 8.5rem; max-width: 22rem; overflow-wrap: anywhere; }
.coefficients th[colspan] span { position: sticky; left: 0; }
.facts > div { border-bottom: 1px solid var(--line); }
.facts { font-size: .9rem; font-variant-numeric: tabular-nums; margin: .6rem 0 1.4rem; }
.facts dt { color: var(--quiet); } .facts dd { white-space: nowrap; }
@media screen and (max-width: 40rem) { .wide::before { content: "← scrolls sideways →";
  position: sticky; left: 0; color: var(--quiet); font-size: .8rem; } }
.made th { color: var(--quiet); white-space: nowrap; }
.made td { overflow-wrap: anywhere; }
pre { background: var(--box); border-radius: .4rem; padding: .7rem; overflow-x: auto;
  font-size: .88rem; white-space: pre-wrap; }
@media print { :root { color-scheme: light; }
  body { font-size: 12px; max-width: none; padding: 0; } .pictures { columns: 18rem 2; }
  .wide { overflow: visible; } tr, .tiles div { break-inside: avoid; }
  h2, h3 { break-after: avoid; } }
"""
LABELS = {
    "n": "held-out rows",
    "weight": "sum of weights",
    "loss": "mean loss (minus log-likelihood)",
    "log_loss": "log-loss",
    "deviance": "mean deviance",
    "d2": "D², share of deviance explained",
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    "mean_target": "mean observed",
    "mean_prediction": "mean prediction",
    "auc": "AUC (area under the ROC curve)",
    "brier": "Brier score",
    "accuracy": "accuracy",
    "base_rate": "observed share",
    "largest_class": "share of the largest class",
}
PERCENT = {"accuracy", "largest_class", "d2"}
SOURCES = {
    "data": "data",
    "target": "target",
    "formula": "formula",
    "command": "command",
    "version": "tangograd",
    "date": "date",
}


def write_report(
    path: str | Path,
    fitted: Fitted,
    *,
    title: str | None = None,
    held_out: HeldOut | None = None,
    source: Mapping[str, str] | None = None,
    metrics: Mapping[str, float | None] | None = None,
    level: float = 0.95,
) -> None:
    """Write the page, whole or not at all.

    Args:
        path: of the HTML file; it needs no other file, no network and no scripts.
        fitted: the model.
        title: of the page.
        held_out: rows that were not learned from, for the pictures of calibration and residuals.
        source: what it was made from, as far as known: "data", "target", "formula", "command",
            "version", "date", "model" (the model's file), "python" (how to use it, instead of the
            lines that load an estimator).
        metrics: of the held-out rows.
        level: of the intervals.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written; a file that was there before is kept.

    Example:
        >>> import numpy as np, tempfile
        >>> fitted = Fitted(
        ...     "poisson", "log", ("intercept",), np.array([0.5]), rows=100, weight=100.0,
        ...     dispersion=1.0, log_likelihood=-140.0, deviance=90.0, null_deviance=90.0,
        ...     progressive=False,
        ... )
        >>> file = Path(tempfile.mkdtemp()) / "report.html"
        >>> write_report(file, fitted)
        >>> file.read_text(encoding="utf-8")[:15]
        '<!doctype html>'
    """
    page = render_report(
        fitted, title=title, held_out=held_out, source=source, metrics=metrics, level=level
    )
    with replacing(Path(path)) as draft:
        draft.write_text(page, encoding="utf-8")


def render_report(
    fitted: Fitted,
    *,
    title: str | None = None,
    held_out: HeldOut | None = None,
    source: Mapping[str, str] | None = None,
    metrics: Mapping[str, float | None] | None = None,
    level: float = 0.95,
) -> str:
    """The page as text; the arguments are those of :func:`write_report`."""
    known = dict(source or {})
    summary = Summary(fitted, level=level)
    heading = title or summary.title
    figures = "".join(map(_figure, pictures(fitted, held_out, level=level)))
    table = Summary(fitted, level=level, title="").to_html(limit=LIMIT)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html(heading)}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{html(heading)}</h1>
<p class="lead">{_headline(fitted, known)} {_verdict(fitted, metrics or {})}</p>
{_metrics(metrics)}
<h2>Pictures</h2>
<div class="pictures">
{figures}</div>
<h2>Summary</h2>
{table}
<h2>How to use the model</h2>
{_use(fitted, known)}
{_made(known)}
</main>
</body>
</html>
"""


def _headline(fitted: Fitted, source: Mapping[str, str]) -> str:
    """What was fitted to what, in a sentence; escaped."""
    words = html(model_words(fitted))
    article = "An" if words[0] in "aeiou" else "A"
    target = f" of <strong>{html(source['target'])}</strong>" if source.get("target") else ""
    if fitted.classes is not None and len(fitted.classes) == 2:
        target += f" ({html(fitted.classes[1])} against {html(fitted.classes[0])})"
    elif fitted.classes is not None:
        target += f" ({len(fitted.classes)} classes)"
    data = f" of {html(source['data'])}" if source.get("data") else ""
    columns = len([name for name in fitted.names if name != "intercept"])
    on = f" on {plural(columns, 'column')}" if columns else ""
    rows = plural(fitted.rows, "row")
    return f"{article} {words}{target}{on}, learned from {rows}{data} {effort(fitted)}."


def _verdict(fitted: Fitted, metrics: Mapping[str, float | None]) -> str:
    """How good it is, in a sentence."""
    rows = metrics.get("n")
    if rows:
        held = f"On {plural(int(rows), 'row')} held out it"
        if (d2 := metrics.get("d2")) is not None:
            return f"{held} explains {_percent(d2)} of the deviance."
        if (accuracy := metrics.get("accuracy")) is not None:
            largest = metrics.get("largest_class")
            than = "" if largest is None else f"; guessing the largest class: {largest:.1%}"
            return f"{held} gets {accuracy:.1%} right{than}."
    when = ", each row before it was learned from" if fitted.progressive else ""
    return f"It explains {_percent(fitted.d2)} of the deviance of these rows{when}."


def _percent(share: float) -> str:
    return f"{share:.1%}" if share > 0 else "none"


def _metrics(metrics: Mapping[str, float | None] | None) -> str:
    if not metrics:
        return ""
    tiles = "".join(
        f"<div><dt>{html(LABELS.get(name, name.replace('_', ' ')))}</dt>"
        f"<dd>{html(_metric(name, value))}</dd></div>\n"
        for name, value in metrics.items()
        if name != "weight" or value != metrics.get("n")
    )
    if "base_rate" in metrics:
        tiles = tiles.replace(LABELS["mean_prediction"], "mean probability")
    return f'<h2>On rows held out</h2>\n<dl class="tiles">\n{tiles}</dl>'


def _metric(name: str, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if name == "n":
        return f"{value:,.0f}"
    return f"{value:.1%}" if name in PERCENT else number(value)


def _figure(picture: Picture) -> str:
    return f"""<figure id="{picture.name}">
<h3>{html(picture.title)}</h3>
{picture.svg}
<figcaption>{html(picture.caption)}</figcaption>
</figure>
"""


def _use(fitted: Fitted, source: Mapping[str, str]) -> str:
    model = source.get("model", "MODEL")
    shell = f"tangograd predict {shlex.quote(model)} DATA"
    kind = "TangoRegressor" if fitted.classes is None else "TangoClassifier"
    python = f"from tangograd.glm import {kind}\n\nmodel = {kind}.load({model!r})\nmodel.predict(X)"
    return f"""<p>Predictions for the rows of new data, as CSV on standard output:</p>
<pre>{html(shell)}</pre>
<p>In Python:</p>
<pre>{_lines(source.get("python", python))}</pre>"""


def _lines(text: str) -> str:
    return "\n".join(map(html, text.splitlines()))


def _made(source: Mapping[str, str]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{html(label)}</th><td>{html(source[key])}</td></tr>\n'
        for key, label in SOURCES.items()
        if source.get(key)
    )
    if not rows:
        return ""
    return f'<h2>How it was made</h2>\n<table class="made"><tbody>\n{rows}</tbody></table>'
