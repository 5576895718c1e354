"""DistributedDataParallel: two processes are one process on the union of their batches."""

from functools import partial

import pytest
import torch

from tangograd import Gaussian
from tangograd.engines import NAMES
from tests.parallel import jobs
from tests.parallel.compare import assert_close, assert_identical, flat
from tests.parallel.jobs import Known

PLAIN = {"lr": 0.2, "gamma": 0.05, "preconditioner": None}
PRIOR = PLAIN | {"weight_decay": 0.1}

WRAPPERS = {
    "default": {},
    "find-unused": {"find_unused_parameters": True},
    "static-graph": {"static_graph": True},
    "bucket-view": {"gradient_as_bucket_view": True},
}


@pytest.mark.parametrize("fisher", ["expected", "sampled", "empirical"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_two_processes_equal_one(pair, wrapper, fisher):
    likelihood = partial(Known, fisher=fisher)
    one = jobs.alone(PRIOR, likelihood)
    two = pair.run(jobs.ddp, PRIOR, likelihood, wrapper=WRAPPERS[wrapper])
    assert_identical(*two)
    assert_close(two[0], one)


@pytest.mark.parametrize("engine", [name for name in NAMES if name != "auto"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_engine_with_every_wrapper(pair, wrapper, engine):
    """Also where the loss is a function, which is tried before it is run."""
    one = jobs.alone(PRIOR, Known)
    for as_function in (False, True):
        two = pair.run(
            jobs.ddp,
            PRIOR | {"engine": engine},
            Known,
            wrapper=WRAPPERS[wrapper],
            how={"as_function": as_function},
        )
        assert_identical(*two)
        assert_close(two[0], one, 1e-6 if engine == "finite-difference" else 1e-12)


@pytest.mark.parametrize("as_function", [False, True])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_block_inside_the_wrapper(pair, wrapper, as_function):
    """The wrapper that runs the block is found, though the module inside was given to it."""
    how = {"as_function": as_function, "wrapper": WRAPPERS[wrapper]}
    two = pair.run(jobs.ddp_around_the_block, PRIOR, Known, **how)
    assert_identical(*two)
    assert_close(two[0], jobs.alone(PRIOR, Known))
    two = pair.run(jobs.ddp_around_the_block, {}, Known, 8, **how)  # γ and C are learned
    assert_identical(*two)
    assert_identical(two[0], pair.run(jobs.ddp, {}, Known, 8, wrapper=WRAPPERS[wrapper])[0])


def test_lightning(pair):
    two = pair.run(jobs.lightning_ddp, {})
    assert_identical(*two)
    assert_identical(two[0], pair.run(jobs.ddp, {}, Known, 6)[0])


def test_a_wrapper_that_the_block_does_not_know_is_refused(pair):
    for said in pair.run(jobs.the_wrong_module):
        assert len(said) == 3
        assert all("give `tangents` (or `evaluate`) the wrapper" in message for message in said)
    for message in pair.run(jobs.partly_averaged):
        assert "wrap one module that has them all" in message


def test_parameters_unused_in_some_steps(pair):
    one = jobs.alone(PLAIN, Known, sometimes=True)
    wrapper = {"find_unused_parameters": True}
    two = pair.run(jobs.ddp, PLAIN, Known, wrapper=wrapper, sometimes=True)
    assert_identical(*two)
    assert_close(two[0], one)


@pytest.mark.parametrize("fisher", ["expected", "sampled", "empirical"])
def test_accumulation_without_synchronisation(pair, fisher):
    likelihood = partial(Known, fisher=fisher)
    one = jobs.alone(PLAIN, likelihood)
    two = pair.run(jobs.ddp, PLAIN, likelihood, how={"parts": 3})
    assert_identical(*two)
    assert_close(two[0], one)


def test_unequal_batches_count_by_their_samples_with_the_factor(pair):
    one = jobs.alone(PRIOR, Known)
    weighted = pair.run(jobs.ddp, PRIOR, Known, sizes=(8, 4), how={"weighted": True})
    assert_identical(*weighted)
    assert_close(weighted[0], one)


def test_unequal_batches_count_alike_without_it(pair):
    """The mean of the processes' means, as for any optimizer under DistributedDataParallel."""
    one = jobs.alone(PLAIN, Known)
    mean_of_means = pair.run(jobs.ddp, PLAIN, Known, sizes=(8, 4))[0]
    assert (flat(mean_of_means) - flat(one)).abs().max() > 1e-3


def test_a_tracked_variance_is_that_of_all_batches(pair):
    likelihood = Gaussian("tracked")
    one = jobs.alone(PLAIN | {"lr": 0.1}, lambda: likelihood)
    (first, variance), (second, same) = pair.run(jobs.tracked)
    assert variance == same
    assert variance == pytest.approx(float(likelihood.variance), rel=1e-12)
    assert_identical(first, second)
    assert_close(first, one)


def test_a_plain_model_trains_alone(pair):
    """An initialised process group says nothing about who trains together."""
    (first, counts), (second, _) = pair.run(jobs.unwrapped, {"lr": 0.2}, Known)
    assert counts == {"calls": 0, "bytes": 0}
    assert not torch.equal(flat(first), flat(second))
