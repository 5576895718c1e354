"""Matrix products on one thread: they are small here, and threads that wait for a core are slow."""

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    with threadpool_limits(1, user_api="blas"):
        yield
