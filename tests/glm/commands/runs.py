"""What the tests of the commands share: data, and a run of the command line."""

import json

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from tangograd.cli import app


def run(*arguments, stdin=None):
    return CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)


def fit(*arguments, stdin=None):
    """The JSON of a fit that must succeed."""
    done = run("fit", *arguments, "--json", "--quiet", stdin=stdin)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def estimates(result):
    """Of a fit's JSON, by name."""
    return {line["name"]: line["estimate"] for line in result["summary"]["coefficients"]}


def visits(rows=2000, seed=0):
    """Counts of visits with an exposure, a category, a class of two and one of three."""
    rng = np.random.default_rng(seed)
    x, age = rng.normal(size=rows).round(4), rng.integers(18, 80, rows)
    region = rng.choice(["east", "north", "south"], rows)
    years = rng.uniform(0.5, 2, rows).round(3)
    mean = years * np.exp(0.4 * x + 0.01 * age - 0.5 * (region == "south"))
    happy = np.where(rng.random(rows) < 1 / (1 + np.exp(-x)), "yes", "no")
    kind = rng.choice(["a", "b", "c"], rows)
    return pd.DataFrame(
        {
            "x": x,
            "age": age,
            "region": region,
            "years": years,
            "visits": rng.poisson(mean),
            "happy": happy,
            "kind": kind,
        }
    )
