"""What is written, when, and what the page says."""

import base64
import json

import pytest
from typer.testing import CliRunner

from tangograd import reproduction
from tangograd.cli import app
from tangograd.reproduction import claims, figures
from tangograd.reproduction.base import Claim, Result, Setting
from tangograd.reproduction.run import reproduce
from tangograd.reproduction.verdicts import exact, mean
from tests.reproduction.pages import Page


def fake(name, *, error=0.0, then=None):
    def measure(setting):
        if then:
            raise then
        setting.advance(1.0)
        x = setting.generators(1)[0].standard_normal(50)
        picture = figures.Picture([figures.panel(figures.curve(range(50), x, "black", "x"))])
        verdicts = [exact("a < b", error, 1.0), mean(x).near("c", 0)]
        return Result(verdicts, picture, {"x": x})

    return Claim(name, f"title of {name}", "Section 0", ("One & only.", "Two."), measure)


def run(*arguments):
    return CliRunner().invoke(app, ["reproduce", *(str(a) for a in arguments)])


@pytest.fixture
def two(monkeypatch):
    monkeypatch.setattr(reproduction, "claims", lambda: [fake("good"), fake("bad", error=2.0)])


def test_page_and_files(tmp_path):
    outcomes = list(reproduce([fake("good"), fake("bad", error=2.0)], tmp_path, seed=3))
    assert [result.holds for _, result in outcomes] == [True, False]
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        "bad.json", "bad.png", "good.json", "good.png", "index.html",
    ]  # fmt: skip
    page = Page((tmp_path / "index.html").read_text())
    assert list(page.sections) == ["good", "bad"]
    assert "1 of 2" in page.text
    assert "seed 3" in page.text
    assert "One & only." in page.sections["good"]["text"]
    assert "title of bad" in page.sections["bad"]["text"]
    assert [row[0] for row in page.rows["good"][1:]] == ["a < b", "c"]
    assert page.rows["good"][1][-1] == "holds"
    assert page.rows["bad"][1][-1] == "fails"
    (image,) = page.sections["good"]["images"]
    assert image["alt"] == "title of good"
    picture = base64.b64decode(image["src"].removeprefix("data:image/png;base64,"))
    assert picture == (tmp_path / "good.png").read_bytes()
    assert all(address.startswith(("#", "data:")) for address in page.addresses)  # no network


def test_raw_results_are_enough_to_draw_again(tmp_path):
    from matplotlib.figure import Figure

    ((_, result),) = reproduce([fake("good")], tmp_path, seed=5, quick=True)
    kept = json.loads((tmp_path / "good.json").read_text())
    assert kept["samples"]["x"] == result.samples["x"].tolist()
    assert (kept["seed"], kept["quick"], kept["holds"]) == (5, True, True)
    assert kept["verdicts"][0]["what"] == "a < b"
    figure = Figure()
    (panel,) = kept["picture"].pop("panels")
    panel["marks"] = [figures.Mark(**mark) for mark in panel["marks"]]
    figures.draw(figures.Picture([figures.Panel(**panel)], **kept["picture"]), figure)
    (line,) = figure.axes[0].lines
    assert line.get_ydata() == pytest.approx(kept["samples"]["x"])
    assert (line.get_label(), line.get_color()) == ("x", "black")


def test_what_is_not_finite_fails_and_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction, "claims", lambda: [fake("odd", error=float("nan"))])
    done = run("--output", tmp_path, "--quiet")
    assert done.exit_code == 1
    assert "not: odd" in done.stdout
    kept = json.loads((tmp_path / "odd.json").read_text())
    assert kept["verdicts"][0]["measured"] is None
    rows = json.loads(run("--json", "--quiet", "--output", tmp_path).stdout)
    assert rows[0]["measured"] is None


def test_a_later_run_of_one_claim_keeps_the_others_on_the_page(two, tmp_path):
    run("--output", tmp_path, "--quiet")
    run("good", "--output", tmp_path, "--quiet")
    page = Page((tmp_path / "index.html").read_text())
    assert list(page.sections) == ["good", "bad"]
    assert page.rows["bad"][1][-1] == "fails"
    run("good", "--output", tmp_path, "--quiet", "--seed", 1)  # the rest is of another seed
    page = Page((tmp_path / "index.html").read_text())
    assert list(page.sections) == ["good"]
    assert "Not measured (yet): title of bad" in page.text


def test_random_numbers_depend_on_seed_claim_and_purpose_alone():
    def first(*arguments, what=""):
        return Setting(*arguments).generators(2, what)[0].random()

    assert first("a", 1) == first("a", 1)
    assert len({first("a", 1), first("a", 2), first("b", 1), first("a", 1, what="c")}) == 4


def test_exit_codes_and_table(two, tmp_path):
    done = run("--output", tmp_path, "--quiet")
    assert done.exit_code == 1
    assert "1 of 2 claims hold; not: bad" in done.stdout
    assert "index.html" in done.stdout
    assert run("good", "--output", tmp_path, "--quiet").exit_code == 0


def test_json_and_list(two, tmp_path):
    rows = json.loads(run("--json", "--quiet", "--output", tmp_path).stdout)
    assert [(row["claim"], row["what"], row["holds"]) for row in rows] == [
        ("good", "a < b", True), ("good", "c", True), ("bad", "a < b", False), ("bad", "c", True),
    ]  # fmt: skip
    listed = run("--list").stdout
    assert "title of good (Section 0)" in listed
    assert "title of bad" in listed


@pytest.mark.parametrize("name", ["[/a]", "[bold]x"])
def test_names_are_not_markup(two, name):
    done = run(name)
    assert done.exit_code == 2
    assert repr(name) in done.stderr


def test_listing_into_a_closed_pipe(two):
    import subprocess
    import sys

    command = f"{sys.executable} -m tangograd.cli reproduce --list | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("figure-1")
    assert "cannot write" not in done.stderr


def test_an_unknown_name_lists_the_known_ones(two, tmp_path):
    done = run("goood", "--output", tmp_path / "new")
    assert done.exit_code == 2
    assert "'goood'" in done.stderr
    assert "bad, good" in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_written_is_said_before_any_work(two, tmp_path, monkeypatch):
    work = []
    monkeypatch.setattr(
        reproduction,
        "claims",
        lambda: [Claim("good", "t", "w", ("s",), lambda s: work.append(s))],
    )
    (tmp_path / "file").write_text("not a folder")
    done = run("--output", tmp_path / "file" / "sub")
    assert done.exit_code == 1
    assert "cannot write to" in done.stderr.replace("\n", " ")
    assert not work


def test_interrupted_runs_keep_what_is_finished(tmp_path, monkeypatch):
    stopping = fake("stopping", then=KeyboardInterrupt())
    monkeypatch.setattr(reproduction, "claims", lambda: [fake("good"), stopping, fake("later")])
    done = run("--output", tmp_path, "--quiet")
    assert done.exit_code == 130
    assert "finished and kept: good" in done.stderr
    assert sorted(f.name for f in tmp_path.iterdir()) == ["good.json", "good.png", "index.html"]
    page = Page((tmp_path / "index.html").read_text())
    assert "title of stopping; title of later" in page.text


def test_a_full_disk_leaves_no_half_written_file(tmp_path, monkeypatch):
    from pathlib import Path

    def full(self, *arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reproduction, "claims", lambda: [fake("good")])
    monkeypatch.setattr(Path, "write_text", full)
    done = run("--output", tmp_path, "--quiet")
    assert done.exit_code == 1
    assert "No space left on device" in done.stderr
    assert [f.name for f in tmp_path.iterdir()] == ["good.png"]  # whole; nothing claims more


def test_the_whole_paper_quickly(tmp_path):
    """Every claim holds, and the page has all of them."""
    done = run("--quick", "--quiet", "--output", tmp_path, "--seed", 1)
    assert done.exit_code == 0, done.stdout
    known = claims()
    assert len(known) == 14
    assert "14 of 14 claims hold" in done.stdout
    page = Page((tmp_path / "index.html").read_text())
    assert list(page.sections) == [claim.name for claim in known]
    for claim in known:
        section = page.sections[claim.name]
        for text in (claim.title, claim.where, *claim.paragraphs):
            assert text in section["text"]
        assert len(section["images"]) == 1
        rows = page.rows[claim.name][1:]
        assert 2 <= len(rows) <= 8
        assert all(row[-1] == "holds" and all(row) for row in rows)
        kept = json.loads((tmp_path / f"{claim.name}.json").read_text())
        assert [v["what"] for v in kept["verdicts"]] == [row[0] for row in rows]
