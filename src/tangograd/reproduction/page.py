"""The self-contained HTML page: every claim with its picture, its numbers and its verdicts."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

import tangograd
from tangograd.reproduction.base import Claim
from tangograd.reproduction.verdicts import Verdict

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 17px/1.55 system-ui, sans-serif; color: #1b1b1b; background: #fff;
       max-width: 56rem; margin: 0 auto; padding: 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin: 0; }
section { border-top: 1px solid #ccc; margin-top: 2.2rem; padding-top: 1.2rem; }
.picture { overflow-x: auto; margin: .6rem 0; }
img { display: block; width: 100%; height: auto; }
.where { color: #595959; margin: 0; }
.holds, .fails { font-weight: 600; white-space: nowrap; }
.holds { color: #00634a; } .fails, .missing { color: #a33a00; }
table { width: 100%; border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid #e5e5e5;
         vertical-align: top; }
th { font-weight: 600; color: #595959; }
@media (max-width: 40rem) {
  img { width: 36rem; max-width: none; }  /* read by scrolling sideways */
  thead { display: none; } tr { display: block; padding: .5rem 0; border-bottom: 1px solid #ccc; }
  td { display: block; border: 0; padding: .05rem 0; }
  td::before { content: attr(data-column) ": "; color: #595959; }
  td:first-child { font-weight: 600; } td:first-child::before { content: ""; }
}
"""
COLUMNS = ("quantity", "expected", "measured", "n", "verdict")


def number(x: float) -> str:
    """Format a number with four significant digits.

    >>> number(26.184), number(1.25e-15), number(200.0)
    ('26.18', '1.2e-15', '200')
    """
    if x and not 1e-4 <= abs(x) < 1e5:
        return f"{x:.1e}"
    return f"{x:.4g}"


def measured(verdict: Verdict) -> str:
    """Format the estimate, with its interval if there is one.

    >>> measured(Verdict("a", "1", 1.01, 0.99, 1.03, 100, True))
    '1.01 (0.99 … 1.03)'
    """
    if verdict.low == verdict.high or math.isnan(verdict.low):
        return number(verdict.measured)
    return f"{number(verdict.measured)} ({number(verdict.low)} … {number(verdict.high)})"


def render(
    sections: Sequence[tuple[Claim, Sequence[Verdict], Path]],
    left: Sequence[str],
    *,
    seed: int,
    quick: bool,
) -> str:
    """Return the page: claims with verdicts and pictures, and titles of claims without."""
    holding = sum(all(v.holds for v in verdicts) for _, verdicts, _ in sections)
    kind = "the quick version, with wider intervals" if quick else "the full version"
    contents = "".join(
        f'<li><a href="#{claim.name}">{escape(claim.title)}</a> '
        f"({escape(claim.where)}): {_verdict(*verdicts)}</li>"
        for claim, verdicts, _ in sections
    )
    names = escape("; ".join(left))
    missing = f'<p class="missing">Not measured (yet): {names}.</p>' if left else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TANGO: the paper's claims, measured</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>TANGO: the paper's claims, measured</h1>
<p>True Asymptotic Natural Gradient Optimization (Yann Ollivier, 2017) estimates the natural
gradient by a velocity that is updated with single samples, and needs no Fisher matrix. Below, each
claim of that paper is tested by simulation: <strong>{holding} of {len(sections)}
hold</strong>. This is {kind}, with seed {seed}, made by tangograd {tangograd.__version__}.
Intervals in parentheses miss the truth with a probability below 10<sup>-6</sup>.</p>
{missing}
<ol>{contents}</ol>
{"".join(_section(*section) for section in sections)}
</main>
</body>
</html>
"""


def _section(claim: Claim, verdicts: Sequence[Verdict], picture: Path) -> str:
    image = base64.b64encode(picture.read_bytes()).decode()
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in claim.paragraphs)
    head = "".join(f"<th>{column}</th>" for column in COLUMNS)
    rows = "".join(_row(verdict) for verdict in verdicts)
    return f"""
<section id="{claim.name}">
<h2>{escape(claim.title)}</h2>
<p class="where">In the paper: {escape(claim.where)}. The claim {_verdict(*verdicts)}.</p>
{paragraphs}
<div class="picture">
<img alt="{escape(claim.title)}" src="data:image/png;base64,{image}">
</div>
<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>
</section>"""


def _row(verdict: Verdict) -> str:
    texts = (verdict.what, verdict.expected, measured(verdict), f"{verdict.n}")
    cells = zip(COLUMNS, [*map(escape, texts), _verdict(verdict)], strict=True)
    return "<tr>" + "".join(f'<td data-column="{name}">{x}</td>' for name, x in cells) + "</tr>"


def _verdict(*verdicts: Verdict) -> str:
    holds = all(verdict.holds for verdict in verdicts)
    return '<span class="holds">holds</span>' if holds else '<span class="fails">fails</span>'
