"""Rows out of columns, and codes out of dictionaries: against NumPy."""

import numpy as np
import pytest

from tangograd.stream.gather import gather
from tangograd.stream.recode import occurring, recode
from tangograd.stream.vectors import WIDTH


def columns_of(length, count):
    rng = np.random.default_rng(length + count)
    columns = [rng.normal(size=length) for _ in range(count)]
    return columns, np.array([column.__array_interface__["data"][0] for column in columns])


@pytest.mark.parametrize("count", [1, 2, WIDTH - 1, WIDTH, WIDTH + 1, 20, 3 * WIDTH, 33])
@pytest.mark.parametrize("length", [1, WIDTH - 1, WIDTH, WIDTH + 1, 100, 1000])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9, 1.0])
def test_rows_are_gathered(count, length, share):
    columns, addresses = columns_of(length, count)
    rows = np.flatnonzero(np.random.default_rng(0).random(length) < share)
    around = np.full((len(rows) + 2, count), 7.0)
    gather(addresses, length, rows, around[1:-1])
    assert np.array_equal(around[1:-1], np.column_stack(columns)[rows])
    assert (around[[0, -1]] == 7.0).all()  # and nothing else is written


@pytest.mark.parametrize(
    "rows", [[99], [0, 99], [92, 93, 94], [3, 50, 98, 99], list(range(90, 100))]
)
def test_rows_at_the_end(rows):
    columns, addresses = columns_of(100, 5)
    found = np.empty((len(rows), 5))
    gather(addresses, 100, np.array(rows), found)
    assert np.array_equal(found, np.column_stack(columns)[rows])


def test_numbers_stay_what_they_are():
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324, 1e308, 1.0, 2.0, 3.0])
    found = np.empty((9, 1))
    gather(np.array([special.__array_interface__["data"][0]]), 9, np.arange(9), found)
    assert found.tobytes() == special.tobytes()


def test_no_columns_and_no_rows():
    nothing = np.empty(0, np.int64)
    gather(nothing, 0, nothing, np.empty((0, 0)))
    gather(nothing, 3, np.arange(3), np.empty((3, 0)))


def test_codes():
    rng = np.random.default_rng(0)
    entries, rows = rng.integers(0, 5, 100, dtype=np.int32), np.flatnonzero(rng.random(100) < 0.5)
    entries[rows] %= 4
    table = np.array([10, -1, 12, 13, 14])
    codes = np.full((len(rows), 2), 99, np.int32)
    recode(entries, rows, table, codes[:, 1])
    assert np.array_equal(codes[:, 1], table[entries[rows]])
    assert (codes[:, 0] == 99).all()
    assert list(occurring(entries, rows, 5)) == [True, True, True, True, False]
    assert not occurring(entries, rows[:0], 5).any()
