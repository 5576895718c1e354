"""The exact means against a plain recursion, and a missing factor is refuted."""

import numpy as np
import pytest

from tangograd.reproduction import minibatch
from tangograd.reproduction.base import Setting
from tangograd.reproduction.minibatch import DT, GAMMA, SCALES, START, Variant, along


def limit(variant):
    return variant.regression.law(START).limit(GAMMA, minibatch.DT)


VARIANTS = [Variant(1, True), Variant(16, True), Variant(16, False)]


def means(variant, steps, moving):
    """E θ and E v after each step, from the definition with F̂ and g replaced by their means."""
    F, seen = np.diag(SCALES**2), np.diag(SCALES**2) / (1 if variant.factor else variant.batch)
    theta, v, thetas, vs = START.copy(), np.zeros(2), [START.copy()], [np.zeros(2)]
    for _ in range(steps):
        v = (1 - DT) * v + GAMMA * (F @ theta) - GAMMA * (1 - DT) * seen @ v
        theta = theta - moving * DT * v
        thetas.append(theta)
        vs.append(v)
    return np.array(thetas), np.array(vs)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_exact_means(variant, monkeypatch):
    monkeypatch.setattr(minibatch, "STEPS", 1000)
    thetas, _ = means(variant, 1000, moving=True)
    assert np.allclose(variant.path(), along(thetas[::10]))
    _, vs = means(variant, 400, moving=False)
    assert np.allclose(variant.average(400), vs[200::10].mean(0))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_the_limit_is_a_fixed_point(variant):
    seen, m = SCALES**2 / (1 if variant.factor else variant.batch), limit(variant)
    assert np.allclose(m, (1 - DT) * m + GAMMA * (SCALES**2 * START - (1 - DT) * seen * m))


def test_lengths_without_damping(monkeypatch):
    """1 with the factor, B without."""
    monkeypatch.setattr(minibatch, "DT", 0.0)
    assert [float(along(limit(v))) for v in VARIANTS] == pytest.approx([1, 1, 16])


def test_the_model_draws_means_of_batches():
    """F with √B, F/B without, and the mean of g does not depend on B."""
    for scale, fisher in ((3.0, SCALES**2), (1.0, SCALES**2 / 9)):
        rng, g, g_tilde = np.random.default_rng(0), np.empty((5000, 2)), np.empty((5000, 2))
        constants = np.array([9.0, scale, 1.0, 1.0, *SCALES, 0.0, 0.0])
        for row, row_tilde in zip(g, g_tilde, strict=True):
            minibatch.batches(START, rng, constants, row, row_tilde)
        squares = g_tilde**2
        for samples, exact in ((g, SCALES**2), (squares, fisher)):
            error = np.abs(samples.mean(0) - exact)
            assert (error < 5 * samples.std(0) / np.sqrt(len(samples))).all()


def wrong(monkeypatch, change):
    """A quick run of which the kernel's arguments are changed."""
    kernel = minibatch.tango
    monkeypatch.setattr(minibatch, "BATCHES", (1, 16))
    monkeypatch.setattr(minibatch, "MOVING", (1, 16))
    monkeypatch.setattr(minibatch, "tango", lambda *a, **k: kernel(*a, **{**k, **change(k)}))
    return [v.holds for v in minibatch.measure(Setting("minibatch", quick=True)).verdicts]


def test_a_missing_factor_is_refuted(monkeypatch):
    """In v, in θ, and against the kernel; what is said of its absence still holds."""

    def forget(k):
        return {"constants": (k["constants"][0], 1.0, *k["constants"][2:])}

    assert wrong(monkeypatch, forget) == [False, True, False, True, False]


def test_a_mean_of_outer_products_is_not_the_equation_for_minibatches(monkeypatch):
    """It has the same mean, and other velocities on the same samples."""
    assert wrong(monkeypatch, lambda k: {"rank_one": False}) == [True] * 4 + [False]
