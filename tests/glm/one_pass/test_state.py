"""The state: any chunks, merging, growing, storing."""

import numpy as np
import pytest

from tangograd.glm.errors import DataError
from tangograd.glm.one_pass.serialization import MAGIC, pack, unpack
from tangograd.glm.one_pass.start import fit_start
from tangograd.glm.one_pass.state import OnePassConfig, OnePassState
from tests.glm.one_pass.streams import (
    FAMILIES,
    coefficients,
    feed,
    fitted_state,
    maximum_likelihood,
    ratio,
    simulate,
)


def bits(found):
    """Everything in a result that could differ."""
    values = (found.theta, found.hessian, found.covariance, found.meat, found.leverage)
    numbers = (found.excess, found.loss, found.loss_error, found.pearson)
    return [np.asarray(value).tobytes() for value in (*values, *numbers)]


@pytest.mark.parametrize("name", FAMILIES)
def test_any_chunks_give_the_same_bits(name):
    X, y = simulate(name, n=6000, seed=1)
    w = np.random.default_rng(0).integers(1, 3, len(y)).astype(float)
    whole = fitted_state(name, X, y, w=w).finish()
    for sizes in [(1000,), (1, 700, 13), (1023, 1025)]:
        assert bits(fitted_state(name, X, y, sizes, w=w).finish()) == bits(whole)


def test_other_rows_give_other_bits():
    X, y = simulate("poisson", n=6000, seed=1)
    whole = fitted_state("poisson", X, y).finish()
    y[-1] += 1
    assert bits(fitted_state("poisson", X, y).finish()) != bits(whole)


@pytest.mark.parametrize("name", ["logit", "gamma", "multinomial"])
def test_merged_states_are_at_maximum_likelihood(name):
    X, y = simulate(name, n=16_000, seed=2, kind="sorted by x")
    family, n = FAMILIES[name], len(y)
    head = np.concatenate([np.arange(k, k + 500) for k in range(0, n, 4000)])
    ones = np.ones(n)
    begin = fit_start(family, X[head], y[head], ones[head], 0 * ones[head], hold=True)
    states = []
    for k in range(0, n, 4000):
        state = OnePassState.init(family, begin, OnePassConfig(kept_rows=1000))
        state.update(X[k : k + 4000], y[k : k + 4000], numbers=k)
        states.append(state)
    whole = states[0]
    for state in states[1:]:
        whole.merge(state)
    found = whole.finish()
    best, information = maximum_likelihood(name, X, y)
    assert whole.totals.rows == n
    assert ratio(coefficients(whole, found), best, information) < 1.05
    assert found.excess < 0.05
    assert len(found.kept) <= 1000
    assert len(np.unique(found.kept.rows.number)) == len(found.kept)


def test_states_of_different_starts_are_not_merged():
    X, y = simulate("logit", n=5000, seed=3)
    one = fitted_state("logit", X, y)
    other = fitted_state("logit", X[::-1].copy(), y[::-1].copy())
    with pytest.raises(ValueError, match="same start"):
        one.merge(other)


def test_columns_that_come_late():
    X, y = simulate("poisson", n=12_000, d=4, seed=4)
    late = np.zeros(len(y))
    late[6000:] = np.random.default_rng(1).random(6000) < 0.3
    y = np.random.default_rng(2).poisson(np.exp(0.5 * late + X[:, 1] / 3)).astype(float)
    state = fitted_state("poisson", X[:5500], y[:5500])
    state.grow(5)
    wide = np.c_[X, late]
    state.update(wide[5500:], y[5500:])
    found = state.finish()
    best, information = maximum_likelihood("poisson", wide, y)
    assert ratio(coefficients(state, found), best, information) < 1.02
    assert found.excess < 0.02


# --- storing


@pytest.mark.parametrize("name", ["gaussian", "negative_binomial", "tweedie", "multinomial"])
def test_a_stored_state_goes_on_to_the_same_bits(name):
    X, y = simulate(name, n=7000, seed=5)
    whole = fitted_state(name, X, y, meat=True)
    state = fitted_state(name, X[:3700], y[:3700], meat=True)
    state = OnePassState.from_bytes(state.to_bytes())
    assert state.family == FAMILIES[name]
    feed(state, X[3700:], y[3700:])
    np.testing.assert_allclose(state.finish().theta, whole.finish().theta, rtol=1e-10)
    assert bits(OnePassState.from_bytes(whole.to_bytes()).finish()) == bits(whole.finish())


def test_damaged_bytes_are_refused():
    X, y = simulate("poisson", n=3000, seed=6)
    data = fitted_state("poisson", X, y, kept_rows=50).to_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(data)
        kind = rng.integers(3)
        if kind == 0:
            broken[rng.integers(len(data))] ^= 1 << rng.integers(8)
        elif kind == 1:
            del broken[rng.integers(len(data)) :]
        else:
            broken += b"x"
        with pytest.raises(DataError):
            OnePassState.from_bytes(bytes(broken))


def test_bytes_with_a_right_checksum_and_wrong_parts_are_refused():
    X, y = simulate("poisson", n=3000, seed=6)
    header, arrays = unpack(fitted_state("poisson", X, y, kept_rows=50).to_bytes())
    for name in arrays:
        changes = [arrays[name][..., None]]
        if arrays[name].dtype == np.float64 and arrays[name].size:
            changes.append(np.full_like(arrays[name], np.nan))
        for change in changes:
            with pytest.raises(DataError, match="damaged"):
                OnePassState.from_bytes(pack(header, arrays | {name: change}))
        rest = {key: value for key, value in arrays.items() if key != name}
        if not name.endswith("_Z"):
            with pytest.raises(DataError, match="damaged"):
                OnePassState.from_bytes(pack(header, rest))
    for name in header:
        for value in (None, -1, "x", [], {}):
            if value != header[name] and not (value == -1 and name == "threshold"):
                with pytest.raises(DataError, match="damaged"):
                    OnePassState.from_bytes(pack(header | {name: value}, arrays))


def test_nothing_in_the_bytes_is_executed():
    with pytest.raises(DataError, match="not a stored"):
        OnePassState.from_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(DataError):
        OnePassState.from_bytes(MAGIC)
