"""The kept rows: who is kept, and how likely."""

import numpy as np

from tangograd.glm.numerics.row_hash import row_uniforms
from tangograd.glm.one_pass.row_sample import RowSample, uniform_hash
from tangograd.glm.one_pass.working_rows import WorkingRows


def offered(keys, half, seed, cuts=1, first=0):
    """A sample of rows with these keys, offered in chunks."""
    sample = RowSample(half, seed)
    for part in np.array_split(np.arange(len(keys)), cuts):
        column = np.zeros(len(part))
        rows = WorkingRows.of(column[:, None], column, column, column, part + first)
        sample.offer(rows, column[:, None], column, keys[part])
    return sample


def test_hashes_are_uniform_and_differ_by_seed():
    numbers = np.arange(100_000)
    u, v = uniform_hash(numbers, 0), uniform_hash(numbers, 1)
    assert abs(np.corrcoef(u, v)[0, 1]) < 0.01
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.01
    counts = np.histogram(u, np.linspace(0, 1, 51))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 85  # χ² of 49 degrees of freedom: p = 0.001


def test_chunks_do_not_matter_and_the_definition_holds():
    keys = np.random.default_rng(0).exponential(size=5000)
    one, many = offered(keys, 50, 3), offered(keys, 50, 3, cuts=617)
    np.testing.assert_array_equal(one.kept().rows.number, many.kept().rows.number)
    assert one.threshold == many.threshold
    u = uniform_hash(np.arange(5000), 3)
    priority = keys / row_uniforms(0, 5000, 7)
    chosen = set(np.argsort(u)[:50]) | set(np.argsort(-priority)[:50])
    assert set(one.kept().rows.number) == chosen
    assert one.threshold == np.sort(priority)[-51]


def test_inverse_probabilities_estimate_totals():
    rng = np.random.default_rng(1)
    keys = np.exp(2 * rng.normal(size=4000))
    values = keys * rng.normal(1, 0.2, size=4000)
    estimates = []
    for seed in range(200):
        sample = offered(keys, 100, seed)
        kept = sample.kept()
        estimates.append((values[kept.rows.number] / sample.inclusion(kept)).sum())
    spread = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - values.sum()) < 4 * spread
    assert np.std(estimates) < 0.1 * values.sum()


def test_a_merged_sample_is_that_of_all_rows():
    keys = np.random.default_rng(2).exponential(size=3000)
    whole = offered(keys, 40, 5)
    parts = [offered(keys[k : k + 1000], 40, 5, first=k) for k in range(0, 3000, 1000)]
    for other in parts[:0:-1]:
        parts[0].merge(other)
    np.testing.assert_array_equal(parts[0].kept().rows.number, whole.kept().rows.number)
    np.testing.assert_array_equal(
        parts[0].inclusion(parts[0].kept()), whole.inclusion(whole.kept())
    )


def test_all_rows_are_kept_while_there_is_room():
    sample = offered(np.ones(30), 40, 0)
    assert len(sample.kept()) == 30
    assert (sample.inclusion(sample.kept()) == 1).all()
