"""Comparing what training has led to."""

import torch
from torch.utils import _pytree as pytree


def flat(result):
    return torch.cat([x.reshape(-1) for x in (*result["theta"], *result["v"])])


def assert_close(result, expected, tolerance=1e-12):
    """θ and v, relative to their size."""
    difference = (flat(result) - flat(expected)).abs().max()
    assert difference <= tolerance * flat(expected).abs().max()


def assert_identical(first, second):
    """θ, v, and the statistics of γ and C: to the last bit."""
    ours, theirs = (dict(pytree.tree_leaves_with_path(result)) for result in (first, second))
    assert ours.keys() == theirs.keys()
    for path, a in ours.items():
        b = theirs[path]
        same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b or (a != a and b != b)
        assert same, pytree.keystr(path)
