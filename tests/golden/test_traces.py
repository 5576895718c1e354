"""Training runs reproduce their recorded trajectories, so that refactoring changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.golden.cases import CASES, PATH, trace


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_trajectory(case):
    recorded = np.load(PATH)
    for name, found in trace(case).items():
        expected = recorded[f"{case.__name__}.{name}"]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9 * scale, err_msg=name)
