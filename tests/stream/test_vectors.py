"""The width of the processor's vectors changes nothing but the time."""

import os
import subprocess
import sys

import numpy as np
from numba.core.dispatcher import Dispatcher

from tangograd.stream import families, glm, glm_coded, glm_sparse, moments, outer
from tangograd.stream.families import LOGIT
from tangograd.stream.gather import gather
from tangograd.stream.glm import DT, GAMMA, INTERCEPT, RENEWAL, ROWS, SCALARS, single_rows
from tangograd.stream.outer import add_outer, symmetric
from tangograd.stream.vectors import WIDTH, padded

NARROW = """
import llvmlite.binding

features_of_host = llvmlite.binding.get_host_cpu_features

def without_avx_512():
    found = features_of_host()
    found.update((name, False) for name in found if name.startswith("avx512"))
    return found

llvmlite.binding.get_host_cpu_features = without_avx_512
from tests.stream.test_vectors import WIDTH, computed, padded
assert WIDTH == 4
assert padded(1) == 8  # as everywhere: sums are saved so, and gone on with elsewhere
print(computed().hex())
"""


def computed():
    """Rows gathered from columns, the sums of their outer products, and a recursion, as bytes."""
    rng = np.random.default_rng(0)
    columns = [rng.normal(size=500) for _ in range(21)]
    rows, weights = np.flatnonzero(rng.random(500) < 0.9), rng.uniform(size=(2, 500))
    matrix = np.empty((len(rows), 21))
    addresses = np.array([column.__array_interface__["data"][0] for column in columns])
    gather(addresses, 500, rows, matrix)
    z = np.zeros((len(rows), padded(21)))
    z[:, :21] = matrix
    totals = np.zeros((2, z.shape[1], z.shape[1]))
    add_outer(np.ascontiguousarray(weights[:, : len(rows)]), z, totals)
    state = [np.full(22, number) for number in (0.1, 0.2, 0.3, 1.0)]
    scalars = np.zeros(SCALARS)
    scalars[[ROWS, RENEWAL, GAMMA, DT, INTERCEPT]] = 10, 1e9, 1e-3, 0.1, 1
    nothing = (0.0, False, rng, np.empty((0, 24)), np.empty((2, 0)))
    y, ones, zeros = np.round(weights[0] / 2), np.ones(500), np.zeros(500)
    given = (y, ones, zeros, np.arange(len(rows)), np.full(21, 0.1))
    single_rows(LOGIT, 0.0, matrix, *given, *state, scalars, *nothing)
    parts = [matrix, *(symmetric(total, 21) for total in totals), *state, scalars]
    return b"".join(part.tobytes() for part in parts)


def test_no_function_takes_over_the_flags_of_another():
    """Numba compiles one that does not say whether sums may be reordered as its first caller."""
    for module in (families, glm, glm_coded, glm_sparse, moments, outer):
        compiled = [each for each in vars(module).values() if isinstance(each, Dispatcher)]
        assert compiled
        for each in compiled:
            assert "fastmath" in each.targetoptions, each


def test_vectors_of_four_give_the_same_bits(tmp_path):
    """As on processors without AVX-512; and with nothing compiled yet, in whatever order."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", NARROW], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert WIDTH in (4, 8)
    assert bytes.fromhex(done.stdout) == computed()
