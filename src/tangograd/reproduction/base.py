"""What a claim is: a sentence, a measurement, and a picture of its data."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tangograd.reproduction.verdicts import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")

#: Okabe and Ito's colours, told apart by colour-blind readers.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#666666",
)


def legend_below(figure: Figure, *axes: Axes, ncols: int) -> None:
    """One legend for these axes, outside of the data."""
    labelled = [ax.get_legend_handles_labels() for ax in axes]
    figure.legend(
        [handle for handles, _ in labelled for handle in handles],
        [name for _, names in labelled for name in names],
        loc="outside lower center",
        ncols=ncols,
        frameon=False,
    )


@dataclass
class Setting:
    """How a claim is to be measured.

    Attributes:
        name: of the claim; its random numbers depend on it and on the seed alone.
        seed: the user's.
        quick: fewer samples.
        advance: called with a fraction of the whole work when that much more is done.
    """

    name: str
    seed: int = 0
    quick: bool = False
    advance: Callable[[float], None] = field(default=lambda _: None)

    def generators(self, n: int, what: str = "") -> list[np.random.Generator]:
        """Independent random streams; other words for ``what`` give other streams."""
        key = zlib.crc32(f"{self.name}/{what}".encode())
        return [np.random.default_rng(s) for s in np.random.SeedSequence([self.seed, key]).spawn(n)]

    def several(self, run: Callable[[Any], T], over: Iterable[Any], share: float) -> list[T]:
        """``[run(x) for x in over]`` on two threads; the whole is a share of the claim's work.

        The kernels release the interpreter's lock, so this uses both cores.
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


@dataclass(frozen=True)
class Result:
    """What was found.

    Attributes:
        verdicts: the rows of the table.
        data: the raw results, plain numbers, lists and dicts, as written to JSON; the picture is
            drawn from them alone.
    """

    verdicts: list[Verdict]
    data: dict[str, Any]

    @property
    def holds(self) -> bool:
        """Whether every verdict does."""
        return all(verdict.holds for verdict in self.verdicts)


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Attributes:
        name: for the command line and file names.
        title: a few words.
        where: in the paper.
        sentences: the claim in our words, and what is shown; plain text, a paragraph or two.
        measure: does the work.
        draw: draws the data of a result on an empty figure.
        size: of the figure, in inches; 8 wide is readable in a README.
    """

    name: str
    title: str
    where: str
    sentences: str
    measure: Callable[[Setting], Result]
    draw: Callable[[dict[str, Any], Figure], None]
    size: tuple[float, float] = (8.0, 4.5)
