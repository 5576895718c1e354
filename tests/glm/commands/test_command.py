"""``tangograd fit`` as a user meets it: what it reads, says, writes and refuses."""

import io
import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import statsmodels.api as sm

from tangograd.glm import engine
from tangograd.glm.commands import command, learning
from tangograd.glm.commands.holdout import Draw
from tangograd.glm.commands.predicting import Model
from tangograd.glm.designs import reading
from tangograd.glm.designs.design import Design
from tangograd.glm.tables import parquet_files
from tangograd.glm.tables.readers import open_table
from tests.glm.commands.runs import estimates, fit, run, visits


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "visits.csv"
    visits().to_csv(path, index=False)
    return path


@pytest.fixture
def stream(monkeypatch):
    """Few rows are kept in memory, so that small data are streamed."""
    monkeypatch.setattr(engine, "BUFFER_BYTES", 50_000)
    monkeypatch.setattr(engine, "KEPT_ROWS", 300)
    monkeypatch.setattr(engine, "START_ROWS", 500)


HELD = int((Draw(0).next(2000) < 0.1).sum())
COUNTS = ("--target", "visits", "--exposure", "years", "--exclude", "happy", "--exclude", "kind")


def test_agrees_with_statsmodels(csv):
    frame = pd.read_csv(csv)
    dummies = pd.get_dummies(frame["region"], dtype=float)[["north", "south"]]
    X = sm.add_constant(pd.concat([frame[["x", "age"]], dummies], axis=1))
    right = sm.GLM(frame["visits"], X, sm.families.Poisson(), exposure=frame["years"]).fit()
    found = fit(csv, *COUNTS, "--holdout", 0)
    coefficients = found["summary"]["coefficients"]
    assert [line["name"] for line in coefficients] == [
        "intercept", "x", "age", "region[north]", "region[south]",
    ]  # fmt: skip
    np.testing.assert_allclose([line["estimate"] for line in coefficients], right.params, rtol=1e-6)
    errors = [line["standard_error"] for line in coefficients]
    np.testing.assert_allclose(errors, right.bse, rtol=1e-5)
    assert found["summary"]["deviance"] == pytest.approx(right.deviance, rel=1e-8)
    assert found["held_out"] is None
    assert found["rows"] == {"read": 2000, "learned": 2000, "held_out": 0, "left_out": {}}


def test_what_is_printed_and_written(csv, tmp_path):
    model = tmp_path / "new" / "model.json"
    done = run("fit", csv, *COUNTS, "-o", model)
    assert done.exit_code == 0, done.output
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if str(tmp_path) not in line)
    text = " ".join(done.stdout.split())
    for part in (
        "Poisson regression of visits on 3 columns of",
        "The family poisson was inferred, as 'visits' holds whole numbers from 0",
        f"to convergence; {HELD} rows held out (--holdout 0.1)",
        "region[south]",
        "region: 3 levels, baseline 'east' (first in sorted order)",
        f"On {HELD} rows held out:",
        "D², share of deviance explained",
        f"model: {model}",
        f"report: {model.with_suffix('.html')}",
        "next: tangograd predict",
    ):
        assert part in text
    assert "reading levels" in done.stderr
    assert "learning" in done.stderr
    assert "2,000 rows" in done.stderr
    assert sorted(file.name for file in model.parent.iterdir()) == ["model.html", "model.json"]
    page = model.with_suffix(".html").read_text()
    assert "calibration" in page
    assert "Poisson regression of visits" in page
    assert Model.load(model).fitted.rows == 2000 - HELD


def test_json_is_all_that_is_on_standard_output(csv, tmp_path):
    done = run("fit", csv, *COUNTS, "--json", "-o", tmp_path / "m.json")
    found = json.loads(done.stdout)
    assert found["files"]["model"] == str(tmp_path / "m.json")
    assert found["held_out"]["n"] == HELD
    assert found["inferred"].startswith("poisson was inferred")
    assert "learning" in done.stderr
    assert run("fit", csv, *COUNTS, "--json", "--quiet").stderr == ""


def test_without_output_nothing_is_written(csv, tmp_path):
    done = run("fit", csv, *COUNTS, "--quiet")
    assert "Nothing was written; -o model.json keeps the model" in done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["visits.csv"]


@pytest.mark.parametrize(
    ("target", "family", "classes"),
    [
        (["false", "true"], "binomial", [False, True]),
        (["no", "yes"], "binomial", ["no", "yes"]),
        (["c", "a", "b"], "multinomial", ["a", "b", "c"]),
        ([0, 1], "binomial", [0, 1]),
        ([0.0, 1.0], "binomial", [0, 1]),
        ([2, 1], "binomial", [1, 2]),
        ([0.5, 1], "binomial", [0.5, 1]),
        ([0, 1, 5], "poisson", None),
        ([-1, 1, 5], "gaussian", None),
        ([0, 1.5, 2], "gaussian", None),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_the_family_is_inferred(tmp_path, target, family, classes, streamed):
    path = tmp_path / "data.csv"
    frame = pd.DataFrame({"y": target * 40})
    frame["x"] = np.random.default_rng(0).normal(size=len(frame))
    frame.to_csv(path, index=False)
    found = (
        fit("-", "--target", "y", stdin=path.read_bytes())
        if streamed
        else fit(path, "--target", "y")
    )
    assert found["family"] == family
    assert found["summary"]["classes"] == classes
    assert found["inferred"].startswith(f"{family} was inferred, as 'y' h")
    assert family not in ("binomial", "multinomial") or found["held_out"]["log_loss"] > 0


def test_sorted_classes_are_all_found_in_files_and_refused_on_standard_input(tmp_path, monkeypatch):
    path = tmp_path / "sorted.csv"
    lines = [f"{i % 7},{label}" for label in ("a", "b", "c") for i in range(100)]
    path.write_text("x,y\n" + "\n".join(lines) + "\n")
    assert fit(path, "--target", "y")["summary"]["classes"] == ["a", "b", "c"]
    numbers = tmp_path / "numbers.csv"
    numbers.write_text(path.read_text().replace("a", "1").replace("b", "2").replace("c", "3"))
    found = fit(numbers, "--target", "y", "--family", "multinomial")
    assert found["summary"]["classes"] == [1, 2, 3]
    monkeypatch.setattr("tangograd.glm.commands.command.FIRST_ROWS", 1)
    monkeypatch.setattr("tangograd.glm.commands.command.open_table", _in_small_blocks)
    done = run("fit", "-", "--target", "y", "--quiet", stdin=path.read_bytes())
    assert done.exit_code == 1
    assert (
        "standard input, line 202: the target 'y' is 'c', and its classes are 'a', 'b' (found in"
        in done.stderr
    )
    assert "--levels" in done.stderr
    levels = tmp_path / "levels.json"
    levels.write_text('{"y": ["c", "a", "b"]}')
    options = ("--target", "y", "--levels", levels)
    assert fit("-", *options, stdin=path.read_bytes())["summary"]["classes"] == ["c", "a", "b"]
    assert fit(path, *options)["summary"]["classes"] == ["c", "a", "b"]


def _in_small_blocks(source, **options):
    from tangograd.glm.tables.readers import open_table

    return open_table(source, block_bytes=500, sample_bytes=100, **options)


def test_the_way_rows_come_does_not_matter(tmp_path, stream, monkeypatch):
    frame = visits(4000)[["x", "age", "years", "visits"]]
    kept = [fit(path, "--target", "visits") for path in _ways(frame, tmp_path)]
    whole = (tmp_path / "data.csv").read_bytes()
    kept.append(fit("-", "--target", "visits", stdin=whole))
    _assert_all_the_same(kept, tmp_path, monkeypatch)


def test_the_way_rows_with_levels_come_does_not_matter(tmp_path, stream, monkeypatch):
    """Nor whether numbers and levels are kept apart."""
    for name, value in {"BLOCK_ROWS": 256, "START_ROWS": 1000}.items():
        monkeypatch.setattr(engine, name, value)
    frame = visits(4000)[["x", "region", "age", "happy", "visits"]]
    kept = [fit(path, "--target", "visits") for path in _ways(frame, tmp_path)]
    _assert_all_the_same(kept, tmp_path, monkeypatch)
    rows = Design.rows
    monkeypatch.setattr(
        Design,
        "rows",
        lambda self, *given, **options: rows(self, *given, **options | {"apart": False}),
    )
    whole = fit(tmp_path / "data.csv", "--target", "visits")["summary"]["coefficients"]
    for one, other in zip(whole, kept[0]["summary"]["coefficients"], strict=True):
        assert math.isclose(one["estimate"], other["estimate"], rel_tol=1e-9)
        assert math.isclose(one["standard_error"], other["standard_error"], rel_tol=1e-9)


def _assert_all_the_same(kept, folder, monkeypatch):
    """Fits that were made, and one in small blocks from now on."""
    monkeypatch.setattr("tangograd.glm.commands.command.open_table", _in_small_blocks)
    kept.append(fit(folder / "data.csv", "--target", "visits"))
    assert kept[0]["summary"]["excess"] > 1  # a stream
    for other in kept[1:]:
        assert other["summary"]["coefficients"] == kept[0]["summary"]["coefficients"]
        assert other["held_out"] == kept[0]["held_out"]
        assert other["rows"] == kept[0]["rows"]


def _ways(frame, folder):
    yield_to = [folder / name for name in ("data.csv", "data.csv.gz", "data.parquet", "parts")]
    frame.to_csv(yield_to[0], index=False)
    frame.to_csv(yield_to[1], index=False)
    frame.to_parquet(yield_to[2], index=False, row_group_size=700)
    yield_to[3].mkdir()
    for number, start in enumerate(range(0, len(frame), 1500)):
        frame[start : start + 1500].to_csv(yield_to[3] / f"{number}.csv", index=False)
    return yield_to


def test_rows_held_out_are_not_learned_from(tmp_path):
    frame = visits(1000)[["x", "visits"]]
    frame.to_csv(tmp_path / "a.csv", index=False)
    whole, held = fit(tmp_path / "a.csv", "--target", "visits"), 0
    draws = Draw(0).next(1000)
    frame.loc[draws < 0.1, "visits"] = 0  # as a Poisson model does not expect
    frame.to_csv(tmp_path / "b.csv", index=False)
    changed = fit(tmp_path / "b.csv", "--target", "visits")
    held = int((draws < 0.1).sum())
    assert changed["rows"] == whole["rows"]
    assert whole["rows"]["held_out"] == held == whole["held_out"]["n"]
    assert estimates(changed) == estimates(whole)
    assert changed["held_out"]["deviance"] != whole["held_out"]["deviance"]
    other = fit(tmp_path / "a.csv", "--target", "visits", "--seed", 1)
    assert estimates(other) != estimates(whole)


def test_levels_that_only_held_out_rows_have_are_not_in_the_model(tmp_path):
    frame = visits(500)[["x", "region", "visits"]]
    first = int(np.flatnonzero(Draw(0).next(500) < 0.1)[0])
    frame.loc[first, "region"] = "moon"
    frame.to_csv(tmp_path / "a.csv", index=False)
    found = fit(tmp_path / "a.csv", "--target", "visits")
    assert not any("moon" in name for name in estimates(found))
    assert found["held_out"]["n"] == found["rows"]["held_out"] - 1
    assert any("1 row held out, with a level of 'region'" in note for note in found["notes"])


def test_levels_on_standard_input_are_opened_as_they_come(tmp_path, stream, monkeypatch):
    frame = visits(3000)[["region", "x", "visits"]].sort_values("region", ascending=False)
    monkeypatch.setattr("tangograd.glm.commands.command.open_table", _in_small_blocks)
    found = fit("-", "--target", "visits", stdin=frame.to_csv(index=False).encode())
    assert list(estimates(found)) == ["intercept", "x", "region[north]", "region[east]"]
    assert "region: 3 levels, baseline 'south' (first seen)" in found["notes"]
    named = ("--target", "visits", "--family", "poisson")
    again = fit("-", *named, stdin=frame.to_csv(index=False).encode())
    assert again["summary"]["coefficients"] == found["summary"]["coefficients"]


def test_further_passes_and_polishing(csv, tmp_path, stream):
    visits(4000).to_csv(csv, index=False)
    exact = sm.GLM.from_formula(
        "visits ~ x + age",
        pd.read_csv(csv)[Draw(0).next(4000) >= 0.1],
        family=sm.families.Poisson(),
    ).fit()
    options = (csv, "--formula", "visits ~ x + age")
    one = fit(*options, "--no-polish")["summary"]
    two = fit(*options, "--passes", 2)["summary"]
    polished = fit(*options, "--polish")["summary"]
    distances = [
        max(
            abs(line["estimate"] - right) / line["standard_error"]
            for line, right in zip(found["coefficients"], exact.params, strict=True)
        )
        for found in (one, two, polished)
    ]
    assert (one["passes"], two["passes"]) == (1, 2)
    assert 1 < polished["passes"] <= 4
    assert polished["converged"]
    assert not one["converged"]
    assert 1 < one["excess"] < 1.1
    assert distances[2] < 0.01
    assert distances[0] < 1
    assert one["rows"] == two["rows"] == polished["rows"] == exact.nobs


def test_further_passes_over_rows_in_memory_are_not_needed(csv):
    found = fit(csv, *COUNTS, "--passes", 3, "--polish")
    assert found["summary"]["passes"] == 1
    assert any("further passes and polishing were not needed" in note for note in found["notes"])


def test_missing_values(csv):
    frame = pd.read_csv(csv)
    learned = np.flatnonzero(Draw(0).next(2000) >= 0.1)
    frame.loc[learned[[3, 7]], "x"] = np.nan
    frame.loc[learned[11], "region"] = None
    frame.to_csv(csv, index=False)
    done = run("fit", csv, *COUNTS, "--quiet")
    assert done.exit_code == 1
    place = f"visits.csv, line {learned[3] + 2}"
    assert f"{place}: column 'x' is missing; drop such rows (--na drop)" in done.stderr
    dropped = fit(csv, *COUNTS, "--na", "drop")
    assert dropped["rows"]["left_out"] == {"x": 2, "region": 1}
    assert dropped["rows"]["learned"] + dropped["rows"]["held_out"] == 1997
    assert "2 rows left out: column 'x' is missing" in dropped["notes"]
    indicated = fit(csv, *COUNTS, "--na", "indicator")
    assert {"x[missing]", "region[(missing)]"} <= set(estimates(indicated))
    assert indicated["rows"]["left_out"] == {}


def test_a_missing_value_in_a_row_held_out_is_an_error_too(csv):
    frame = pd.read_csv(csv)
    first = int(np.flatnonzero(Draw(0).next(2000) < 0.1)[0])
    frame.loc[first, "x"] = np.nan
    frame.to_csv(csv, index=False)
    done = run("fit", csv, *COUNTS, "--quiet")
    assert done.exit_code == 1
    assert f"visits.csv, line {first + 2}: column 'x' is missing" in done.stderr


class TestNumbersThatAreNone:
    """NaN and infinity in a stream, where the model notices them, and not who prepares its rows."""

    ROWS = 42_000

    @pytest.fixture
    def fault(self, tmp_path, monkeypatch, stream):
        """What is said of a Parquet file with some values in the place of those it had."""
        monkeypatch.setattr(parquet_files, "MOST_ROWS", 3000)
        looked = []
        complete = reading.complete

        def counted(*args, checked):
            looked.append(checked)
            return complete(*args, checked=checked)

        monkeypatch.setattr(reading, "complete", counted)
        feed = learning.Learner._feed

        def feed_and_look(learner, piece):
            feed(learner, piece)
            assert len(learner._last) <= 4  # of 3000 rows each, for a block

        monkeypatch.setattr(learning.Learner, "_feed", feed_and_look)

        def said(*wrong, options=()):
            frame = visits(self.ROWS).assign(w=1.0)
            for rows, column, value in wrong:
                frame[column] = frame[column].astype(float)
                frame.loc[rows, column] = value
            table = pa.table({name: pa.array(frame[name].to_numpy()) for name in frame})
            pq.write_table(table, tmp_path / "visits.parquet")
            given = (*COUNTS, *(() if "w" in options else ("--exclude", "w")), "--quiet", *options)
            done = run("fit", tmp_path / "visits.parquet", *given)
            assert not all(looked) or "--na" in options
            assert done.exit_code == (1 if done.stderr else 0)
            return done.stderr

        return said

    def learned(self, near):
        """A row that is learned from."""
        return near + int(np.argmax((Draw(0).next(self.ROWS) >= 0.1)[near:]))

    @pytest.mark.parametrize("near", [25_000, 31_234, 39_990])
    @pytest.mark.parametrize(
        ("value", "words"),
        [(np.nan, "is missing"), (np.inf, "is infinite (inf)"), (-np.inf, "is infinite (-inf)")],
    )
    def test_the_row_is_named(self, fault, near, value, words):
        row = self.learned(near)
        said = fault((row, "x", value))
        assert f"visits.parquet, row {row + 1}: column 'x' {words}" in said

    def test_the_first_of_several_is_named(self, fault):
        first, second, third = (self.learned(near) for near in (26_000, 26_005, 26_010))
        said = fault((second, "age", np.nan), (first, "x", np.inf), (third, "years", -1.0))
        assert f"row {first + 1}: column 'x' is infinite" in said

    def test_one_in_a_row_held_out_may_be_the_first(self, fault):
        row = self.learned(28_500)
        held = int(np.flatnonzero(Draw(0).next(self.ROWS)[:row] < 0.1)[-1])
        assert row - held < 30
        said = fault((row, "x", np.nan), (held, "x", np.inf))
        assert f"row {held + 1}: column 'x' is infinite" in said

    @pytest.mark.parametrize("near", [25_000, 26_950])
    def test_another_fault_in_the_next_piece_is_the_second(self, fault, near):
        """The rows at the end of a piece wait for a block to be full."""
        row, later = self.learned(near), self.learned(27_100)
        said = fault((row, "x", np.nan), (later, "years", -1.0))
        assert f"row {row + 1}: column 'x' is missing" in said

    def test_another_fault_in_the_same_piece_is_named_if_it_is_the_first(self, fault):
        row, later = self.learned(27_100), self.learned(27_200)
        said = fault((later, "x", np.nan), (row, "years", -1.0))
        assert f"row {row + 1}: the exposure 'years' is -1" in said
        said = fault((row, "x", np.nan), (later, "years", -1.0))
        assert f"row {row + 1}: column 'x' is missing" in said

    @pytest.mark.parametrize("own", [0.0, 1.0])
    def test_among_rows_of_weight_0(self, fault, own):
        """Which are not learned from, and wrong all the same; blocks are of the others."""
        row = self.learned(26_000)
        light = np.setdiff1d(np.arange(25_000, self.ROWS), np.arange(25_000, self.ROWS, 50))
        said = fault(
            (light, "w", 0.0), (row, "w", own), (row, "x", np.nan), options=("--weights", "w")
        )
        assert f"row {row + 1}: column 'x' is missing" in said

    def test_missing_ones_may_be_dropped(self, fault):
        assert not fault((self.learned(30_000), "x", np.nan), options=("--na", "drop"))
        assert not fault((np.arange(25_000, self.ROWS), "x", np.nan), options=("--na", "drop"))

    def test_numbers_that_are_too_large_are_said_to_be(self, fault):
        said = fault((self.learned(30_000), "x", 1e300))
        assert "look for values in the features that are missing or extreme" in said

    def test_none_is_wrong(self, fault):
        assert not fault()


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        (("--family", "tweedie", "--power", 1.3), "parameters", {"power": 1.3}),
        (("--family", "negative-binomial", "--dispersion", 0.5), "parameters", {"dispersion": 0.5}),
        (("--alpha", 0.5), "alpha", 0.5),
        (("--level", 0.9), "level", 0.9),
        (("--robust",), "robust", True),
        (("--fisher", "sampled"), "family", "poisson"),
        (("--weights", "age"), "weight", None),
        (("--offset", "age"), "family", "poisson"),
        (("--no-intercept",), "degrees_of_freedom", 6),
        (("--formula", "x + C(region, baseline='south')"), "degrees_of_freedom", 4),
    ],
)
def test_options_reach_the_model(csv, options, name, value):
    base = ("--target", "visits", "--exclude", "happy", "--exclude", "kind")
    found, plain = fit(csv, *base, *options)["summary"], fit(csv, *base)["summary"]
    if value is not None:
        assert found[name] == value
    if options[0] not in ("--fisher",):
        assert found["coefficients"] != plain["coefficients"]


@pytest.mark.parametrize("link", ["logit", "probit", "cloglog"])
def test_links_and_shares(tmp_path, link):
    rng = np.random.default_rng(0)
    x = rng.normal(size=800)
    pupils = rng.integers(5, 50, 800)
    share = rng.binomial(pupils, 1 / (1 + np.exp(-x))) / pupils
    pd.DataFrame({"x": x, "pupils": pupils, "share": share}).to_csv(tmp_path / "a.csv", index=False)
    options = ("--family", "binomial", "--link", link, "--weights", "pupils")
    found = fit(tmp_path / "a.csv", "--target", "share", *options)
    assert found["summary"]["link"] == link
    assert found["summary"]["classes"] is None
    assert found["held_out"]["d2"] > 0.5


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ((), 2, "name the DATA to learn from"),
        (("--example", "wine", "DATA"), 2, "or an --example, not both"),
        (("--example", "wein"), 2, "--example is one of diabetes, breast_cancer, wine"),
        (("DATA",), 2, "name the target: --target y"),
        (("DATA", "--formula", "x + age"), 2, "name the target: --target y"),
        (("DATA", "--target", "visits", "--family", "poison"), 2, "--family is one of gaussian"),
        (
            ("DATA", "--target", "visits", "--family", "poisson", "--link", "logit"),
            2,
            "the links of",
        ),
        (("DATA", "--target", "visits", "--link", "log"), 2, "go with a --family"),
        (("DATA", "--target", "visits", "--family", "tweedie", "--power", 3), 2, "power must be"),
        (
            ("DATA", "--target", "kind", "--family", "multinomial", "--link", "log"),
            2,
            "the link logit",
        ),
        (("DATA", "--target", "visits", "--na", "skip"), 2, "--na is one of drop, indicator"),
        (
            ("DATA", "--target", "visits", "--fisher", "x"),
            2,
            "--fisher is one of expected, sampled",
        ),
        (("DATA", "--target", "visits", "--holdout", 1), 2, "--holdout is a share"),
        (("DATA", "--target", "visits", "--level", 95), 2, "--level is between 0 and 1"),
        (("DATA", "--target", "visits", "--alpha", -1), 2, "--alpha is 0 or positive"),
        (("DATA", "--target", "visits", "--passes", 0), 2, "--passes"),
        (("-", "--target", "visits", "--passes", 2), 2, "standard input can be read only once"),
        (("-", "--target", "visits", "--polish"), 2, "standard input can be read only once"),
        (("-", "--target", "visits"), 1, "standard input is empty"),
        (("DATA", "--target", "visits", "-o", "DATA"), 2, "is the data, which would be lost"),
        (("DATA", "--target", "visits", "-o", "."), 2, ". is a folder"),
        (("DATA", "--target", "visits", "--report", "a.html"), 2, "--report belongs to a model"),
        (("DATA", "--target", "visits", "-o", "m.html"), 2, "both the model and its report"),
        (("nothing.csv", "--target", "visits"), 1, "there is no file or folder 'nothing.csv'"),
        (("DATA", "--target", "visit"), 1, "Did you mean 'visits'?"),
        (("DATA", "--target", "x", "--family", "gamma"), 1, "visits.csv, line 3"),
        (
            ("DATA", "--target", "happy", "--family", "poisson"),
            1,
            "holds text, and poisson models numbers",
        ),
        (("DATA", "--target", "kind", "--family", "binomial"), 1, "use --family multinomial"),
        (("DATA", "--target", "happy", "--exposure", "years"), 1, "needs a log link"),
        (("DATA", "--target", "visits", "--exclude", "agee"), 1, "Did you mean 'age'?"),
        (("DATA", "--formula", "visits ~ eval(x)"), 1, "the function eval is not allowed"),
        (("DATA", "--formula", "visits ~ scale(x)"), 1, "scale() learns from the data"),
        (("DATA", "--target", "visits", "--levels", "DATA"), 1, "is not a JSON object of lists"),
        (
            ("DATA", "--target", "visits", "--levels", "none.json"),
            1,
            "there is no file 'none.json'",
        ),
    ],
)
def test_what_is_refused(csv, monkeypatch, options, code, text):
    monkeypatch.chdir(csv.parent)
    before = csv.read_bytes()
    done = run("fit", *(csv if o == "DATA" else o for o in options), "--quiet", stdin=b"")
    assert done.exit_code == code, done.output
    assert text in " ".join(done.stderr.split())
    assert done.stdout == ""
    assert not isinstance(done.exception, ValueError)
    assert csv.read_bytes() == before
    assert [file.name for file in csv.parent.iterdir()] == ["visits.csv"]


def test_targets_of_many_texts_and_of_one_value(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "".join(f"{i},name {i}\n" for i in range(50)))
    done = run("fit", path, "--target", "y", "--quiet")
    assert done.exit_code == 1
    assert "text of more than 20 different values ('name 0'," in done.stderr
    path.write_text("x,y\n" + "".join(f"{i},a\n" for i in range(50)))
    done = run("fit", path, "--target", "y", "--quiet")
    assert done.exit_code == 1
    assert "the target 'y' has one class only ('a')" in done.stderr
    path.write_text("x,y\n" + "".join(f"{i},5\n" for i in range(50)))
    assert any("the same in all rows" in note for note in fit(path, "--target", "y")["notes"])


def test_an_inferred_family_that_later_rows_do_not_fit_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("tangograd.glm.commands.command.FIRST_ROWS", 1)
    monkeypatch.setattr("tangograd.glm.commands.command.open_table", _in_small_blocks)
    path = tmp_path / "a.csv"
    for early, late, family in ((5, -1, "poisson"), (1, 2, "binomial")):
        values = [i % (early + 1) for i in range(300)] + [late]
        path.write_text("x,y\n" + "".join(f"{i},{y}\n" for i, y in enumerate(values)))
        done = run("fit", path, "--target", "y", "--quiet")
        assert done.exit_code == 1
        assert "a.csv, line 302" in done.stderr
        assert f"{family} was inferred, as 'y' holds" in done.stderr
        assert "name another with --family" in done.stderr


def test_no_rows_to_learn_from(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n,2\n,3\n,4\n")
    done = run("fit", path, "--target", "y", "--na", "drop", "--holdout", 0, "--polish", "--quiet")
    assert done.exit_code == 1
    assert "no rows to learn from: of 3 rows, 0 held out" in done.stderr
    assert "3 rows left out: column 'x' is missing" in done.stderr
    done = run("fit", path, "--target", "x", "--na", "drop", "--quiet")
    assert done.exit_code == 1
    assert "the target 'x' has no values" in done.stderr


def test_notes_on_doubtful_columns(tmp_path):
    frame = visits(1000)[["x", "age", "visits"]]
    frame["visits"] *= 10
    frame["twin"], frame["constant"] = frame["x"], 3
    frame["age"] = frame["age"].astype(str)
    frame.loc[5, "age"] = "old"
    frame["name"] = [f"n{i}" for i in range(1000)]
    frame.to_csv(tmp_path / "a.csv", index=False)
    notes = " ".join(fit(tmp_path / "a.csv", "--target", "visits", "--alpha", 0.1)["notes"])
    for part in (
        "constant: constant",
        "twin equals x in every row",
        "age counts as categories since not all of it are numbers, such as 'old'",
        "rows, so it tells the rows apart rather than explains them: leave it out (--exclude name)",
        "the counts vary more than a Poisson model says",
    ):
        assert part in notes


def test_examples(tmp_path):
    expected = {
        "diabetes": "gaussian",
        "breast_cancer": "binomial",
        "wine": "multinomial",
        "fair": "binomial",
        "randhie": "poisson",
        "star98": "binomial",
    }
    for name, family in expected.items():
        found = fit("--example", name)
        assert found["family"] == family
        assert found["data"] == f"example {name}"
        assert found["summary"]["converged"]
    found = fit(
        "--example", "randhie", "--formula", "mdvis ~ lncoins + hlthp", "-o", tmp_path / "m"
    )
    assert list(estimates(found)) == ["intercept", "lncoins", "hlthp"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m", "m.html"]
    assert list(estimates(fit("--example", "wine", "--target", "ash", "--exclude", "cultivar")))


def test_an_example_whose_package_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels.datasets", None)
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    done = run("fit", "--example", "fair")
    assert done.exit_code == 1
    assert "pip install statsmodels" in done.stderr
    assert "take one of diabetes, breast_cancer, wine" in done.stderr


def test_no_report(csv, tmp_path, monkeypatch):
    options = (csv, *COUNTS, "-o", tmp_path / "m.json")
    assert fit(*options, "--no-report")["files"] == {"model": str(tmp_path / "m.json")}
    assert fit(*options, "--report", tmp_path / "r")["files"]["report"] == str(tmp_path / "r")
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = fit(*options)
    assert found["files"] == {"model": str(tmp_path / "m.json")}
    assert any("no report: it needs matplotlib" in note for note in found["notes"])


def test_a_folder_that_cannot_be_written_is_said_before_the_data_are_read(csv, monkeypatch):
    monkeypatch.setattr("tangograd.glm.commands.command.open_table", None)
    done = run("fit", csv, *COUNTS, "-o", csv / "below" / "m.json")
    assert done.exit_code == 1
    assert "cannot write to" in done.stderr


@pytest.mark.parametrize("file", ["model", "report"])
def test_a_full_disk_keeps_the_old_files(csv, tmp_path, monkeypatch, file):
    (tmp_path / "m.json").write_text("old model")
    (tmp_path / "m.html").write_text("old report")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    place = {
        "model": "tangograd.glm.saved.replacing",
        "report": "tangograd.glm.reports.report.replacing",
    }
    monkeypatch.setattr(place[file], full)
    done = run("fit", csv, *COUNTS, "-o", tmp_path / "m.json", "--quiet")
    assert done.exit_code == 1
    assert "No space left on device" in done.stderr
    assert "region[south]" in done.stdout  # what was learned is still said
    assert ((tmp_path / "m.json").read_text() == "old model") == (file == "model")
    assert (tmp_path / "m.html").read_text() == "old report"
    assert len(list(tmp_path.iterdir())) == 3


class TestInterrupted:
    @pytest.fixture
    def press(self, monkeypatch, stream):
        """Ctrl-C is pressed at the third piece."""
        monkeypatch.setattr("tangograd.glm.commands.command.open_table", _in_small_blocks)

        def set_up(times=1):
            feed, fed = learning.Learner._feed, []

            def press_then_feed(self, piece):
                fed.append(piece)
                if len(fed) == 3:
                    for _ in range(times):
                        signal.raise_signal(signal.SIGINT)
                feed(self, piece)

            monkeypatch.setattr(learning.Learner, "_feed", press_then_feed)

        return set_up

    def test_what_was_learned_is_kept(self, csv, tmp_path, press):
        press()
        before = signal.getsignal(signal.SIGINT)
        done = run("fit", csv, *COUNTS, "--quiet", "-o", tmp_path / "m.json")
        assert done.exit_code == 130
        fitted = Model.load(tmp_path / "m.json").fitted
        assert 0 < fitted.rows < 1500
        (note,) = [note for note in fitted.notes if note.startswith("interrupted after ")]
        assert note.endswith("rows (learning)")
        assert f"kept in {tmp_path / 'm.json'}" in done.stderr
        assert "Interrupted: learned from" in done.stdout
        assert signal.getsignal(signal.SIGINT) is before

    def test_without_output_it_is_still_said(self, csv, press):
        press()
        done = run("fit", csv, *COUNTS, "--json", "--quiet")
        assert done.exit_code == 130
        assert json.loads(done.stdout)["interrupted"]

    def test_twice_aborts(self, csv, tmp_path, press):
        press(times=2)
        done = run("fit", csv, *COUNTS, "--quiet", "-o", tmp_path / "m.json")
        assert done.exit_code == 130
        assert "nothing was written" in done.stderr
        assert not (tmp_path / "m.json").exists()

    def test_in_the_reading_of_levels_nothing_is_written(self, csv, tmp_path, monkeypatch):
        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr("tangograd.glm.designs.design.survey", interrupt)
        done = run("fit", csv, *COUNTS, "--quiet", "-o", tmp_path / "m.json")
        assert done.exit_code == 130
        assert "nothing was written" in done.stderr
        assert not (tmp_path / "m.json").exists()

    def test_while_polishing_the_first_pass_is_kept(self, csv, tmp_path, stream, monkeypatch):
        monkeypatch.setattr("tangograd.glm.commands.command.open_table", _in_small_blocks)
        visits(4000).to_csv(csv, index=False)
        again, seen = learning.Learner._again, []

        def interrupted(self):
            for rows in again(self):
                if not seen:
                    signal.raise_signal(signal.SIGINT)
                seen.append(len(rows))
                yield rows

        monkeypatch.setattr(learning.Learner, "_again", interrupted)
        done = run("fit", csv, *COUNTS, "--quiet", "--polish", "-o", tmp_path / "m.json")
        assert done.exit_code == 130, done.output
        fitted = Model.load(tmp_path / "m.json").fitted
        assert 0 < sum(seen) < fitted.rows
        assert fitted.passes == 1
        assert any("(polishing)" in note for note in fitted.notes)

    def test_a_stream_that_waits(self, tmp_path):
        """A real process, a real signal, a pipe that stays open."""
        command = [sys.executable, "-c", "from tangograd.cli import main; main()"]
        process = subprocess.Popen(
            [*command, "fit", "-", "--target", "y", "-o", "m.json", "--no-report"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=os.environ | {"FORCE_COLOR": "1", "COLUMNS": "100"},
        )
        rng = np.random.default_rng(0)
        x = rng.normal(size=1_000_000).round(4)
        y = rng.random(len(x)) < 1 / (1 + np.exp(-x))
        frame = pd.DataFrame({"x": x, "y": y.astype(int)})
        process.stdin.write(frame.to_csv(index=False).encode())
        process.stdin.flush()
        said = b""
        while b"learning" not in said or b"rows" not in said:
            said += os.read(process.stderr.fileno(), 10_000)
        process.send_signal(signal.SIGINT)
        output, said = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert b"kept in m.json" in said
        assert b"Traceback" not in said
        assert b"Interrupted: learned from" in output
        fitted = Model.load(tmp_path / "m.json").fitted
        assert fitted.rows > 1000
        assert fitted.estimates[1] == pytest.approx(1, abs=0.2)

    def test_a_stream_whose_types_are_not_known_yet(self, tmp_path, monkeypatch):
        """Ctrl-C before the sample is full: the whole rows that came by then are the data."""

        class Pipe(io.BytesIO):
            def read1(self, size=-1):
                return super().read1(min(size, 1000)) or signal.raise_signal(signal.SIGINT)

        text = visits()[["x", "age", "visits"]].to_csv(index=False).encode()[:-7]
        monkeypatch.setattr(
            command, "open_table", lambda _, types: open_table(Pipe(text), types=types)
        )
        done = run("fit", "-", "--target", "visits", "-o", tmp_path / "m.json", "--no-report")
        assert done.exit_code == 130, done.output
        assert "interrupted after 1,999 rows; kept in" in done.stderr.replace("\n", " ")
        assert Model.load(tmp_path / "m.json").fitted.rows > 1700


def test_a_column_called_intercept_is_refused(tmp_path):
    frame = visits()[["x", "age", "visits"]].rename(columns={"x": "intercept"})
    frame.to_csv(tmp_path / "a.csv", index=False)
    arguments = ("fit", tmp_path / "a.csv", "--target", "visits", "-o", tmp_path / "m.json")
    for more in ((), ("--no-intercept",)):
        done = run(*arguments, *more)
        assert done.exit_code == 1
        assert "a column is called 'intercept'" in done.stderr
    assert run(*arguments, "--exclude", "intercept").exit_code == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_disk_behind_standard_output(csv):
    command = [sys.executable, "-c", "from tangograd.cli import main; main()"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*command, "fit", csv, "--target", "visits", "--quiet"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert "cannot write to standard output: No space left" in done.stderr
    assert "Traceback" not in done.stderr
