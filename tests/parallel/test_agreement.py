"""What is measured besides the gradient: agreed between processes, to the last bit."""

import pytest
import torch

from tangograd import Categorical
from tests.parallel import jobs
from tests.parallel.compare import assert_close, assert_identical
from tests.parallel.jobs import CLASSES, Known

NUMBER = {"lr": 0.2, "gamma": 0.01}


@pytest.mark.parametrize("preconditioner", ["rmsprop", "kronecker"])
@pytest.mark.parametrize("sizes", [(6, 6), (8, 4)])
def test_c_is_that_of_all_batches(pair, preconditioner, sizes):
    options = NUMBER | {"preconditioner": preconditioner}
    one = jobs.alone(options, Known, steps=6)
    two = pair.run(jobs.ddp, options, Known, 6, sizes=sizes, how={"weighted": True})
    assert_identical(*two)
    assert_close(two[0], one)


@pytest.mark.parametrize("preconditioner", [None, "auto", "rmsprop", "diagonal"])
@pytest.mark.parametrize("gamma", [0.01, "max", "gaussian", "auto"])
def test_processes_hold_the_same(pair, gamma, preconditioner):
    options = {"lr": 0.1, "gamma": gamma, "preconditioner": preconditioner}
    first, second = pair.run(jobs.ddp, options, Categorical, 12)
    assert_identical(first, second)
    assert all(bool(x.isfinite().all()) for x in (*first["theta"], *first["v"]))


@pytest.mark.parametrize("as_function", [False, True])
@pytest.mark.parametrize("wrapper", [{"static_graph": True}, {"find_unused_parameters": True}])
def test_the_same_with_options_of_the_wrapper(pair, wrapper, as_function):
    how = {"as_function": as_function}
    first, second = pair.run(jobs.ddp, {}, Categorical, 12, wrapper=wrapper, how=how)
    assert_identical(first, second)
    assert not first["groups"][0]["gamma"]["blind"]


def test_the_same_with_batch_normalisation_and_dropout(pair):
    assert_identical(*pair.run(jobs.noisy))


def test_line_search_is_that_of_all_batches(pair):
    """The first step's, which nothing random has entered yet."""
    options = {"gamma": "auto", "preconditioner": None}
    one = jobs.alone(options, Known, steps=1)
    two = pair.run(jobs.ddp, options, Known, 1, sizes=(8, 4), how={"weighted": True})
    search = [result["groups"][0]["gamma"]["search"] for result in (one, *two)]
    assert search[1] == search[2] == pytest.approx(search[0], rel=1e-12)


def test_the_random_vector_has_the_fisher_matrix_of_all_batches(pair):
    first, second = pair.run(jobs.squared_probe)
    assert first == second == pytest.approx(jobs.squared_probe(wrapped=False), rel=0.2)


def test_samples_of_all_batches_are_counted(pair):
    for seen in pair.run(jobs.samples_counted):
        assert seen == pytest.approx([12.0] * len(seen))
        assert seen


def test_the_largest_norm_is_that_of_all(pair):
    """γ = 1/max over what either process has seen: no larger than with one half of the data."""
    options = {"gamma": "max", "preconditioner": None, "lr": 0.0}
    both = pair.run(jobs.ddp, options, Known, 3)
    halves = [result for result, _ in pair.run(jobs.unwrapped, options, Known, 3)]
    largest = [result["groups"][0]["gamma"]["largest"] for result in (*both, *halves)]
    assert largest[0] == largest[1] == pytest.approx(max(largest[2:]), rel=1e-12)
    assert largest[2] != largest[3]


def test_one_that_cannot_run_its_batch_again_stops_the_others_from_it(pair):
    (first, said), (second, also_said) = pair.run(jobs.one_cannot_run_again)
    assert_identical(first, second)
    assert first["groups"][0]["gamma"]["blind"]
    assert len(said) == len(also_said) == 1
    assert "could not replay the batch" in said[0]


def test_pseudo_samples_are_independent_between_processes(pair):
    """Though all processes start from the same seed; and the generators stay in step."""
    (first, probe, state), (second, other_probe, same) = pair.run(jobs.draws, True)
    assert abs(float((first == second).double().mean()) - 1 / CLASSES) < 0.04
    # drawn from (p + e_y)/2, whose squares add up to 1/2 for three classes and p uniform
    assert abs(float((probe == other_probe).double().mean()) - 1 / 2) < 0.04
    assert torch.equal(state, same)


def test_pseudo_samples_of_a_plain_model_are_those_of_one_process(pair):
    (first, _, _), (second, _, _) = pair.run(jobs.draws, False)
    assert torch.equal(first, second)
    assert torch.equal(first, jobs.draws(False)[0])


def test_as_many_bytes_as_sgd(pair):
    """γ a number and no C: besides, the numbers of a step, in one exchange."""
    sgd, _ = pair.run(jobs.traffic, None, 20)[0]
    tango, own = pair.run(jobs.traffic, {"gamma": 0.01, "preconditioner": None}, 20)[0]
    assert tango == sgd
    assert min(sgd) > 0
    assert own[0]["calls"] == own[-1]["calls"] == 1
    assert max(counts["bytes"] for counts in own) <= 80


def test_few_bytes_more_with_auto(pair):
    """Numbers in ordinary steps; on refresh steps a few vectors the size of the gradient."""
    reduced, own = pair.run(jobs.traffic, {"preconditioner": "diagonal"}, 60)[0]
    size = reduced[0]
    assert max(counts["bytes"] for step, counts in enumerate(own) if step in (47, 59)) <= 80
    assert max(counts["bytes"] for counts in own[40:]) <= 3 * size + 256
