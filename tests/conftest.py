"""Every test runs in float64, on one thread, from the same seed."""

import pytest
import torch

from tangograd import checks


@pytest.fixture(autouse=True)
def float64_and_seed():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    checks._mentioned.add("lr")  # limits of small δt are studied here
    yield
    torch.set_default_dtype(before)
