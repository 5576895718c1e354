"""Which rows are held out, which of them are kept, and what is measured on them."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics import d2_tweedie_score, log_loss, roc_auc_score

from tangograd.glm.commands.holdout import Draw, Reservoir, evaluate
from tangograd.glm.engine import OnePass
from tangograd.glm.families import Multinomial
from tangograd.glm.families import by_name as family
from tangograd.glm.matrices import Block, as_matrix


def rows(values, width=2, sparse=False):
    values = np.asarray(values, float)
    X = np.repeat(values[:, None], width, axis=1)
    ones = np.ones(len(values))
    return Block(as_matrix(sp.csr_array(X) if sparse else X), values, ones, 0 * ones)


def sample(sizes, *, most=50, share=0.3, sparse=False):
    """Rows 1, 2, … in chunks."""
    draw, reservoir, start = Draw(0), Reservoir(share, most), 1
    for size in sizes:
        keys = draw.next(size)
        chosen = keys < reservoir.limit
        reservoir.add(rows(np.arange(start, start + size)[chosen], sparse=sparse), keys[chosen])
        start += size
    return reservoir


@pytest.mark.parametrize("sparse", [False, True])
def test_the_sample_does_not_depend_on_chunks(sparse):
    keys = Draw(0).next(3000)
    right = np.sort(np.argsort(keys)[:50]) + 1
    for sizes in ([3000], [1] * 3000, [7] * 428 + [4], [1000, 2000]):
        kept = sample(sizes, sparse=sparse).rows(2)
        assert kept.y.tolist() == right.tolist()
    assert (keys < 0.3).mean() == pytest.approx(0.3, abs=0.03)


def test_few_rows_are_all_kept():
    kept = sample([10] * 10).rows(2)
    assert kept.y.tolist() == (np.flatnonzero(Draw(0).next(100) < 0.3) + 1).tolist()
    assert Reservoir(0.1).rows(2) is None


def test_memory_is_bounded():
    reservoir = Reservoir(1.0, rows=10_000, size=80_000)
    draw = Draw(1)
    for _ in range(20):
        reservoir.add(rows(np.arange(100), width=100), draw.next(100))
        assert sum(part.X.nbytes for part in reservoir._parts) <= 3 * 80_000
    assert len(reservoir.rows(100)) == 100


@pytest.mark.parametrize("sparse", [False, True])
def test_columns_that_came_later_are_zero(sparse):
    reservoir = Reservoir(1.0)
    reservoir.add(rows([1, 2], width=2, sparse=sparse), np.array([0.1, 0.2]))
    reservoir.add(rows([3], width=3, sparse=sparse), np.array([0.3]))
    X = reservoir.rows(4).X
    assert X.toarray().tolist() == [[1, 1, 0, 0], [2, 2, 0, 0], [3, 3, 3, 0]]


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 2))
    return X, rng


def learned(of, X, y, labels=None, offset=None, **options):
    model = OnePass(of, X.shape[1], **options)
    model.feed(X[:800], y[:800], None, None if offset is None else offset[:800])
    shift = np.zeros(200) if offset is None else offset[800:]
    held = Block(as_matrix(X[800:]), y[800:], np.ones(200), shift)
    return evaluate(model.fitted(("a", "b"), labels), model, held)


def test_counts_with_an_exposure(data):
    X, rng = data
    exposure = rng.uniform(1, 3, len(X))
    y = rng.poisson(exposure * np.exp(X @ [0.5, -0.5])).astype(float)
    found = learned(family("poisson"), X, y, offset=np.log(exposure))
    mean, metrics = found.held_out.mean, found.metrics
    null = exposure[800:] * y[:800].sum() / exposure[:800].sum()

    def deviance(mu):
        return 2 * np.mean(
            np.where(y[800:] > 0, y[800:] * np.log(np.maximum(y[800:], 1) / mu), 0) - y[800:] + mu
        )

    assert metrics["deviance"] == pytest.approx(deviance(mean), rel=1e-9)
    assert metrics["d2"] == pytest.approx(1 - deviance(mean) / deviance(null), rel=1e-9)
    np.testing.assert_allclose(found.held_out.pearson, (y[800:] - mean) / np.sqrt(mean), rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "power"), [("gaussian", 0), ("poisson", 1), ("tweedie", 1.5), ("gamma", 2)]
)
def test_deviances_are_scikit_learns(data, name, power):
    X, rng = data
    y = (
        X @ [1, 1] + rng.normal(size=len(X))
        if not power
        else 1.0 + rng.poisson(np.exp(X @ [0.5, 0.5]))
    )
    found = learned(family(name), X, y)
    null = y[:800].mean()
    ours = 1 - found.metrics["d2"]
    theirs = 1 - d2_tweedie_score(y[800:], found.held_out.mean, power=power)
    against = 1 - d2_tweedie_score(y[800:], np.full(200, null), power=power)
    assert ours == pytest.approx(theirs / against, rel=1e-6)


def test_classes(data):
    X, rng = data
    two = (rng.random(len(X)) < 1 / (1 + np.exp(-X[:, 0]))).astype(float)
    found = learned(family("binomial"), X, two, ("no", "yes"))
    assert found.metrics["auc"] == pytest.approx(
        roc_auc_score(two[800:], found.held_out.mean[:, 1])
    )
    three = rng.integers(3, size=len(X)).astype(float)
    found = learned(Multinomial(3), X, three, ("a", "b", "c"))
    assert found.metrics["log_loss"] == pytest.approx(log_loss(three[800:], found.held_out.mean))
