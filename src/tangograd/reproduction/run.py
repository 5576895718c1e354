"""Measure claims one after the other, and write what was found as soon as it is known."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import tangograd
from tangograd.files import replacing
from tangograd.reproduction import page
from tangograd.reproduction.base import Claim, Result, Setting
from tangograd.reproduction.verdicts import Verdict


@dataclass(frozen=True)
class Outcome:
    """A claim and what was found."""

    claim: Claim
    result: Result
    seconds: float


def reproduce(
    claims: Sequence[Claim],
    output: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    known: Sequence[Claim] = (),
    advance: Callable[[Claim, float], None] = lambda _claim, _share: None,
) -> Iterator[Outcome]:
    """Measure each claim; yields it once its JSON, its PNG and the page are written.

    Args:
        claims: in the order of the page.
        output: an existing folder, for ``NAME.json``, ``NAME.png`` and ``index.html``.
        seed: of all random numbers.
        quick: fewer samples, wider intervals.
        known: all claims there are; those that an earlier run has left in the folder stay on the
            page, and the others are listed as missing.
        advance: called with a claim and the fraction of its work that was just done.
    """
    done: list[Outcome] = []
    for claim in claims:
        start = time.perf_counter()
        setting = Setting(claim.name, seed, quick, partial(advance, claim))
        result = claim.measure(setting)
        done.append(Outcome(claim, result, time.perf_counter() - start))
        figure = Figure(figsize=claim.size, layout="constrained", dpi=150)
        claim.draw(result.data, figure)
        with replacing(output / f"{claim.name}.png") as draft:
            figure.savefig(draft)
        with replacing(output / f"{claim.name}.json") as draft:
            draft.write_text(_as_json(done[-1], setting) + "\n", encoding="utf-8")
        results = {o.claim.name: o.result for o in done}
        for other in known:
            if other.name not in {c.name for c in claims}:
                earlier = _earlier(other, output, setting)
                results |= {other.name: earlier} if earlier else {}
        ordered = [c for c in known or claims if c.name in results]
        sections = [(c, results[c.name], output / f"{c.name}.png") for c in ordered]
        left = [c.title for c in known or claims if c.name not in results]
        with replacing(output / "index.html") as draft:
            text = page.render(sections, left, seed=seed, quick=quick)
            draft.write_text(text, encoding="utf-8")
        yield done[-1]


def _earlier(claim: Claim, output: Path, setting: Setting) -> Result | None:
    """What an earlier run with the same seed, length and version has left in the folder."""
    try:
        kept = json.loads((output / f"{claim.name}.json").read_text(encoding="utf-8"))
        same = (kept["tangograd"], kept["seed"], kept["quick"])
        if same != (tangograd.__version__, setting.seed, setting.quick):
            return None
        (output / f"{claim.name}.png").stat()
        rows: list[dict[str, Any]] = [
            {key: math.nan if x is None else x for key, x in verdict.items()}
            for verdict in kept["verdicts"]
        ]
        return Result([Verdict(**row) for row in rows], kept["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def finite(x: Any) -> Any:
    """The same with what JSON has no number for as ``null``."""
    if isinstance(x, dict):
        return {key: finite(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def _as_json(outcome: Outcome, setting: Setting) -> str:
    claim = outcome.claim
    return json.dumps(
        finite(
            {
                "claim": claim.name,
                "title": claim.title,
                "where": claim.where,
                "tangograd": tangograd.__version__,
                "seed": setting.seed,
                "quick": setting.quick,
                "seconds": round(outcome.seconds, 2),
                "holds": outcome.result.holds,
                "verdicts": [asdict(verdict) for verdict in outcome.result.verdicts],
                "data": outcome.result.data,
            }
        ),
        ensure_ascii=False,
        allow_nan=False,
    )
