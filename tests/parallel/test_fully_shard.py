"""``fully_shard``: the velocity is sharded like the parameters; two processes are one."""

from functools import partial

import pytest
import torch

from tangograd import Categorical
from tests.parallel import sharded
from tests.parallel.compare import assert_close, assert_identical
from tests.parallel.jobs import Known

PLAIN = {"lr": 0.2, "gamma": 0.02, "preconditioner": None}
PRIOR = PLAIN | {"weight_decay": 0.1}


@pytest.mark.parametrize("fisher", ["expected", "sampled", "empirical"])
def test_two_processes_equal_one(pair, fisher):
    likelihood = partial(Known, fisher=fisher)
    one = sharded.alone(PRIOR, likelihood)
    two = pair.run(sharded.fsdp, PRIOR, likelihood)
    assert_identical(*two)
    assert_close(two[0], one)


def test_accumulation(pair):
    one = sharded.alone(PLAIN, Known)
    assert_close(pair.run(sharded.fsdp, PLAIN | {"engine": "two-pass"}, Known, parts=2)[0], one)
    assert_close(pair.run(sharded.unsynchronised, PLAIN)[0], sharded.alone(PLAIN, Known, 3))


def test_mixed_precision(pair):
    """Units gather in single precision what is kept in double."""
    two = pair.run(sharded.fsdp, PLAIN, Known, param_dtype=torch.float32)
    assert_identical(*two)
    one = sharded.alone(PLAIN, Known)
    assert_close(two[0], one, 1e-5)
    with pytest.raises(AssertionError):
        assert_close(two[0], one, 1e-10)


def test_rmsprop_is_that_of_all_batches(pair):
    options = PLAIN | {"preconditioner": "rmsprop"}
    assert_close(pair.run(sharded.fsdp, options, Known, 6)[0], sharded.alone(options, Known, 6))


def test_line_search_is_that_of_all_batches(pair):
    options = {"gamma": "auto", "preconditioner": "rmsprop", "weight_decay": 0.1}
    one = sharded.alone(options, Known, 1)
    two = pair.run(sharded.fsdp, options, Known, 1)
    search = [result["groups"][0]["gamma"]["search"] for result in (one, *two)]
    assert search[1] == search[2] == pytest.approx(search[0], rel=1e-10)


def test_nothing_to_tune(pair):
    """The defaults: processes agree, and the loss goes where it goes in one process."""
    first, second = pair.run(sharded.fsdp, {}, Categorical, 12)
    assert_identical(first, second)
    one = sharded.alone({"preconditioner": "diagonal"}, Categorical, 12)
    gamma, same = (result["groups"][0]["gamma"]["value"] for result in (first, one))
    assert gamma == pytest.approx(same, rel=0.5)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize("name", ["number", "defaults"])
def test_saved_on_two_and_resumed_on_two_and_on_one(pair, name, tmp_path):
    options = PRIOR if name == "number" else {"preconditioner": "diagonal"}
    saved, end = pair.run(sharded.save, options, tmp_path)[0]
    for loaded, resumed in pair.run(sharded.resume, options, tmp_path):
        assert_identical(loaded, saved)
        assert_identical(resumed, end)
    loaded, resumed = sharded.resume(options, tmp_path)
    assert_identical(loaded, saved)
    if name == "number":
        assert_close(resumed, end)


@pytest.mark.parametrize(
    ("options", "instead"),
    [({"gamma": "max"}, 'gamma="auto"'), ({"preconditioner": "kronecker"}, '"rmsprop" or None')],
)
def test_what_shards_cannot_do(pair, options, instead):
    for said in pair.run(sharded.refused, options):
        assert instead in said


def test_statistics_need_synchronised_micro_batches(pair):
    for said in pair.run(sharded.unsynchronised, {}):
        assert "set_requires_gradient_sync(False)" in said


def test_models_that_are_refused(pair):
    for in_part, closure in pair.run(sharded.refused_models):
        assert "is not sharded" in in_part
        assert "optimizer.tangents(model)" in closure
