"""Warnings that frameworks raise in their own code, whatever the optimizer."""

import pytest

#: a deprecation of torch's that Lightning meets, and its advice on data loaders
lightnings_own = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
]
