"""Raw results of the GLM benchmarks: a JSON file that grows row by row, and is always whole."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tangograd.files import replacing

FOLDER = Path(__file__).parent / "results"
Row = dict[str, Any]


def machine(*packages: str) -> Row:
    """What the figures depend on."""
    names = ("numpy", "scipy", "numba", "scikit-learn", "tangograd", *packages)
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in names},
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


class Results:
    """Rows, each with values that tell it from all others.

    Args:
        path: of the file; what is there is kept.
        key: the names of those values.
        facts: about the machine and the settings.
    """

    def __init__(self, path: Path, key: tuple[str, ...], facts: Row) -> None:
        self.path, self.key = path, key
        found = json.loads(path.read_text()) if path.exists() else {"rows": []}
        self.facts = facts
        self._rows = {self._key_of(row): row for row in found["rows"]}

    def _key_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.key)

    def __contains__(self, row: Row) -> bool:
        return self._key_of(row) in self._rows

    def row(self, like: Row) -> Row:
        """The row with the same key."""
        return self._rows[self._key_of(like)]

    @property
    def rows(self) -> list[Row]:
        """In the order in which they came."""
        return list(self._rows.values())

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows, or replace those of the same key, and write the file."""
        self._rows |= {self._key_of(row): row for row in rows}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in self.rows)
        facts = json.dumps(self.facts, indent=1, ensure_ascii=False)
        text = facts[:-2] + f',\n "n": {len(self._rows)},\n "rows": [\n{lines}\n ]\n}}\n'
        with replacing(self.path) as draft:
            draft.write_text(text)
