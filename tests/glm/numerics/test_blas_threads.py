"""The limit of BLAS is lifted by its last user."""

import threading

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tangograd.glm.numerics.blas_threads import single_thread


def threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads():
    with threadpool_limits(2, user_api="blas"):
        yield


def test_nested_blocks():
    assert threads() == {2}
    with single_thread():
        with single_thread():
            assert threads() == {1}
        assert threads() == {1}
    assert threads() == {2}


def test_an_error_lifts_the_limit():
    with pytest.raises(ZeroDivisionError), single_thread():
        raise ZeroDivisionError
    assert threads() == {2}


def test_concurrent_blocks_that_overlap():
    """The first to enter is the first to leave, while the other is still inside."""
    inside, left = threading.Event(), threading.Event()
    seen = []

    def other():
        with single_thread():
            inside.set()
            assert left.wait(10)
            seen.append(threads())

    thread = threading.Thread(target=other)
    with single_thread():
        thread.start()
        assert inside.wait(10)
    seen.append(threads())
    left.set()
    thread.join()
    assert seen == [{1}, {1}]
    assert threads() == {2}
