"""Checks of what the GLM benchmarks stand on: formulas, simulators, maximum likelihood.

``python benchmarks/glm_cases.py`` runs them.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from glm_cases import CASES, FAMILIES, FEATURES, simulate
from glm_families import Array, Family, Gaussian, Poisson
from glm_oracle import maximum_likelihood, ratio


def check_derivatives(family: Family) -> None:
    """Slope and curvature are the derivatives of the loss; their moments the Fisher matrix."""
    rng = np.random.default_rng(1)
    eta = rng.normal(size=(400_000, family.outcomes))
    y = family.sample(rng, eta)
    step = 1e-5
    for k in range(family.outcomes):
        aside = step * np.eye(family.outcomes)[k]
        slope = (family.loss(eta + aside, y) - family.loss(eta - aside, y)) / (2 * step)
        np.testing.assert_allclose(slope, family.slope(eta, y)[:, k], rtol=1e-5, atol=1e-6)
        curvature = (family.slope(eta + aside, y) - family.slope(eta - aside, y)) / (2 * step)
        np.testing.assert_allclose(curvature, family.curvature(eta, y)[:, k], rtol=1e-5, atol=1e-6)
    slope, fisher = family.slope(eta, y), family.fisher(eta)
    for bins in np.array_split(np.argsort(eta[:, 0]), 4):
        size = np.sqrt(np.diag(fisher[bins].mean(0)))
        mean = slope[bins].mean(0) / size
        square = np.einsum("na,nb->ab", slope[bins], slope[bins]) / len(bins)
        ratios = square / (family.drawn_dispersion * np.outer(size, size))
        np.testing.assert_allclose(mean, 0, atol=0.02)
        np.testing.assert_allclose(ratios, fisher[bins].mean(0) / np.outer(size, size), atol=0.05)
        curvature = family.curvature(eta, y)[bins].mean(0)
        np.testing.assert_allclose(curvature / np.outer(size, size), ratios, atol=0.05)


def reference(name: str, X: Array, y: Array, start: Array) -> tuple[Array, float]:
    """Coefficients and dispersion by statsmodels (its own Fisher scoring diverges on some data)."""
    import statsmodels.api as sm

    design = sm.add_constant(X)
    if name.startswith("multinomial"):
        found = sm.MNLogit(y, design).fit(method="newton", maxiter=100, disp=False, tol=1e-12)
        return np.asarray(found.params).T.ravel(), 1.0
    f, links = sm.families, sm.families.links
    family = {
        "gaussian": f.Gaussian(),
        "binomial": f.Binomial(),
        "probit": f.Binomial(links.Probit()),
        "cloglog": f.Binomial(links.CLogLog()),
        "poisson": f.Poisson(),
        "gamma": f.Gamma(links.Log()),
        "negative_binomial": f.NegativeBinomial(alpha=0.5),
        "tweedie": f.Tweedie(links.Log(), var_power=1.5),
    }[name]
    model = sm.GLM(y, design, family=family)
    found = model.fit(start_params=start, method="newton", tol=1e-14, maxiter=300)
    return np.asarray(found.params), float(found.scale)


def check_oracle(name: str, features: str) -> float:
    """The largest difference to statsmodels, in standard errors; the ratio against its F."""
    family = FAMILIES[name][0]()
    X, y, truth = simulate(family, features, 3000, 5, seed=3)
    found = maximum_likelihood(X, y, family)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theta, scale = reference(name, X, y, truth)
    np.testing.assert_allclose(found.dispersion, scale, rtol=1e-6)
    difference = math.sqrt((ratio(theta, found, X, family) - 1) * len(theta))
    if difference > 1e-4:
        raise AssertionError(f"{name}, {features}: {difference:.1e} standard errors apart")
    design = np.column_stack([np.ones(len(X)), X])
    eta = design @ found.theta.reshape(family.outcomes, -1).T
    F = np.einsum("ni,nab,nj->aibj", design, family.fisher(eta), design)
    F = F.reshape(len(truth), -1) / found.dispersion
    direct = 1 + (truth - found.theta) @ F @ (truth - found.theta) / len(truth)
    np.testing.assert_allclose(ratio(truth, found, X, family), direct, rtol=1e-8)
    return difference


def check_efficiency(name: str) -> float:
    """The truth is at a mean ratio of 2 from maximum likelihood where the model is right."""
    family = FAMILIES[name][0]()
    ratios = []
    for seed in range(30):
        X, y, truth = simulate(family, "correlated", 4000, 8, seed)
        ratios.append(ratio(truth, maximum_likelihood(X, y, family), X, family))
    mean, error = float(np.mean(ratios)), float(np.std(ratios) / math.sqrt(len(ratios)))
    if abs(mean - 2) > 4 * error:
        raise AssertionError(f"{name}: the truth is at {mean:.2f} ± {error:.2f} instead of 2")
    return mean


def check_storage() -> None:
    """CSR and dense give the same estimate; every kind of features has predictors of sd 1."""
    for features in FEATURES:
        X, _, theta = simulate(Gaussian(), features, 50_000, 20, seed=0)
        np.testing.assert_allclose(np.std(X @ theta[1:]), 1, rtol=0.2)
    X, y, _ = simulate(Poisson(), "sparse", 5000, 20, seed=0, storage="csr")
    dense, _, _ = simulate(Poisson(), "sparse", 5000, 20, seed=0)
    np.testing.assert_array_equal(X.toarray(), dense)
    found = [maximum_likelihood(data, y, Poisson()).theta for data in (X, dense)]
    np.testing.assert_allclose(*found, rtol=1e-12)


def check_all() -> None:
    check_storage()
    for name in FAMILIES:
        check_derivatives(FAMILIES[name][0]())
        apart = max(check_oracle(name, features) for features in FEATURES)
        print(
            f"{name:18} derivatives right; {apart:.0e} standard errors from statsmodels; "
            f"the truth at {check_efficiency(name):.2f}, expected 2",
            flush=True,
        )
    print(f"all right; {len(CASES)} cases")
