"""``tangograd predict``: what it writes for which rows, and where."""

import io
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from tangograd.glm import TangoClassifier, TangoRegressor
from tangograd.glm.commands.predicting import Model
from tests.glm.commands.runs import fit, run, visits

FORMULA = "{} ~ x + log(age) + C(region) + x:C(region)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, and a model of each kind."""
    path = tmp_path_factory.mktemp("predict")
    visits().to_csv(path / "data.csv", index=False)
    options = ("--no-report", "--holdout", 0)
    counts = FORMULA.format("visits")
    fit(
        path / "data.csv",
        "--formula",
        counts,
        "--exposure",
        "years",
        "-o",
        path / "counts",
        *options,
    )
    for target in ("happy", "kind"):
        fit(path / "data.csv", "--formula", FORMULA.format(target), "-o", path / target, *options)
    return path


def predict(*arguments, stdin=None):
    done = run("predict", *arguments, "--quiet", stdin=stdin)
    assert done.exit_code == 0, done.output
    return pd.read_csv(io.StringIO(done.stdout))


def test_means_are_those_of_the_model(folder):
    data = pd.read_csv(folder / "data.csv")
    fitted = Model.load(folder / "counts").fitted
    value = dict(zip(fitted.names, fitted.estimates, strict=True))
    eta = value["intercept"] + value["x"] * data["x"] + value["log(age)"] * np.log(data["age"])
    for level in ("north", "south"):
        here = (data["region"] == level).astype(float)
        eta += here * (value[f"region[{level}]"] + value[f"x:region[{level}]"] * data["x"])
    found = predict(folder / "counts", folder / "data.csv")
    assert list(found) == ["prediction"]
    np.testing.assert_allclose(found["prediction"], data["years"] * np.exp(eta), rtol=1e-9)


@pytest.mark.parametrize(
    ("model", "classes"), [("happy", ["no", "yes"]), ("kind", ["a", "b", "c"])]
)
def test_classes(folder, model, classes):
    found = predict(folder / model, folder / "data.csv", "--interval", 0.95)
    shares = found[[f"probability_{label}" for label in classes]].to_numpy()
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert (found["prediction"] == np.array(classes)[shares.argmax(axis=1)]).all()
    for label in classes:
        low, p, high = (found[f"{part}_{label}"] for part in ("low", "probability", "high"))
        assert ((low > 0) & (low < p) & (p < high) & (high < 1)).all()


def test_intervals_are_wider_at_higher_levels(folder):
    narrow, wide = (
        predict(folder / "counts", folder / "data.csv", "--interval", level)
        for level in (0.5, 0.99)
    )
    assert (narrow["prediction"] == wide["prediction"]).all()
    assert ((wide["low"] < narrow["low"]) & (narrow["low"] < narrow["prediction"])).all()
    assert ((wide["high"] > narrow["high"]) & (narrow["high"] > narrow["prediction"])).all()


def test_all_sources_and_kept_columns(folder, tmp_path):
    data = pd.read_csv(folder / "data.csv")
    data["id"] = [f"{2**60 + i}" for i in range(len(data))]  # more digits than a float has
    data.loc[0, "kind"] = 'a "b", c'
    data.to_csv(tmp_path / "a.csv", index=False)
    data.to_csv(tmp_path / "a.csv.gz", index=False)
    data.assign(id=data["id"].astype(np.int64)).to_parquet(tmp_path / "a.parquet", index=False)
    keep = ("--keep", "id", "--keep", "kind", "--keep", "x")
    first = run("predict", folder / "counts", tmp_path / "a.csv", *keep, "--quiet").stdout
    assert first.startswith("id,kind,x,prediction\n")
    table = pd.read_csv(io.StringIO(first), dtype={"id": str})
    assert (table["id"] == data["id"]).all()
    assert (table["kind"] == data["kind"]).all()
    assert (table["x"] == data["x"]).all()
    for name in ("a.csv.gz", "a.parquet"):
        assert run("predict", folder / "counts", tmp_path / name, *keep, "--quiet").stdout == first
    text = (tmp_path / "a.csv").read_bytes()
    assert run("predict", folder / "counts", "-", *keep, "--quiet", stdin=text).stdout == first
    whole = predict(folder / "counts", tmp_path / "a.csv", "--keep-all")
    assert list(whole) == [*data, "prediction"]
    assert (whole["prediction"] == table["prediction"]).all()


def test_rows_that_cannot_be_predicted_are_empty_and_counted(folder, tmp_path):
    data = pd.read_csv(folder / "data.csv")[:10]
    data.loc[2, "x"] = np.nan
    data.loc[[4, 7], "region"] = "moon"
    data.to_csv(tmp_path / "a.csv", index=False)
    done = run("predict", folder / "counts", tmp_path / "a.csv", "-o", tmp_path / "p.csv")
    assert done.stdout == ""
    found = pd.read_csv(tmp_path / "p.csv")
    assert len(found) == 10
    assert found.index[found["prediction"].isna()].tolist() == [2, 4, 7]
    said = done.stderr
    for part in (
        "7 rows predicted",
        "3 rows without a prediction, left empty:",
        "column 'x' is missing in 1",
        "column 'region' has a level that was not learned from in 2: 'moon'",
    ):
        assert part in said


def test_rows_are_predicted_the_same_in_batches_of_any_size(folder, monkeypatch):
    whole = run("predict", folder / "kind", folder / "data.csv", "--quiet").stdout
    monkeypatch.setattr("tangograd.glm.commands.predictions.PIECE_ROWS", 7)
    assert run("predict", folder / "kind", folder / "data.csv", "--quiet").stdout == whole


def test_models_of_estimators_match_columns_by_name(folder, tmp_path):
    data = pd.read_csv(folder / "data.csv")
    regressor = TangoRegressor("poisson").fit(data[["age", "x"]], data["visits"])
    regressor.save(tmp_path / "r.json")
    found = predict(tmp_path / "r.json", folder / "data.csv", "--interval", 0.9)
    mean, low, high = regressor.predict(data[["age", "x"]], interval=0.9)
    np.testing.assert_allclose(found.to_numpy(), np.c_[mean, low, high], rtol=1e-9)
    classifier = TangoClassifier().fit(data[["age", "x"]], data["kind"])
    classifier.save(tmp_path / "c.json")
    found = predict(tmp_path / "c.json", folder / "data.csv")
    assert (found["prediction"] == classifier.predict(data[["age", "x"]])).all()
    np.testing.assert_allclose(found.iloc[:, 1:], classifier.predict_proba(data[["age", "x"]]))
    done = run("predict", tmp_path / "r.json", tmp_path / "r.json", "--quiet")
    assert done.exit_code == 1


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("nothing", "data.csv"), 1, "there is no model file 'nothing'"),
        (("data.csv", "data.csv"), 1, "data.csv is damaged, cut off or not a model"),
        (("counts", "nothing.csv"), 1, "there is no file or folder 'nothing.csv'"),
        (("counts", "few.csv"), 1, "column 'age' is not in the data; its columns are: x"),
        (("counts", "infinite.csv"), 1, "infinite.csv, line 3: column 'x' is infinite"),
        (("counts", "data.csv", "--interval", 95), 2, "--interval is between 0 and 1"),
        (("counts", "data.csv", "-o", "data.csv"), 2, "is what is read, and would be lost"),
        (("counts", "data.csv", "-o", "counts"), 2, "is what is read, and would be lost"),
        (("counts", "data.csv", "--keep", "agee"), 1, "Did you mean 'age'?"),
        (("counts", "twice.csv", "--keep-all"), 1, "column 'prediction' would be there twice"),
    ],
)
def test_what_is_refused(folder, monkeypatch, options, code, text):
    monkeypatch.chdir(folder)
    lines = (folder / "data.csv").read_text().splitlines()[:4]
    (folder / "few.csv").write_text("x\n1\n")
    broken = [*lines[:2], "inf" + lines[2][lines[2].index(",") :]]
    (folder / "infinite.csv").write_text("\n".join(broken) + "\n")
    twice = [f"{line},{cell}" for line, cell in zip(lines, ["prediction", 1, 2, 3], strict=True)]
    (folder / "twice.csv").write_text("\n".join(twice) + "\n")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    done = run("predict", *options, "--quiet")
    assert done.exit_code == code, done.output
    assert text in done.stderr
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_intervals_need_a_covariance(folder, tmp_path):
    data = pd.read_csv(folder / "data.csv")
    model = TangoRegressor("poisson", covariance=None).fit(data[["x"]], data["visits"])
    model.save(tmp_path / "m.json")
    done = run("predict", tmp_path / "m.json", folder / "data.csv", "--interval", 0.95, "--quiet")
    assert done.exit_code == 1
    assert "intervals need the covariance matrix of the coefficients" in done.stderr


def test_a_file_is_written_whole_or_not_at_all(folder, tmp_path, monkeypatch):
    output = tmp_path / "new" / "p.csv"
    assert run("predict", folder / "counts", folder / "data.csv", "-o", output).exit_code == 0
    old = output.read_bytes()

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tangograd.glm.commands.predictions.Model.predict", interrupt)
    done = run("predict", folder / "happy", folder / "data.csv", "-o", output, "--quiet")
    assert done.exit_code == 130
    assert "nothing was written" in done.stderr
    assert output.read_bytes() == old
    assert [file.name for file in output.parent.iterdir()] == ["p.csv"]


def test_a_reader_that_leaves(folder):
    """As of ``| head``: no traceback, and the process ends."""
    command = [sys.executable, "-c", "from tangograd.cli import main; main()"]
    process = subprocess.Popen(
        [*command, "predict", folder / "counts", "-", "--quiet"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    text = (folder / "data.csv").read_bytes()
    header, rows = text.split(b"\n", 1)
    process.stdout.close()
    _, said = process.communicate(header + b"\n" + 20 * rows, timeout=60)
    assert said == b""
    assert process.returncode in (0, -signal.SIGPIPE)
