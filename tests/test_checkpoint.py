"""Damaged states are refused with a clear error, and change nothing."""

import random
from copy import deepcopy

import pytest
import torch
from torch import nn

from tangograd import TANGO, Categorical

from .test_session import same

CHUNK = 100
DAMAGE = (None, "x", -1, 2.5, float("nan"), [], {}, torch.zeros(2), torch.zeros(()), True, b"\x00")


def build(options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return model, TANGO(model.parameters(), **options), Categorical()


def train(model, optimizer, likelihood, steps=3):
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    for _ in range(steps):
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()


def mutate(value, rng):
    """Return a deep copy with one entry removed, replaced, added or renamed, somewhere inside."""
    value = deepcopy(value)
    place, path = value, []
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return value
        key = rng.choice(keys)
        path.append(key)
        inner = place[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.8:
            place = inner
            continue
        kind = rng.choice(("replace", "remove", "rename", "shape"))
        if kind == "remove":
            del place[key]
        elif kind == "rename" and isinstance(place, dict):
            place[f"{key}_"] = place.pop(key)
        elif kind == "shape" and isinstance(inner, torch.Tensor):
            place[key] = torch.cat([inner.reshape(-1), inner.new_zeros(1)])
        else:
            place[key] = rng.choice(DAMAGE)
        return value


@pytest.mark.parametrize("chunk", range(3))
@pytest.mark.parametrize("options", [{}, {"gamma": "max", "preconditioner": "diagonal"}], ids=str)
def test_mutated_states_are_refused_or_train(options, chunk):
    """A state either loads and trains, or is refused with a ValueError and changes nothing."""
    source = build(options)
    train(*source)
    saved = source[1].state_dict()
    target = build(options)
    refused = 0
    for seed in range(CHUNK * chunk, CHUNK * (chunk + 1)):
        damaged = mutate(saved, random.Random(seed))
        before = deepcopy(target[1].state_dict())
        try:
            target[1].load_state_dict(damaged)
        except ValueError:
            refused += 1
            assert same(target[1].state_dict(), before)
            continue
        train(*target, steps=1)
        target = build(options)
    assert refused > CHUNK / 4


def test_entries_of_hooks_pass_through():
    model, optimizer, likelihood = build({})
    train(model, optimizer, likelihood)
    saved = optimizer.state_dict()
    saved["state"]["averages of a hook"] = {"step": 3}
    saved["state"]["count"] = 7
    optimizer.load_state_dict(saved)
    assert optimizer.state["count"] == 7
    train(model, optimizer, likelihood)


def test_user_hooks_run_before_the_state_is_checked():
    """A hook can convert a state that would be refused as it is."""
    source, target = build({}), build({})
    train(*source)
    saved = source[1].state_dict()
    old = {"format": "of a user", "inside": saved}
    target[1].register_load_state_dict_pre_hook(lambda _, state: state["inside"])
    target[1].load_state_dict(old)
    assert same(target[1].state_dict(), saved)
