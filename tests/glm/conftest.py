"""Matrix products on one thread: they are small here, and threads that wait for a core are slow."""

import pytest
from threadpoolctl import threadpool_limits

from tangograd.glm import engine


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture
def tango_path(monkeypatch):
    """Fits with a full covariance take TANGO's path, as those without one."""
    monkeypatch.setattr(engine, "FULL_PATH", "tango")
