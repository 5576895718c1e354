"""Memory is used again when nobody refers to it, and not before."""

import gc

import numpy as np
import pytest

from tangograd.glm.pool import WAITING, Pool


def test_memory_is_used_again():
    pool = Pool()
    first = pool.empty((100, 3))
    assert (first.shape, first.dtype, first.flags.c_contiguous) == ((100, 3), np.float64, True)
    assert first.flags.writeable
    address = first.ctypes.data
    del first
    assert pool.empty((50, 2)).ctypes.data == address
    assert pool.empty((101, 3)).ctypes.data != address  # too small for that


def test_rows_that_somebody_has_stay_as_they_are():
    pool = Pool()
    first = pool.empty((100, 3))
    first[:] = 7.0
    some = first[10:20][::2]
    address = first.ctypes.data
    del first
    gc.collect()
    second = pool.empty((100, 3))
    assert second.ctypes.data != address
    second[:] = 8.0
    assert (some == 7.0).all()
    del some
    assert pool.empty((100, 3)).ctypes.data == address


def test_not_all_memory_waits_for_ever():
    pool = Pool()
    arrays = [pool.empty((10,)) for _ in range(3 * WAITING)]
    del arrays
    kept = pool.empty((11,))
    assert len(pool._waiting) == WAITING
    assert kept.shape == (11,)


def test_empty_arrays():
    assert Pool().empty((0, 3)).shape == (0, 3)
    assert Pool().empty((3, 0)).shape == (3, 0)


@pytest.fixture
def nothing_else():
    """What is there already is no garbage, and quickly passed over."""
    before = gc.get_threshold()
    gc.freeze()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("nothing_else")
def test_memory_is_given_to_one_alone_whatever_runs_while_it_comes_back():
    """Python may collect garbage at any list that it makes, and go on with other threads then."""
    for threshold in range(200, 240):
        pool = Pool()
        first, second = pool.empty((10,)), pool.empty((10,))
        del first
        taken = []

        def take(phase, _, pool=pool, taken=taken):
            if phase == "start" and not taken:
                taken.append(pool.empty((10,)))

        gc.set_threshold(0)
        gc.collect()
        lists = [[] for _ in range(200)]  # Python has no old ones for those of the pool
        gc.callbacks.append(take)
        gc.set_threshold(threshold)
        del second
        gc.set_threshold(0)
        gc.callbacks.remove(take)
        taken += [pool.empty((10,)) for _ in range(3)]
        assert len({array.ctypes.data for array in taken}) == len(taken)
        del lists
