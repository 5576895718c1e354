"""The claims of the TANGO paper, each measured in one module.

``tangograd reproduce`` runs them. ``claims.md`` holds the text of every claim, and the module of
the same name holds ``measure(setting)``, which returns verdicts and the description of a figure.
The results are written as JSON, PNG and one HTML page.
"""

import re
from importlib import import_module, resources

from tangograd.reproduction.base import Claim

#: Name, title, place in the paper, and text, up to the next heading.
HEADING = re.compile(r"^# ([\w-]+): (.+) \((.+)\)\n\n((?:.+\n|\n(?!#))+)", re.MULTILINE)


def claims() -> list[Claim]:
    """Return all claims, in the order of ``claims.md``."""
    text = resources.files(__name__).joinpath("claims.md").read_text(encoding="utf-8")
    return [_claim(*match.groups()) for match in HEADING.finditer(text)]


def _claim(name: str, title: str, where: str, text: str) -> Claim:
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    paragraphs = tuple(" ".join(part.split()) for part in text.strip().split("\n\n"))
    return Claim(name, title, where, paragraphs, module.measure)
