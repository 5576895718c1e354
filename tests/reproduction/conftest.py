import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """As in a reproduction: small matrix products are slow on several threads of a busy machine."""
    with threadpool_limits(1, user_api="blas"):
        yield
