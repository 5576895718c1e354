"""Levels that are read beforehand, whole or of the beginning; and the user's own."""

import io
import json

import pandas as pd
import pytest
from rich.console import Console

from tangograd.glm.commands import levels
from tangograd.glm.commands.levels import Levels, read_levels, settle
from tangograd.glm.commands.progress import Progress
from tangograd.glm.designs.design import Design, plan
from tangograd.glm.errors import DataError
from tangograd.glm.tables.readers import open_table
from tests.glm.commands.runs import estimates, fit, run, visits


@pytest.fixture
def large(monkeypatch):
    """All files are large, of which the first few thousand bytes are the beginning."""
    monkeypatch.setattr(levels, "LARGE_BYTES", 1)
    monkeypatch.setattr(levels, "BEGINNINGS_BYTES", (20_000,))
    monkeypatch.setattr(
        "tangograd.glm.commands.command.open_table",
        lambda source, **options: open_table(source, block_bytes=2_000, **options),
    )


def frame():
    return visits(3000)[["region", "x", "visits"]]


@pytest.fixture
def read(monkeypatch):
    """How much was read for levels, each time."""
    found = []
    whole = Levels._surveyed

    def surveyed(self, design, most):
        found.append(most)
        return whole(self, design, most)

    monkeypatch.setattr(Levels, "_surveyed", surveyed)
    return found


def test_the_beginning_is_enough_where_levels_are_frequent(tmp_path, monkeypatch, large, read):
    frame().to_csv(tmp_path / "a.csv", index=False)
    frame().to_parquet(tmp_path / "a.parquet", index=False)
    begun = fit(tmp_path / "a.csv", "--target", "visits")
    columnar = fit(tmp_path / "a.parquet", "--target", "visits")
    monkeypatch.setattr(levels, "FREQUENT", 10_000)
    again = fit(tmp_path / "a.csv", "--target", "visits")
    assert read == [20_000, 20_000, 20_000, None]
    for other in (columnar, again):
        assert other["summary"] == begun["summary"]
        assert other["notes"] == begun["notes"]
    assert "region: 3 levels, baseline 'east' (first in sorted order)" in begun["notes"]


def test_a_longer_beginning_is_read_where_the_shorter_is_not_enough(
    tmp_path, monkeypatch, large, read
):
    data = frame()
    data.loc[:450, "region"] = "north"
    data.loc[400:410, "region"] = "south"  # not often enough, yet
    data.to_csv(tmp_path / "a.csv", index=False)
    lengths = data[:450].to_csv(index=False), data[:2000].to_csv(index=False)
    beginnings = tuple(len(text) for text in lengths)
    monkeypatch.setattr(levels, "BEGINNINGS_BYTES", beginnings)
    found = fit(tmp_path / "a.csv", "--target", "visits")
    assert read == list(beginnings)
    assert list(estimates(found)) == ["intercept", "region[north]", "region[south]", "x"]


def test_levels_that_come_later_are_opened(tmp_path, large):
    data = frame()
    data.loc[2500:, "region"] = "a late one"
    data.to_csv(tmp_path / "a.csv", index=False)
    found = fit(tmp_path / "a.csv", "--target", "visits", "-o", tmp_path / "m", "--no-report")
    names = ["intercept", "region[north]", "region[south]", "x", "region[a late one]"]
    assert list(estimates(found)) == names
    assert "region: 4 levels, baseline 'east' (first seen)" in found["notes"]
    design = Design.from_dict(json.loads((tmp_path / "m").read_text())["model"]["design"])
    assert design.complete
    assert list(design.names) == names[1:]


def test_a_longer_beginning_is_read_where_the_shorter_has_no_level(
    tmp_path, monkeypatch, large, read
):
    data = frame()
    data.loc[:500, "region"] = None
    data.to_csv(tmp_path / "a.csv", index=False)
    beginnings = tuple(len(data[:rows].to_csv(index=False)) for rows in (450, 2000))
    monkeypatch.setattr(levels, "BEGINNINGS_BYTES", beginnings)
    found = fit(tmp_path / "a.csv", "--target", "visits", "--na", "drop")
    assert read == list(beginnings)
    assert "region: 3 levels, baseline 'east' (first in sorted order)" in found["notes"]


def test_a_longer_beginning_is_read_where_the_shorter_has_no_baseline(
    tmp_path, monkeypatch, large, read
):
    data = frame()
    data.loc[:500, "region"] = "north"
    data.to_csv(tmp_path / "a.csv", index=False)
    beginnings = tuple(len(data[:rows].to_csv(index=False)) for rows in (450, 2000))
    monkeypatch.setattr(levels, "BEGINNINGS_BYTES", beginnings)
    fit(tmp_path / "a.csv", "--formula", 'visits ~ x + C(region, baseline="south")')
    assert read == list(beginnings)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_baseline_may_come_later(tmp_path, large, monkeypatch, name):
    monkeypatch.setattr("tangograd.glm.tables.parquet_files.MOST_ROWS", 500)
    data = frame().sort_values("region")
    data.to_csv(tmp_path / "a.csv", index=False)
    data.to_parquet(tmp_path / "a.parquet", index=False)
    monkeypatch.setattr(levels, "BEGINNINGS_BYTES", (5_000, 10_000))
    formula = 'visits ~ x + C(region, baseline="{}")'
    found = fit(tmp_path / name, "--formula", formula.format("south"))
    assert list(estimates(found)) == ["intercept", "x", "region[east]", "region[north]"]
    done = run("fit", tmp_path / name, "--formula", formula.format("west"), "--quiet")
    assert done.exit_code == 1
    assert "its levels are: 'east', 'north', 'south'" in done.output


def test_classes_are_always_read_whole(tmp_path, large):
    data = visits(3000)[["x", "kind"]].sort_values("kind")
    data.to_csv(tmp_path / "a.csv", index=False)
    assert fit(tmp_path / "a.csv", "--target", "kind")["summary"]["classes"] == ["a", "b", "c"]


def test_nothing_is_read_where_nothing_is_to_be_found(tmp_path, monkeypatch):
    frame().to_csv(tmp_path / "a.csv", index=False)
    table = open_table(tmp_path / "a.csv")
    finder = Levels(table, 0.1, 0, Progress(Console(file=io.StringIO()), quiet=True))
    monkeypatch.setattr(Levels, "_surveyed", None)
    given = {"region": ["south", "north", "east"]}
    design = finder.found(plan(table.schema, target="visits", levels=given), classes=False)
    assert design.complete
    assert list(design.names) == ["region[north]", "region[east]", "x"]
    settle(design, table)


@pytest.mark.parametrize("text", ["", "[1]", '{"a": "b"}', '{"a": []}', '{"a": [null]}', "{"])
def test_files_that_are_refused(tmp_path, text):
    path = tmp_path / "levels.json"
    path.write_text(text)
    with pytest.raises(DataError, match="is not a JSON object of lists"):
        read_levels(path)


def test_numbers_given_as_levels_are_categories(tmp_path):
    data = pd.DataFrame({"g": [1, 2, 3] * 100, "x": range(300), "y": range(300)})
    data.to_csv(tmp_path / "a.csv", index=False)
    path = tmp_path / "levels.json"
    for values in ([2, 1, 3], ["2", "1", "3"]):
        path.write_text(json.dumps({"g": values}))
        found = fit(tmp_path / "a.csv", "--target", "y", "--levels", path)
        assert list(estimates(found)) == ["intercept", "g[1]", "g[3]", "x"]
    data["g"] = data["g"].astype(str) + "a"  # texts, though the first may look like numbers
    data.loc[0, "g"] = "7"
    data.to_csv(tmp_path / "a.csv", index=False)
    path.write_text('{"g": ["7", "1a", "2a", "3a"]}')
    found = fit(tmp_path / "a.csv", "--target", "y", "--levels", path, "--holdout", 0)
    assert list(estimates(found)) == ["intercept", "g[1a]", "g[2a]", "g[3a]", "x"]
