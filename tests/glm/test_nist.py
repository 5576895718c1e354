"""Linear regressions of the NIST Statistical Reference Datasets, which strain the arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import statsmodels.api as sm

from tangograd.glm import TangoRegressor

#: NIST's Filip: y and x of a polynomial of degree 10
FILIP = """
    0.8116 -6.860120914  0.9072 -4.324130045  0.9052 -4.358625055  0.9039 -4.358426747
    0.8053 -6.955852379  0.8377 -6.661145254  0.8667 -6.355462942  0.8809 -6.118102026
    0.7975 -7.115148017  0.8162 -6.815308569  0.8515 -6.519993057  0.8766 -6.204119983
    0.8885 -5.853871964  0.8859 -6.109523091  0.8959 -5.79832982  0.8913 -5.482672118
    0.8959 -5.171791386  0.8971 -4.851705903  0.9021 -4.517126416  0.909 -4.143573228
    0.9139 -3.709075441  0.9199 -3.499489089  0.8692 -6.300769497  0.8872 -5.953504836
    0.89 -5.642065153  0.891 -5.031376979  0.8977 -4.680685696  0.9035 -4.329846955
    0.9078 -3.928486195  0.7675 -8.56735134  0.7705 -8.363211311  0.7713 -8.107682739
    0.7736 -7.823908741  0.7775 -7.522878745  0.7841 -7.218819279  0.7971 -6.920818754
    0.8329 -6.628932138  0.8641 -6.323946875  0.8804 -5.991399828  0.7668 -8.781464495
    0.7633 -8.663140179  0.7678 -8.473531488  0.7697 -8.247337057  0.77 -7.971428747
    0.7749 -7.676129393  0.7796 -7.352812702  0.7897 -7.072065318  0.8131 -6.774174009
    0.8498 -6.478861916  0.8741 -6.159517513  0.8061 -6.835647144  0.846 -6.53165267
    0.8751 -6.224098421  0.8856 -5.910094889  0.8919 -5.598599459  0.8934 -5.290645224
    0.894 -4.974284616  0.8957 -4.64454848  0.9047 -4.290560426  0.9129 -3.885055584
    0.9209 -3.408378962  0.9219 -3.13200249  0.7739 -8.726767166  0.7681 -8.66695597
    0.7665 -8.511026475  0.7703 -8.165388579  0.7702 -7.886056648  0.7761 -7.588043762
    0.7809 -7.283412422  0.7961 -6.995678626  0.8253 -6.691862621  0.8602 -6.392544977
    0.8809 -6.067374056  0.8301 -6.684029655  0.8664 -6.378719832  0.8834 -6.065855188
    0.8898 -5.752272167  0.8964 -5.132414673  0.8963 -4.811352704  0.9074 -4.098269308
    0.9119 -3.66174277  0.9228 -3.2644011
"""
#: NIST's Wampler3 to 5: what is added to y of Wampler1, times 1, 100 and 10,000
_HALF = [759, -2048, 2048, -2048, 2523, -2048, 2048, -2048, 1838, -2048]
WAMPLER_ERRORS = np.array([*_HALF, 2048, *_HALF[::-1]])


def least_squares(X, y):
    """Return coefficients and standard errors in exact arithmetic."""
    x = [[Fraction(1), *map(Fraction, row)] for row in X.tolist()]
    y = list(map(Fraction, y.tolist()))
    n, p = len(x), len(x[0])
    rows = [
        [
            *(sum(row[i] * row[j] for row in x) for j in range(p)),
            *(Fraction(i == j) for j in range(p)),
            sum(row[i] * target for row, target in zip(x, y, strict=True)),
        ]
        for i in range(p)
    ]
    for j in range(p):
        rows[j] = [entry / rows[j][j] for entry in rows[j]]
        for i in range(p):
            if i != j:
                rows[i] = [a - rows[i][j] * b for a, b in zip(rows[i], rows[j], strict=True)]
    b = [row[-1] for row in rows]
    rest = [
        t - sum(u * v for u, v in zip(row, b, strict=True)) for row, t in zip(x, y, strict=True)
    ]
    variance = sum(r * r for r in rest) / (n - p)
    return np.array(b, float), np.sqrt([float(variance * rows[j][p + j]) for j in range(p)])


def digits(found, certified):
    """Return how many digits agree in the worst number."""
    scale = np.where(certified == 0, 1.0, np.abs(certified))
    return -np.log10(max(np.max(np.abs(found - certified) / scale), 1e-14))


def longley():
    data = sm.datasets.longley.load()
    return np.asarray(data.exog, float), np.asarray(data.endog, float)


def wampler(number):
    x = np.arange(21.0)
    X = np.column_stack([x**k for k in range(1, 6)])
    if number == 2:
        return X, np.array([float(sum(Fraction(i, 10) ** k for k in range(6))) for i in range(21)])
    size = {1: 0, 3: 1, 4: 100, 5: 10_000}[number]
    return X, 1 + X.sum(axis=1) + size * WAMPLER_ERRORS


CASES = {"Longley": longley} | {
    f"Wampler{number}": lambda number=number: wampler(number) for number in range(1, 6)
}


@pytest.mark.parametrize("name", CASES)
def test_certified_values_to_as_many_digits_as_statsmodels(name):
    X, y = CASES[name]()
    estimates, errors = least_squares(X, y)
    ours = TangoRegressor().fit(X, y).fitted_
    theirs = sm.OLS(y, sm.add_constant(X)).fit()
    assert digits(ours.estimates, estimates) > digits(theirs.params, estimates) - 1
    if errors.max() > 1e-9:  # otherwise the fit is perfect, and the rest is rounding
        assert digits(ours.standard_errors, errors) > digits(theirs.bse, errors) - 1
    else:
        assert ours.standard_errors.max() < 1e-7
    assert ours.notes == ()


def test_longley_is_certified():
    estimates, errors = least_squares(*longley())
    assert digits(estimates[:2], np.array([-3482258.63459582, 15.0618722713733])) > 13
    assert digits(errors[:2], np.array([890420.383607373, 84.9149257747669])) > 13


def test_filip_is_reported_as_undetermined():
    y, x = np.array(FILIP.split(), float).reshape(82, 2).T
    notes = " ".join(TangoRegressor().fit(np.vander(x, 11)[:, -2::-1], y).fitted_.notes)
    assert "left out, since they depend linearly on the columns before them: x9" in notes
    assert "do not determine the coefficients of x1, x2, x3" in notes
