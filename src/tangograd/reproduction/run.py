"""Measure claims one after the other; write each result as soon as it is known."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

import tangograd
from tangograd.files import replacing
from tangograd.reproduction import figures, page
from tangograd.reproduction.base import Claim, Result, Setting
from tangograd.reproduction.verdicts import Verdict


@dataclass(frozen=True)
class Outcome:
    """A claim, its result, and the time that it took."""

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
    """Measure each claim, and yield its outcome once its JSON, its PNG and the page are written.

    Args:
        claims: in the order of the page.
        output: an existing folder, for ``NAME.json``, ``NAME.png`` and ``index.html``.
        seed: seed of all random numbers.
        quick: whether to draw fewer samples, which makes intervals wider.
        known: all existing claims; results of an earlier run in the same folder stay on the page,
            and the other claims are listed as missing.
        advance: callback, called with a claim and the fraction of its work that was just done.
    """
    done: list[Outcome] = []
    for claim in claims:
        start = time.perf_counter()
        setting = Setting(claim.name, seed, quick, partial(advance, claim))
        with threadpool_limits(1, user_api="blas"):  # the claim runs two threads of its own
            result = claim.measure(setting)
        done.append(Outcome(claim, result, time.perf_counter() - start))
        figure = Figure(figsize=result.picture.size, layout="constrained", dpi=150)  # type: ignore[arg-type]
        figures.draw(result.picture, figure)
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
    """Read the result of an earlier run with the same seed, length and version, if there is one."""
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
        picture = figures.Picture.from_json(kept["picture"])
        return Result([Verdict(**row) for row in rows], picture, kept["samples"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def finite(x: Any) -> Any:
    """Return what JSON can hold: lists for arrays, None for infinite and undefined numbers."""
    if isinstance(x, np.ndarray | np.generic):
        return finite(x.tolist())
    if isinstance(x, dict):
        return {key: finite(value) for key, value in x.items()}
    if isinstance(x, list | tuple | range):
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
                "picture": asdict(outcome.result.picture),
                "samples": outcome.result.samples,
            }
        ),
        ensure_ascii=False,
        allow_nan=False,
    )
