"""The table says what statsmodels' says, and what it cannot know is left out and said."""

from __future__ import annotations

import builtins
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import statsmodels.api as sm
from rich.cells import cell_len

from tangograd.glm.fitted import Fitted
from tangograd.glm.reports.summary import PROGRESSIVE, Summary

FAMILIES = {
    "gaussian": (sm.families.Gaussian(), "identity"),
    "poisson": (sm.families.Poisson(), "log"),
    "binomial": (sm.families.Binomial(), "logit"),
    "gamma": (sm.families.Gamma(sm.families.links.Log()), "log"),
}
NAMES = ("intercept", "age", "income", "thickness")
HOSTILE = '<script>alert("x")</script>&amp;\x1b[31m\n'


def statsmodels_fit(family: str):
    rng = np.random.default_rng(7)
    x = np.column_stack([np.ones(80), rng.normal(size=(80, 3)) * [1.0, 1e4, 1e-4]])
    eta = x @ [0.4, 0.6, 2e-5, -1e3]
    y = {
        "gaussian": eta + rng.normal(size=80),
        "poisson": rng.poisson(np.exp(eta)),
        "binomial": (rng.random(80) < 1 / (1 + np.exp(-eta))).astype(float),
        "gamma": rng.gamma(2.0, np.exp(eta) / 2),
    }[family]
    estimated = family in {"gaussian", "gamma"}
    return sm.GLM(y, x, family=FAMILIES[family][0]).fit(tol=1e-12, use_t=estimated)


def from_statsmodels(family: str, **changes) -> Fitted:
    result = statsmodels_fit(family)
    known = {
        "rows": 80,
        "weight": 80.0,
        "dispersion": result.scale,
        "log_likelihood": result.llf,
        "deviance": result.deviance,
        "null_deviance": result.null_deviance,
        "progressive": False,
        "standard_errors": result.bse,
        "covariance_kind": "full",
        "converged": True,
    }
    return Fitted(family, FAMILIES[family][1], NAMES, result.params, **(known | changes))


def three_classes(**changes) -> Fitted:
    known = {
        "rows": 500,
        "weight": 500.0,
        "dispersion": 1.0,
        "log_likelihood": -400.0,
        "deviance": 800.0,
        "null_deviance": 1000.0,
        "progressive": True,
        "classes": ("a", "b", "c"),
        "standard_errors": np.array([0.1, 0.2, 0.3, 0.4]),
        "covariance_kind": "full",
        "excess": 1.12,
    }
    estimates = np.array([1.0, -2.0, 3.0, 0.04])
    return Fitted("multinomial", "logit", ("intercept", "x"), estimates, **(known | changes))


def many(count: int) -> Fitted:
    names = tuple(f"x{k}" for k in range(count))
    values = np.arange(1.0, count + 1)
    fitted = from_statsmodels("poisson")
    return replace(fitted, names=names, estimates=values, standard_errors=values / 2)


def slack(text: str) -> float:
    """Half a unit in the last place that is shown."""
    mantissa, _, power = text.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (int(power or 0) - decimals)


def coefficient_rows(text: str) -> dict[str, list[str]]:
    lines = text.splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("---"))
    end = next(k for k, line in enumerate(lines) if k > start and line.startswith("==="))
    return {line.split()[0]: line.split()[1:] for line in lines[start + 1 : end]}


def fact(summary: Summary, label: str) -> str:
    return dict(summary.header())[label]


@pytest.mark.parametrize("family", FAMILIES)
def test_shown_numbers_are_those_of_statsmodels_table(family):
    theirs = [row[1:] for row in statsmodels_fit(family).summary().tables[1].data[1:]]
    ours = coefficient_rows(str(Summary(from_statsmodels(family))))
    assert list(ours) == list(NAMES)
    for cells, expected in zip(ours.values(), theirs, strict=True):
        assert len(cells) == 6
        for cell, other in zip(cells, map(str.strip, expected), strict=True):
            if cell == "<0.001":
                assert other in {"0.000", "0.001"}
                continue
            assert abs(float(cell) - float(other)) <= 1.0001 * (slack(cell) + slack(other))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("level", [0.95, 0.9, 0.999])
def test_numbers_are_statsmodels(family, level):
    result = statsmodels_fit(family)
    frame = Summary(from_statsmodels(family), level=level).to_frame()
    expected = np.column_stack(
        [
            result.params,
            result.bse,
            result.tvalues,
            result.pvalues,
            result.conf_int(alpha=1 - level),
        ]
    )
    np.testing.assert_allclose(frame.to_numpy(), expected, rtol=1e-10)
    assert list(frame.columns) == ["estimate", "standard_error", "z", "p", "low", "high"]
    assert list(frame.index) == list(NAMES)


@pytest.mark.parametrize("family", FAMILIES)
def test_header_is_statsmodels(family):
    result = statsmodels_fit(family)
    summary = Summary(from_statsmodels(family))
    dispersion_counts = 0 if family in {"poisson", "binomial"} else 2
    for label, value in {
        "Rows": result.nobs,
        "Df residuals": result.df_resid,
        "Dispersion": result.scale,
        "Log-likelihood": result.llf,
        "Deviance": result.deviance,
        "Null deviance": result.null_deviance,
        "AIC": result.aic + dispersion_counts,
        "D²": 1 - result.deviance / result.null_deviance,
    }.items():
        shown = fact(summary, label)
        assert abs(float(shown) - value) <= 1.0001 * slack(shown), label
    assert fact(summary, "Family") == family
    assert fact(summary, "Converged") == "yes"


def test_robust_errors_are_statsmodels_sandwich():
    result = statsmodels_fit("poisson")
    x, y = result.model.exog, result.model.endog
    robust = sm.GLM(y, x, family=sm.families.Poisson()).fit(tol=1e-12, cov_type="HC0")
    summary = Summary(from_statsmodels("poisson", robust_errors=robust.bse), robust=True)
    np.testing.assert_allclose(summary.to_frame()["p"], robust.pvalues, rtol=1e-9)
    assert fact(summary, "Covariance") == "full, robust"
    assert any("sandwich" in note for note in summary.notes())


def test_robust_errors_that_are_not_there():
    with pytest.raises(ValueError, match=r"no robust standard errors.*covariance='auto'"):
        Summary(from_statsmodels("poisson"), robust=True)


@pytest.mark.parametrize("level", [0.0, 1.0, 95, math.nan])
def test_level_out_of_range(level):
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        Summary(from_statsmodels("poisson"), level=level)


@pytest.mark.parametrize(
    ("level", "columns"), [(0.95, ("[0.025", "0.975]")), (0.9, ("[0.05", "0.95]"))]
)
def test_columns_name_the_level(level, columns):
    assert Summary(from_statsmodels("poisson"), level=level).columns[-2:] == columns


def test_text_is_eighty_columns_wide():
    lines = str(Summary(three_classes(notes=("word " * 60,)))).splitlines()
    assert max(map(len, lines)) == 80


def test_classes_are_grouped():
    text = str(Summary(three_classes()))
    assert re.search(
        r"class b against a\nintercept +1\.000 .*\nx +-2\.000 .*\n"
        r"class c against a\nintercept +3\.000 .*\nx +0\.04000 ",
        text,
    )
    frame = Summary(three_classes()).to_frame()
    assert frame.loc[("c", "intercept"), "estimate"] == 3.0
    assert frame.index.names == ["class", "name"]


def test_progressive_figures_are_labelled_and_explained():
    summary = Summary(three_classes())
    labels = [label for label, _ in summary.header()]
    for name in ("log-likelihood", "deviance", "null deviance", "D²", "AIC"):
        assert f"Progressive {name}" in labels
    assert summary.notes()[0] == PROGRESSIVE
    assert "[1] Progressive: " in str(summary)
    assert "<li>Progressive: " in summary.to_html()
    final = Summary(three_classes(progressive=False))
    assert "rogressive" not in str(final)
    assert fact(final, "Log-likelihood") == "-400.000"


def test_without_standard_errors_the_columns_are_left_out_and_that_is_said():
    summary = Summary(three_classes(standard_errors=None, covariance_kind="none"))
    assert summary.columns == ("coef",)
    assert coefficient_rows(str(summary))["x"] == ["0.04000"]
    assert "No standard errors" in str(summary)
    assert "P&gt;|z|" not in summary.to_html()
    assert list(summary.to_frame().columns) == ["estimate"]
    assert summary.to_dict()["coefficients"][0]["standard_error"] is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"covariance_kind": "diagonal"}, "correlations between coefficients are ignored"),
        ({"excess": 1.25}, "include the excess variance of one pass"),
        ({"alpha": 0.5}, "penalty alpha = 0.5"),
        ({"notes": ("Column 'k' is constant.",)}, "Column 'k' is constant."),
        (
            {"standard_errors": np.array([1, np.nan, 0, np.inf])},
            "3 coefficients without a standard error",
        ),
    ],
)
def test_what_the_reader_should_know_is_in_the_notes(changes, said):
    plain = Summary(three_classes(excess=1.0, progressive=False))
    assert plain.notes() == []
    summary = Summary(three_classes(**({"excess": 1.0, "progressive": False} | changes)))
    assert len(summary.notes()) == 1
    assert said in summary.notes()[0]
    assert said in " ".join(str(summary).split())


@pytest.mark.parametrize("family", ["gaussian", "gamma", "poisson"])
def test_no_tests_without_more_rows_than_coefficients(family):
    summary = Summary(from_statsmodels(family, rows=4, weight=4.0))
    assert all(cells[1:] == [*"–––––"] for cells in coefficient_rows(str(summary)).values())
    assert all(line.p is None and line.low is None for line in summary.coefficients())
    assert len(summary.notes()) == 1
    assert "no more rows than coefficients" in summary.notes()[0]


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("value", [-4716293.026, -4716293026.5, -4.7162930265e13, 123456.789])
def test_large_sums_are_shown_without_gaps(value, progressive):
    fitted = from_statsmodels(
        "poisson",
        log_likelihood=value,
        deviance=abs(value),
        null_deviance=2 * abs(value),
        progressive=progressive,
        rows=30_000_004,
        weight=30_000_004.0,
    )
    text = str(Summary(fitted)).partition("---")[0]
    assert "…" not in text
    assert re.search("Df residuals: +30,000,000 ", text)
    shown = float(re.search(r"og-likelihood: +(\S+)", text)[1])
    assert shown == pytest.approx(value, rel=1e-3 if progressive else 1e-5)


def test_unknown_errors_are_dashes_in_text_and_null_in_json():
    summary = Summary(three_classes(standard_errors=np.array([0.1, np.nan, 0.0, np.inf])))
    lines = str(summary).splitlines()
    assert next(line for line in lines if line.startswith("x ")).split()[1:] == ["-2.000", *"–––––"]
    rows = json.loads(json.dumps(summary.to_dict(), allow_nan=False))["coefficients"]
    assert [row["standard_error"] for row in rows] == [0.1, None, None, None]
    assert [row["z"] is None for row in rows] == [False, True, True, True]


def test_dict_is_json_with_finite_numbers():
    fitted = three_classes(
        log_likelihood=math.inf,
        deviance=math.nan,
        classes=tuple(np.array([0, 1, 2])),
        parameters={"power": 1.5},
    )
    plain = json.loads(json.dumps(Summary(fitted).to_dict(), allow_nan=False))
    assert plain["log_likelihood"] is None
    assert plain["aic"] is None
    assert plain["classes"] == [0, 1, 2]
    assert plain["coefficients"][2]["class"] == 1 + 1
    assert plain["parameters"] == {"power": 1.5}
    assert plain["df_residuals"] == 496
    assert plain["progressive"] is True


@pytest.mark.parametrize(("count", "shown"), [(200, 200), (201, 100), (5000, 100)])
def test_many_coefficients_are_cut_and_the_way_to_all_is_told(count, shown):
    summary = Summary(many(count))
    for text in (str(summary), summary.to_html()):
        assert len(re.findall(r"\bx\d+\b", text)) == shown
        assert f"x{count - 1}" in text
        assert (f"to_frame() and to_dict() have all {count:,}" in text) == (shown < count)
    assert len(re.findall(r"\bx\d+\b", summary.to_text(limit=None))) == count
    assert len(re.findall(r"\bx\d+\b", summary.to_html(limit=None))) == count
    assert len(summary.to_dict()["coefficients"]) == count


def test_long_names_are_shortened_in_the_middle_but_told_apart():
    stem = "a_very_long_name_of_a_column"
    names = (
        f"{stem}_1_with_its_end",
        f"{stem}_2_with_its_end",
        "日本語のとても長い列の名前です",
        "x",
    )
    lines = str(Summary(replace(from_statsmodels("poisson"), names=names))).splitlines()
    first, second, third = (line for line in lines if "…" in line)
    assert first.startswith("a_very")
    assert "_end" in first
    assert first.split()[0] != second.split()[0]
    assert cell_len(first) == cell_len(third)


def test_control_characters_do_not_reach_the_terminal():
    fitted = replace(from_statsmodels("poisson"), names=(*NAMES[:3], HOSTILE), notes=(HOSTILE,))
    text = str(Summary(fitted, title=HOSTILE))
    assert "\x1b" not in text
    assert all(line.isprintable() for line in text.splitlines())
    assert r"\x1b[31m" in text


class Tags(HTMLParser):
    """Open and closing tags have to match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_html_is_escaped_and_whole():
    fitted = three_classes(classes=("<a>", '"b"', "&c"), notes=(HOSTILE,))
    fitted = replace(fitted, names=("intercept", HOSTILE))
    summary = Summary(fitted, title=HOSTILE)
    tags = Tags(summary._repr_html_())
    assert "script" not in tags.seen
    assert "".join(tags.text).count('<script>alert("x")</script>&amp;\\x1b[31m\\n') == 4
    assert 'class "b" against <a>' in tags.text


@pytest.mark.parametrize("robust", [False, True])
def test_html_has_the_numbers_of_the_text(robust):
    fitted = three_classes(robust_errors=np.array([0.5, 0.6, 0.7, 0.8]), weight=250.5)
    summary = Summary(fitted, robust=robust)
    shown = Tags(summary.to_html()).text
    for line in summary.coefficients():
        for cell in line.cells:
            assert cell in shown
            assert cell in str(summary)
    for label, value in summary.header():
        assert label in shown
        assert value in shown


def test_frame_without_pandas(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "pandas":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"needs pandas.*to_dict\(\)"):
        Summary(three_classes()).to_frame()


def test_no_coefficients_at_all():
    fitted = replace(
        from_statsmodels("poisson"), names=(), estimates=np.empty(0), standard_errors=np.empty(0)
    )
    assert "Poisson regression" in str(Summary(fitted))
    assert Summary(fitted).to_dict()["coefficients"] == []
