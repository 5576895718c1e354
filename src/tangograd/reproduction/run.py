"""Measure claims one after the other, and write what was found as soon as it is known."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

import tangograd
from tangograd.files import replacing
from tangograd.reproduction import page
from tangograd.reproduction.base import Claim, Result, Setting


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
    advance: Callable[[Claim, float], None] = lambda _claim, _share: None,
) -> Iterator[Outcome]:
    """Measure each claim; yields it once its JSON, its PNG and the page are written.

    Args:
        claims: in the order of the page.
        output: an existing folder, for ``NAME.json``, ``NAME.png`` and ``index.html``.
        seed: of all random numbers.
        quick: fewer samples, wider intervals.
        advance: called with a claim and the fraction of its work that was just done.
    """
    done: list[Outcome] = []
    for claim in claims:
        start = time.perf_counter()
        setting = Setting(claim.name, seed, quick, partial(advance, claim))
        result = claim.measure(setting)
        done.append(Outcome(claim, result, time.perf_counter() - start))
        with replacing(output / f"{claim.name}.json") as draft:
            draft.write_text(_as_json(done[-1], setting) + "\n", encoding="utf-8")
        figure = Figure(figsize=claim.size, layout="constrained", dpi=150)
        claim.draw(result.data, figure)
        with replacing(output / f"{claim.name}.png") as draft:
            figure.savefig(draft)
        sections = [(o.claim, o.result, output / f"{o.claim.name}.png") for o in done]
        with replacing(output / "index.html") as draft:
            left = [c.title for c in claims[len(done) :]]
            text = page.render(sections, left, seed=seed, quick=quick)
            draft.write_text(text, encoding="utf-8")
        yield done[-1]


def _as_json(outcome: Outcome, setting: Setting) -> str:
    claim = outcome.claim
    return json.dumps(
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
        },
        ensure_ascii=False,
        allow_nan=False,
    )
