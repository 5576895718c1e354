"""Measure claims one after the other; write each result as soon as it is known."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from tangograd import __version__ as VERSION
from tangograd.files import replacing
from tangograd.reproduction import figures, page
from tangograd.reproduction.base import Claim, Result, Setting
from tangograd.reproduction.verdicts import Verdict


def reproduce(
    claims: Sequence[Claim],
    output: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    known: Sequence[Claim] = (),
    advance: Callable[[Claim, float], None] = lambda _claim, _share: None,
) -> Iterator[tuple[Claim, Result]]:
    """Measure each claim, and yield its result once its JSON, its PNG and the page are written.

    Args:
        claims: in the order of the page.
        output: an existing folder, for ``NAME.json``, ``NAME.png`` and ``index.html``.
        seed: seed of all random numbers.
        quick: whether to draw fewer samples, which makes intervals wider.
        known: all existing claims; results of an earlier run in the same folder stay on the page,
            and the other claims are listed as missing.
        advance: callback, called with a claim and the fraction of its work that was just done.
    """
    results, chosen = dict[str, list[Verdict]](), {claim.name for claim in claims}
    for claim in known:
        if claim.name not in chosen and (kept := _earlier(output / claim.name, seed, quick)):
            results[claim.name] = kept
    for claim in claims:
        start = time.perf_counter()
        setting = Setting(claim.name, seed, quick, partial(advance, claim))
        with threadpool_limits(1, user_api="blas"):  # the claim runs two threads of its own
            result = claim.measure(setting)
        contents = dict[str, Any](claim=claim.name, title=claim.title, where=claim.where)
        contents |= {"tangograd": VERSION, "seed": seed, "quick": quick, "holds": result.holds}
        contents |= {"seconds": round(time.perf_counter() - start, 2)} | asdict(result)
        text = json.dumps(finite(contents), ensure_ascii=False, allow_nan=False) + "\n"
        figure = Figure(figsize=result.picture.size, layout="constrained", dpi=150)  # type: ignore[arg-type]
        figures.draw(result.picture, figure)
        with replacing(output / f"{claim.name}.png") as draft:
            figure.savefig(draft)
        with replacing(output / f"{claim.name}.json") as draft:
            draft.write_text(text, encoding="utf-8")
        results[claim.name] = result.verdicts
        measured = [c for c in known or claims if c.name in results]
        sections = [(c, results[c.name], output / f"{c.name}.png") for c in measured]
        left = [c.title for c in known or claims if c.name not in results]
        with replacing(output / "index.html") as draft:
            text = page.render(sections, left, seed=seed, quick=quick)
            draft.write_text(text, encoding="utf-8")
        yield claim, result


def _earlier(path: Path, seed: int, quick: bool) -> list[Verdict] | None:
    """Read the verdicts of an earlier run with the same seed, length and version, if any."""
    try:
        kept = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        path.with_suffix(".png").stat()
        same = kept["tangograd"], kept["seed"], kept["quick"]
        rows: list[dict[str, Any]] = [
            {key: math.nan if x is None else x for key, x in verdict.items()}
            for verdict in kept["verdicts"]
        ]
        return [Verdict(**row) for row in rows] if same == (VERSION, seed, quick) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
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
