"""A claim of the paper: its text, a measurement, and a picture of the data."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tangograd.reproduction.exact import Array as Array
from tangograd.reproduction.figures import Picture
from tangograd.reproduction.verdicts import Verdict

T = TypeVar("T")


@dataclass
class Setting:
    """The conditions under which a claim is measured."""

    name: str  # of the claim; its random numbers depend on the name and the seed alone
    seed: int = 0
    quick: bool = False  # whether to draw fewer samples
    #: Callback, called with the fraction of the claim's work that was just done.
    advance: Callable[[float], None] = field(default=lambda _: None)

    def generators(self, n: int, what: str = "") -> list[np.random.Generator]:
        """Return n independent random streams; each ``what`` has streams of its own."""
        key = zlib.crc32(f"{self.name}/{what}".encode())
        return [np.random.default_rng(s) for s in np.random.SeedSequence([self.seed, key]).spawn(n)]

    def map(self, run: Callable[[Any], T], over: Iterable[Any], share: float) -> list[T]:
        """Return ``[run(x) for x in over]``, a share of the claim's work, computed by two threads.

        The kernels release the interpreter's lock, so this uses two cores.
        """
        items = list(over)

        def one(item: Any) -> T:
            result = run(item)
            self.advance(share / len(items))
            return result

        with ThreadPoolExecutor(2) as pool:
            try:
                return list(pool.map(one, items))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def sample(
        self, run: Callable[[np.random.Generator], T], n: int, what: str, share: float
    ) -> list[T]:
        """Return n independent results of ``run(rng)``, with the random streams of ``what``."""
        return self.map(run, self.generators(n, what), share)


@dataclass(frozen=True)
class Result:
    """Verdicts, the figure, and raw results for the JSON file: numbers, lists and dicts."""

    verdicts: list[Verdict]
    picture: Picture
    samples: dict[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every verdict holds."""
        return all(verdict.holds for verdict in self.verdicts)


@dataclass(frozen=True)
class Claim:
    """One claim: its name in the command line and in files, its texts, and what measures it."""

    name: str
    title: str
    where: str
    paragraphs: tuple[str, ...]
    measure: Callable[[Setting], Result]
