"""The package as a stranger meets it: imports, README, examples, demo, command line."""

import json
import math
import re
import runpy
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import tangograd
from tangograd.cli import app
from tangograd.reproduction import claims

ROOT = Path(__file__).parent.parent


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )


def test_importing_needs_neither_torch_nor_matplotlib():
    done = python(
        "import sys, tangograd, tangograd.cli\n"
        "print([m for m in ('torch', 'matplotlib', 'sklearn') if m in sys.modules])\n"
        "import tangograd.optimizer, tangograd.reference\n"
        "print('matplotlib' in sys.modules)"
    )
    assert done.stdout.split("\n")[:2] == ["[]", "False"], done.stderr


def test_modules_are_there_after_a_plain_import():
    done = python(
        "import tangograd\nprint(tangograd.curvature.RULES, tangograd.reference.AveragedSGD)"
    )
    assert done.returncode == 0, done.stderr


def test_without_torch_the_error_says_what_to_install():
    done = python(
        "import sys; sys.modules['torch'] = None\nimport tangograd\n"
        "print(tangograd.__version__)\ntangograd.TANGO"
    )
    assert done.stdout.startswith(tangograd.__version__)
    assert "tangograd.TANGO needs PyTorch" in done.stderr
    assert "tangograd[torch]" in done.stderr


def test_public_names():
    assert all(getattr(tangograd, name) is not None for name in tangograd.__all__)
    assert set(tangograd.__all__) <= set(dir(tangograd))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tangograd.nothing


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
def test_code_on_the_pages_runs(page):
    torch.set_default_dtype(torch.float32)
    model = nn.Linear(3, 2)
    x, y = torch.randn(64, 3), torch.randint(2, (64,))
    names = {
        "model": model,
        "loader": [(x, y), (x, y)],
        "x": x,
        "y": y,
        "likelihood": tangograd.Categorical(),
        "optimizer": tangograd.TANGO(model.parameters(), gamma=0.1, preconditioner=None),
    }
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_links_on_the_pages_exist():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert link.startswith("http") or (page.parent / link).exists(), (page, link)


def test_the_costs_in_the_readme_are_the_measured_ones():
    rows = json.loads((ROOT / "benchmarks/results/step_cost.json").read_text())["rows"]
    text = " ".join((ROOT / "README.md").read_text().split())
    for model, words in [
        ("MLP 784-512-512-10, B=128", "on a 784-512-512-10 network (B=128)"),
        ("conv 16-32, B=64", "on a small convolutional one (B=64)"),
    ]:
        fixed, rule = (
            next(r["ratio"] for r in rows if r["model"] == model and r["gamma"] == gamma)
            for gamma in (0.01, "max")
        )
        assert f"{fixed:.2f} ({rule:.2f}) {words}" in text


def test_the_costs_of_engines_in_the_docs_are_the_measured_ones():
    lines = (ROOT / "docs/engines.md").read_text().splitlines()
    for row in json.loads((ROOT / "benchmarks/results/engines.json").read_text())["rows"]:
        head, line = (
            [cell.strip() for cell in line.split("|")]
            for line in lines
            if line.startswith(("| | auto | dual |", f"| {row['model']} |"))
        )
        shown = line[head.index(row["engine"])]
        if row["error"]:
            assert shown == "cannot"
        else:
            assert shown == f"{row['ratio']:.2f} / {row['memory_ratio']:.2f}"


def test_the_losses_in_the_readme_are_those_of_its_picture():
    figures = json.loads((ROOT / "docs/images/digits.json").read_text())
    loss = {run["optimizer"]: run["test_loss"][-1] for run in figures["runs"]}
    text = " ".join((ROOT / "README.md").read_text().split())
    assert (
        f"{loss['TANGO']:.3f}, against {loss['SGD']:.3f} for SGD and {loss['Adam']:.3f} for Adam"
        in text
    )
    assert loss["TANGO"] == min(loss.values())
    assert f"{figures['epochs']} epochs, seed {figures['seed']}" in text


def study(name):
    return json.loads((ROOT / f"benchmarks/results/tuning_free_{name}.json").read_text())


def final_losses(name):
    """Return the final losses of a robustness benchmark: ``{optimizer: {(task, seed): loss}}``."""
    path = ROOT / f"benchmarks/results/{name}.json"
    found = {}
    for row in json.loads(path.read_text())["rows"]:
        last = row["curve"][-3:]
        failed = row["error"] or len(row["curve"]) < 20 or None in last
        loss = math.inf if failed else statistics.fmean(last)
        found.setdefault(row["optimizer"], {})[row["task"], row["seed"]] = (loss, row["start"])
    return found


def test_the_robustness_in_readme_and_docs_is_the_measured_one():
    readme = " ".join((ROOT / "README.md").read_text().split())
    docs = " ".join((ROOT / "docs/robustness.md").read_text().split())
    losses = final_losses("robustness")
    ours = losses["tango"]
    failed = [key for key, (loss, start) in ours.items() if not loss <= 0.98 * start]
    behind = [
        key
        for key, (loss, _) in ours.items()
        if loss > min(losses["adam 1e-3"][key][0], losses["adam 1e-2"][key][0])
    ]
    share = f"{100 * len(behind) / len(ours):.0f}%"
    tasks = len({task for task, _ in ours})
    assert not failed
    assert f"Of {len(ours)} runs ({tasks} tasks, 3 seeds) none fails, and {share} end" in readme
    assert f"| {len(failed)} of {len(ours)} | {share} |" in docs
    raw = final_losses("robustness_raw")["tango"]
    assert all(loss <= 0.98 * start for loss, start in raw.values())
    assert f"0 of {len(raw)}" in docs


def test_the_table_of_schedules_is_the_measured_one():
    text = tangograd.schedules.__doc__
    for row in study("schedules")["summary"].values():
        assert re.search(rf"{row['test']:.3f} +{row['one_pass']:.0f}\n", text)


def test_the_unsupervised_example_finds_the_data(capsys):
    torch.set_default_dtype(torch.float32)
    main = runpy.run_path(str(ROOT / "examples/unsupervised.py"))["main"]
    mu, log_sigma = main()
    assert abs(mu - 10) < 0.3
    assert abs(log_sigma) < 0.3
    widths = [float(sd) for sd in re.findall(r"sd +([\d.]+)", capsys.readouterr().out)]
    assert max(widths) > 3  # it widens on the way, as the natural gradient does


def test_the_claims_in_the_docs_are_those_that_are_measured():
    text = (ROOT / "docs/reproduction.md").read_text()
    listed = re.findall(r"^\| `([\w-]+)` \| (.*) \| (.*) \|$", text, re.MULTILINE)
    assert listed == [(claim.name, claim.title, claim.where) for claim in claims()]


def test_figure_one_in_the_readme_is_drawn_by_the_command():
    kept = json.loads((ROOT / "docs/images/figure-1.json").read_text())
    assert kept["holds"]
    assert not kept["quick"]
    (peak,) = [v for v in kept["verdicts"] if v["what"] == "median peak σ² of TANGO, δt=1e-5"]
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"a median peak of {peak['measured']:.1f} (n = {peak['n']})" in text


class TestCommandLine:
    @pytest.fixture(autouse=True)
    def as_a_user(self):
        torch.set_default_dtype(torch.float32)

    def run(self, *arguments):
        return CliRunner().invoke(app, [str(a) for a in arguments])

    def test_version_and_help(self):
        assert self.run("--version").output.strip() == f"tangograd {tangograd.__version__}"
        assert "Train a classifier of handwritten digits" in self.run("demo", "--help").output

    def test_demo(self, tmp_path):
        done = self.run("demo", "--output", tmp_path / "new", "--epochs", 2, "--quiet")
        assert done.exit_code == 0, done.output
        assert "TANGO" in done.stdout
        assert str(tmp_path / "new" / "digits.png") in done.stdout.replace("\n", "")
        assert sorted(f.name for f in (tmp_path / "new").iterdir()) == ["digits.json", "digits.png"]
        assert (tmp_path / "new" / "digits.png").read_bytes()[:4] == b"\x89PNG"
        figures = json.loads((tmp_path / "new" / "digits.json").read_text())
        assert [run["optimizer"] for run in figures["runs"]] == ["SGD", "Adam", "TANGO"]
        assert all(run["train_loss"][1] < run["train_loss"][0] for run in figures["runs"])

    def test_json_and_progress_do_not_mix(self, tmp_path):
        done = self.run("demo", "--output", tmp_path, "--epochs", 1, "--json")
        assert json.loads(done.stdout)["epochs"] == 1

    def test_a_folder_that_cannot_be_written_is_said_before_any_work(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tangograd.demo.train_all", None)
        file = tmp_path / "file"
        file.write_text("")
        done = self.run("demo", "--output", file / "below")
        assert done.exit_code == 1
        assert "cannot write to" in done.stderr

    def test_interrupted(self, tmp_path, monkeypatch):
        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr("tangograd.demo.train_all", interrupt)
        done = self.run("demo", "--output", tmp_path, "--quiet")
        assert done.exit_code == 130
        assert list(tmp_path.iterdir()) == []

    def test_a_full_disk_leaves_the_old_picture(self, tmp_path, monkeypatch):
        (tmp_path / "digits.png").write_text("old")

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
        done = self.run("demo", "--output", tmp_path, "--epochs", 1, "--quiet")
        assert done.exit_code == 1
        assert "No space left on device" in done.stderr
        assert (tmp_path / "digits.png").read_text() == "old"
        assert [f.name for f in tmp_path.iterdir()] == ["digits.png"]

    def test_wrong_usage(self):
        assert self.run("demo", "--epochs", 0).exit_code == 2
        assert self.run("nothing").exit_code == 2


def glm_results(name):
    return json.loads((ROOT / f"benchmarks/results/glm_{name}.json").read_text())["rows"]


def test_the_accuracy_of_streams_in_the_readme_is_the_measured_one():
    text = " ".join((ROOT / "README.md").read_text().split())
    rows = json.loads((ROOT / "benchmarks/results/one_pass_streams.json").read_text())
    within = [1 / 1.5 <= (row["claim"]) / row["ratio"] <= 1.5 for row in rows]
    assert f"{len(rows)} fits" in text
    assert f"within a factor 1.5 of the true one in {100 * statistics.fmean(within):.1f}%" in text
    twice = statistics.fmean(row["readings"] > 1 for row in rows)
    assert f"which read {100 * twice:.1f}% of them twice" in text
    good = statistics.fmean(row["ratio_auto"] <= 1.02 for row in rows)
    assert f"at most 1.02 in {100 * good:.1f}%" in text


def test_the_speed_of_one_pass_in_the_readme_is_the_measured_one():
    text = " ".join((ROOT / "README.md").read_text().split())
    found = {
        (row["features"], row["method"]): row
        for row in glm_results("speed")
        if row["part"] == "rivals"
    }
    for method, label in (
        ("TANGO, covariance=None", "TANGO's path, coefficients alone"),
        ("glum", "glum"),
        ("statsmodels", "statsmodels GLM"),
    ):
        one, other = found["independent", method], found["scaled", method]
        assert (
            f"| {label} | {one['seconds']:.2f} | {one['ratio']:.2f} "
            f"| {other['seconds']:.2f} | {other['ratio']:.2f} |"
        ) in text
    product = found["independent", "TANGO, covariance=None"]["times_product"]
    assert f"a fit took {product:.1f} times as long as `X @ β`" in text
