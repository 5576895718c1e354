"""Figures of matplotlib as elements of a page: in its fonts and colours, light or dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

WIDTH = 4.3  # inches of 72 units: about a phone's width, so that text keeps its size there
INK, FAINT = "#1b1b1b", "#c8c8c8"
SERIES = ("#0069a6", "#b84a00", "#00795a", "#a2447c", "#6b6b00", "#5a4fcf")
MARKERS = "os^Dvp"
VARIABLES = {
    INK: "--ink",
    FAINT: "--faint",
    **{colour: f"--series-{k}" for k, colour in enumerate(SERIES)},
}
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


@contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib's settings for these pictures, inside the block.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'tangograd[plot]'") from error
    settings: dict[Any, Any] = {
        "font.size": 10.5,
        "xtick.labelsize": 10,
        "ytick.labelsize": 10,
        "legend.fontsize": 10,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": FAINT,
        "grid.alpha": 0.5,
        "grid.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
        ),
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "svg.fonttype": "none",
        "svg.hashsalt": "tangograd",
    }
    with rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the browser has it
        yield


def svg_element(figure: Any, name: str, description: str) -> str:
    """The figure as an ``<svg>`` element for HTML.

    Args:
        figure: of matplotlib.
        name: begins the ids, which have to be different from those of other pictures.
        description: for those who do not see it.

    Example:
        >>> from matplotlib.figure import Figure
        >>> with drawing():
        ...     element = svg_element(Figure(figsize=(1, 1)), "empty", "Nothing.")
        >>> element[:26], 'aria-label="Nothing."' in element
        ('<svg xmlns="http://www.w3.', True)
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.set_dpi(150)  # of what is drawn as an image
    FigureCanvasSVG(figure).print_svg(buffer, metadata=nothing)  # savefig would draw twice
    root = ElementTree.fromstring(buffer.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            # matplotlib's style sheet has rules for "*", which would be those of the whole page
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):
                parent.remove(child)
        for key, value in parent.attrib.items():
            parent.set(key, _adapted(key, value, name))
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", description)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _adapted(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == f"{{{XLINK}}}href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    value = re.sub(r"url\(#", f"url(#{name}-", value)
    if key == "style":
        for colour, variable in VARIABLES.items():
            value = value.replace(colour, f"var({variable}, {colour})")
    return value
