"""Distributed checkpoints, in one process: a resumed run equals an uninterrupted one bit for bit."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from tangograd import TANGO, Categorical
from tangograd.preconditioners import Diagonal

from ..cases import mlp
from ..test_optimizer import batches, train
from ..test_session import same

# torch says that it takes a process without a group for the only one
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

OPTIONS = {
    "defaults": {},
    "number": {"gamma": 0.1, "preconditioner": None},
    "max, rmsprop": {"gamma": "max", "preconditioner": "rmsprop"},
    "auto, kronecker": {"preconditioner": "kronecker"},
}


def build(options, sampled="sampled"):
    torch.manual_seed(7)
    model = mlp()
    return model, TANGO(model.parameters(), **options), Categorical(fisher=sampled)


def plain(model, optimizer, likelihood):
    states = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "likelihood": likelihood.state_dict(),
    }

    def put_back():
        model.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optimizer"])
        likelihood.load_state_dict(states["likelihood"])

    return states, put_back


def by_name(model, optimizer, likelihood):
    """With the functions that name parameters rather than number them."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    states = {
        "model": of_model,
        "optimizer": of_optimizer,
        "likelihood": likelihood.state_dict(),
    }

    def put_back():
        set_state_dict(
            model,
            optimizer,
            model_state_dict=states["model"],
            optim_state_dict=states["optimizer"],
        )
        likelihood.load_state_dict(states["likelihood"])

    return states, put_back


@pytest.mark.parametrize("collect", [plain, by_name])
@pytest.mark.parametrize("name", OPTIONS)
def test_resuming(name, collect, tmp_path):
    data, options = batches(34, rows=8), OPTIONS[name]
    run = build(options)
    train(*run, data[:14])
    dcp.save(collect(*run)[0], checkpoint_id=tmp_path)
    train(*run, data[14:])

    resumed = build(options)
    if "kronecker" in name:  # its layers are known after a step
        train(*resumed, data[:1])
    states, put_back = collect(*resumed)
    dcp.load(states, checkpoint_id=tmp_path)
    put_back()
    train(*resumed, data[14:])
    for p, q in zip(run[0].parameters(), resumed[0].parameters(), strict=True):
        assert p.equal(q)
    assert same(run[1].state_dict(), resumed[1].state_dict())
    assert same(run[1].diagnostics(), resumed[1].diagnostics())


@pytest.mark.parametrize("name", [name for name in OPTIONS if "kronecker" not in name])
def test_a_state_has_the_same_keys_before_the_first_step_and_later(name):
    model, optimizer, likelihood = build(OPTIONS[name])

    def keys(value, prefix=()):
        if isinstance(value, dict):
            value = value.items()
        elif isinstance(value, list):
            value = enumerate(value)
        else:
            return {prefix}
        return {key for k, x in value for key in keys(x, (*prefix, k))}

    before = keys(optimizer.state_dict())
    assert len(before) > len(list(model.parameters()))
    train(model, optimizer, likelihood, batches(3))
    assert keys(optimizer.state_dict()) == before


def test_saving_before_the_first_step_changes_nothing():
    """Statistics of nothing yet are saved as zeros, and load as nothing yet."""
    data = batches(6)
    clean, saved = build({}), build({})
    saved[1].state_dict()
    saved[1].load_state_dict(saved[1].state_dict())
    assert all(list(state) == ["velocity"] for state in saved[1].state.values())
    train(*clean, data)
    train(*saved, data)
    assert same(clean[1].state_dict(), saved[1].state_dict())


def test_parameters_on_the_meta_device_have_no_state_yet():
    with torch.device("meta"):
        model = mlp()
    assert not TANGO(model.parameters()).state


def test_given_preconditioners_are_saved_too(tmp_path):
    def run(c):
        model = mlp()
        C = Diagonal([torch.full_like(p, c) for p in model.parameters()])
        return TANGO(model.parameters(), gamma=0.1, preconditioner=C)

    first, second = run(2.0), run(3.0)
    dcp.save({"optimizer": first.state_dict()}, checkpoint_id=tmp_path)
    state = {"optimizer": second.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path)
    second.load_state_dict(state["optimizer"])
    assert second.param_groups[0]["preconditioner"].diagonal[0][0, 0] == 2.0
