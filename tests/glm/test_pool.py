"""Memory is used again when nobody refers to it, and not before."""

import gc

import numpy as np

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
    assert len(pool._waiting) == WAITING


def test_empty_arrays():
    assert Pool().empty((0, 3)).shape == (0, 3)
    assert Pool().empty((3, 0)).shape == (3, 0)
