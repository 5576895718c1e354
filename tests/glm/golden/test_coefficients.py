"""Fits reproduce their recorded results, so that refactoring changes nothing."""

import numpy as np
import pytest

from tests.glm.golden.cases import CASES, PATH


@pytest.mark.parametrize("case", CASES)
def test_results(case):
    recorded = np.load(PATH)
    for part, found in CASES[case]().items():
        expected = recorded[f"{case}: {part}"]
        scale = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
        # Fisher scoring in memory ends when a step is worth 1e-8 standard errors
        close = 1e-9 if "in memory" in case else 1e-12
        np.testing.assert_allclose(
            found, expected, rtol=1e-10, atol=close * scale, err_msg=part, equal_nan=True
        )
