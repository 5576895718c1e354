import pytest

from tests.parallel.fleet import Fleet


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Two processes."""
    fleet = Fleet(2, tmp_path_factory.mktemp("fleet"))
    yield fleet
    fleet.stop()
