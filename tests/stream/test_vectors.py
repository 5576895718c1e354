"""The width of the processor's vectors changes nothing but the time."""

import os
import subprocess
import sys

import numpy as np

from tangograd.stream.gather import gather
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
    """Of rows gathered from columns, the sums of outer products, as bytes."""
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
    return matrix.tobytes() + b"".join(symmetric(total, 21).tobytes() for total in totals)


def test_vectors_of_four_give_the_same_bits(tmp_path):
    """As on processors without AVX-512."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", NARROW], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert WIDTH in (4, 8)
    assert bytes.fromhex(done.stdout) == computed()
