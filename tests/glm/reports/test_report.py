"""The page stands alone, is whole, says every number, and lets no name of the data act in it."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from tangograd.glm.fitted import Fitted
from tangograd.glm.reports.metrics import binary_metrics, multiclass_metrics, regression_metrics
from tangograd.glm.reports.pictures import pictures
from tangograd.glm.reports.report import HeldOut, render_report, write_report
from tangograd.glm.reports.summary import Summary

HOSTILE = (
    "</svg></style><script>alert(1)</script>",
    '" onload="alert(2)',
    "$\\frac{$",
    "a & b\x1b\n",
    "url(#x) id='y' 日本語",
    "<!-- --> ]]>",
)
SOURCE = {
    "data": "<img src=x> & co.csv",
    "target": "y<b>",
    "formula": "y ~ a < b",
    "command": "tangograd fit 'a b.csv' && rm",
    "version": "9.8.7",
    "date": "2031-02-03",
    "model": "my model.json",
}
TRACE = {
    "trace_rows": np.array([100, 1000, 10_000]),
    "trace_loss": np.array([1.5, 1.2, 1.1]),
}
VOID = {"meta", "link", "br", "img"}


def fitted(names=("intercept", "x", "z"), outcomes=1, **changes) -> Fitted:
    rng = np.random.default_rng(5)
    count = len(names) * outcomes
    known = {
        "rows": 12_345,
        "weight": 12_345.0,
        "dispersion": 1.0,
        "log_likelihood": -700.25,
        "deviance": 900.5,
        "null_deviance": 1200.75,
        "progressive": True,
        "standard_errors": np.abs(rng.normal(size=count)) * 0.1 + 0.01,
        "covariance_kind": "full",
        "excess": 1.1,
    }
    estimates = rng.normal(size=count) * 10.0 ** rng.integers(-3, 3, count)
    family = changes.pop("family", "poisson")
    return Fitted(family, "log", tuple(names), estimates, **(known | changes))


def count_rows(n=300) -> HeldOut:
    rng = np.random.default_rng(1)
    eta = rng.normal(size=n)
    mean = np.exp(eta)
    y = rng.poisson(mean).astype(float)
    return HeldOut(y, mean, eta, None, (y - mean) / np.sqrt(mean))


def class_rows(classes: int, n=300, **changes) -> HeldOut:
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(classes), n)
    y = np.array([rng.choice(classes, p=row) for row in p], float)
    return replace(HeldOut(y, p), **changes)


def binary_rows() -> HeldOut:
    both = class_rows(2)
    return HeldOut(both.y, both.mean[:, 1], np.log(both.mean[:, 1] / both.mean[:, 0]))


def classifier(classes, **changes) -> Fitted:
    family = "binomial" if len(classes) == 2 else "multinomial"
    return fitted(outcomes=len(classes) - 1, family=family, classes=tuple(classes), **changes)


class Page(HTMLParser):
    """The page's elements; tags that do not match fail."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        assert len(attrs) == len(dict(attrs)), f"an attribute of {tag} comes twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


CASES = {
    "regression": (fitted(**TRACE), count_rows()),
    "nothing held out": (fitted(**TRACE), None),
    "one row held out": (fitted(), count_rows(1)),
    "without residuals": (fitted(), replace(count_rows(), pearson=None, eta=None)),
    "without errors": (
        fitted(
            standard_errors=None,
            covariance_kind="none",
            trace_rows=np.array([9]),
            trace_loss=np.array([2.0]),
        ),
        HeldOut(np.empty(0), np.empty(0)),
    ),
    "unknown errors and a start far off": (
        fitted(
            standard_errors=np.array([0.0, np.nan, np.inf]),
            trace_rows=np.arange(1, 30),
            trace_loss=np.r_[1e5, np.linspace(2, 1, 28)],
        ),
        None,
    ),
    "intercept alone": (fitted(("intercept",)), None),
    "no coefficients": (fitted(()), None),
    "many coefficients": (fitted([f"x{k}" for k in range(300)]), None),
    "hostile names": (fitted(HOSTILE, notes=HOSTILE), None),
    "binary": (classifier(["no", "yes"]), binary_rows()),
    "three classes": (classifier(["a", "b", "c"]), class_rows(3)),
    "hostile classes": (classifier(HOSTILE), class_rows(6)),
    "twelve classes": (classifier(range(12)), class_rows(12, weights=np.arange(300) % 3.0)),
    "predictions beyond numbers": (
        fitted(),
        HeldOut(np.ones(3), np.array([1.0, np.inf, 1e200]), None, None, np.zeros(3)),
    ),
    "constant predictions": (
        fitted(),
        HeldOut(np.ones(50), np.ones(50), np.zeros(50), None, np.zeros(50)),
    ),
    "nothing that can be drawn": (
        fitted(),
        HeldOut(np.ones(2), np.full(2, np.inf), None, None, np.zeros(2)),
    ),
}


@cache
def rendered(case: str) -> str:
    model, rows = CASES[case]
    return render_report(model, title="A & <i>title</i>", held_out=rows, source=SOURCE)


@pytest.mark.parametrize("case", CASES)
def test_page_is_whole_and_stands_alone(case):
    text = rendered(case)
    page = Page(text)
    assert text.startswith("<!doctype html>")
    for _, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in {"src", "href", "xlink:href", "data", "action"}:
                assert value.startswith(("data:", "#"))
            for target in re.findall(r"url\(([^)]*)\)", value or ""):
                if name != "aria-label":
                    assert target.startswith("#")
    assert "@import" not in text
    assert {tag for tag, _ in page.elements} & {"script", "iframe", "object", "i", "b"} == set()


@pytest.mark.parametrize("case", CASES)
def test_ids_are_different_and_references_arrive(case):
    page = Page(rendered(case))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        target = attributes.get("xlink:href") or ""
        if target.startswith("#"):
            assert target[1:] in ids
        for name in re.findall(r"url\(#([^)]*)\)", attributes.get("clip-path") or ""):
            assert name in ids


@pytest.mark.parametrize("case", CASES)
def test_every_picture_has_words_for_those_who_do_not_see_it(case):
    page = Page(rendered(case))
    described = [picture for picture in page.all("svg") if picture.get("role") == "img"]
    assert len(described) == len(page.all("svg")) == len(page.all("figure")) > 0
    for picture in described:
        assert len(picture["aria-label"]) > 20
    assert len(page.all("figcaption")) == len(described)


@pytest.mark.parametrize("case", CASES)
def test_all_numbers_of_the_table_are_there(case):
    page = Page(rendered(case))
    summary = Summary(CASES[case][0])
    words = {word.strip() for word in page.words}
    for line in summary.coefficients():
        assert set(line.cells[: len(summary.columns)]) <= words
    assert {value for _, value in summary.header()} <= words
    for note in summary.notes():
        assert "".join(c for c in note if c.isprintable())[:10] in page.text


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("regression", ["coefficients", "calibration", "residuals", "loss"]),
        ("nothing held out", ["coefficients", "loss"]),
        ("nothing that can be drawn", ["coefficients"]),
        ("without residuals", ["coefficients", "calibration"]),
        ("without errors", ["coefficients", "loss"]),
        ("unknown errors and a start far off", ["coefficients", "loss"]),
        ("binary", ["coefficients", "calibration", "residuals"]),
        ("twelve classes", ["coefficients", "calibration", "residuals"]),
    ],
)
def test_pictures_are_those_that_can_be_drawn(case, expected):
    assert [figure["id"] for figure in Page(rendered(case)).all("figure")] == expected


@pytest.mark.parametrize(
    ("learned", "words"),
    [
        ({"converged": True}, "rows to convergence."),
        ({"passes": 3}, "rows in 3 passes."),
        ({"passes": 3, "converged": True}, "rows to convergence."),
    ],
)
def test_page_says_how_the_rows_were_learned_from(learned, words):
    text = Page(render_report(fitted(**learned), source={})).text
    assert f"learned from 12,345 {words}" in text


def test_hostile_names_are_text():
    page = Page(rendered("hostile names"))
    assert "</svg></style><script>alert(1)</script>" in page.words
    assert '" onload="alert(2)' in page.words
    assert r"a & b\x1b\n" in page.words
    assert page.text.count(HOSTILE[2]) >= 2  # in the table, and in the picture not as a formula
    assert "\x1b" not in rendered("hostile names")


def test_page_says_what_it_was_made_from():
    page = Page(rendered("regression"))
    for key, value in SOURCE.items():
        assert value in page.text or key == "model"
    assert page.words[page.words.index("A & <i>title</i>")] == "A & <i>title</i>"
    assert (
        "A Poisson regression of y<b> on 2 columns, learned from 12,345 rows of <img src=x> & "
        "co.csv in one pass. It explains 25.0% of the deviance of these rows, each row before it "
        "was learned from." in page.text
    )
    assert "tangograd predict 'my model.json' DATA" in page.text
    assert "TangoRegressor.load('my model.json')" in page.text
    assert "TangoClassifier.load('my model.json')" in Page(rendered("binary")).text


def test_how_to_use_it_in_python_may_be_given():
    page = render_report(fitted(), source={"python": "use(this)\nso"})
    assert "<pre>use(this)\nso</pre>" in page


@pytest.mark.parametrize(
    ("model", "rows", "metrics", "sentence", "shown"),
    [
        (
            fitted(),
            count_rows(),
            lambda rows: regression_metrics(
                rows.y, rows.mean, lambda y, mean: (y - mean) ** 2, rows.y.mean()
            ),
            r"On 300 rows held out it explains \d\d\.\d% of the deviance\.",
            ("root mean squared error", "mean absolute error", "mean observed"),
        ),
        (
            classifier(["no", "yes"]),
            binary_rows(),
            lambda rows: binary_metrics(rows.y, rows.mean),
            r"of y<b> \(yes against no\) .* it explains \d\d\.\d% of the deviance\.",
            ("AUC", "Brier score", "accuracy", "observed share", "mean probability"),
        ),
        (
            classifier("abc"),
            class_rows(3),
            lambda rows: multiclass_metrics(rows.y, rows.mean),
            r"\(3 classes\) .* gets \d\d\.\d% right; guessing the largest class: \d\d\.\d%\.",
            ("log-loss", "accuracy", "share of the largest class"),
        ),
    ],
    ids=["regression", "binary", "three classes"],
)
def test_metrics_in_words_and_figures(model, rows, metrics, sentence, shown):
    found = metrics(rows) | {"auc": None, "own <metric>": 0.123456}
    page = Page(render_report(model, source=SOURCE, metrics=found))
    assert re.search(sentence, page.text)
    for label in (*shown, "own <metric>", "0.1235", "–", "300"):
        assert label in page.text
    for name in ("rmse", "brier", "log_loss"):
        if name in found:
            assert f"{found[name]:#.4g}" in page.words


def test_a_model_that_explains_nothing_says_so():
    assert "On 1 row held out it explains none" in render_report(
        fitted(), metrics={"n": 1, "d2": -0.4}
    )


def test_only_the_largest_coefficients_are_drawn_and_that_is_said():
    page = Page(rendered("many coefficients"))
    assert "Only the 30 with the largest |z| of 300 are drawn." in page.text
    drawn = {picture.name: picture for picture in pictures(*CASES["many coefficients"])}
    lines = sorted(
        Summary(CASES["many coefficients"][0]).coefficients(), key=lambda line: -abs(line.z)
    )
    for line in lines[:30]:
        assert f">{line.name}<" in drawn["coefficients"].svg
        assert f">{line.cells[0]}<" in drawn["coefficients"].svg
    assert not any(f">{line.name}<" in drawn["coefficients"].svg for line in lines[30:])


def test_classes_are_named_in_the_pictures():
    drawn = {picture.name: picture.svg for picture in pictures(*CASES["three classes"])}
    for label in "bc":
        assert f">{label}</text>" in drawn["coefficients"]
    for label in "abc":
        assert f">{label}</text>" in drawn["calibration"]
        assert f">{label}</text>" in drawn["residuals"]
    assert "Against class a." in Page(rendered("three classes")).text


def test_pictures_take_the_colours_of_the_page():
    page = rendered("regression")
    assert "var(--ink, #1b1b1b)" in page
    assert "var(--series-0, #0069a6)" in page
    assert "prefers-color-scheme: dark" in page
    for variable in set(re.findall(r"var\((--[\w-]+)", page)):
        assert page.count(f"{variable}: #") == 2  # light and dark


def test_file_is_written_whole_and_the_same_each_time(tmp_path):
    path = tmp_path / "report.html"
    model, rows = CASES["regression"]
    write_report(path, model, title="A & <i>title</i>", held_out=rows, source=SOURCE)
    assert path.read_text(encoding="utf-8") == rendered("regression")
    assert list(tmp_path.iterdir()) == [path]


def test_both_columns_of_two_classes_are_the_second():
    rows = class_rows(2)
    model = classifier(["no", "yes"])
    both, one = (pictures(model, held) for held in (rows, HeldOut(rows.y, rows.mean[:, 1])))
    assert both == one


@pytest.mark.parametrize("moment", ["pictures", "writing"])
def test_an_error_keeps_the_old_file(tmp_path, monkeypatch, moment):
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    if moment == "pictures":
        monkeypatch.setattr("tangograd.glm.reports.report.pictures", full)
    else:
        monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(path, fitted())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_without_matplotlib_the_way_out_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'tangograd\[plot\]'"):
        render_report(fitted())


def test_matplotlib_is_imported_only_for_drawing_and_without_its_state():
    code = (
        "import sys, tangograd.glm.reports.report;"
        "assert not {'matplotlib', 'torch'} & set(sys.modules);"
        "import numpy as np; from tangograd.glm.fitted import Fitted;"
        "fitted = Fitted('poisson', 'log', ('a',), np.ones(1), 9, 9.0, 1.0, 0.0, 0.0, 0.0, False);"
        "tangograd.glm.reports.report.render_report(fitted);"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_settings_of_matplotlib_are_left_as_they_were():
    import matplotlib

    before = {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != "backend"}
    render_report(fitted())
    assert {key: matplotlib.rcParams[key] for key in before} == before
