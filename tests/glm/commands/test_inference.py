"""Families and classes of targets."""

import numpy as np
import pytest

from tangograd.glm.commands.inference import infer
from tangograd.glm.errors import DataError


@pytest.mark.parametrize(
    ("kind", "values", "options", "family", "classes"),
    [
        ("number", [0.0], {}, "binomial", (0, 1)),  # the first rows of sorted data
        ("number", [1.0, 0.0], {}, "binomial", (0, 1)),
        ("number", [3.0, 1.0], {}, "binomial", (1, 3)),
        ("number", [0.0, 1.0, 2.0], {}, "poisson", None),
        ("number", [7.0], {}, "poisson", None),
        ("number", [0.5, 1.0, 2.0], {}, "gaussian", None),
        ("number", [-1.0, 0.0, 2.0], {}, "gaussian", None),
        ("boolean", [False, True], {}, "binomial", (False, True)),
        ("boolean", [False, True], {"name": "gaussian"}, "gaussian", None),
        ("text", ["b", "a"], {}, "binomial", ("a", "b")),
        ("text", ["b", "a", "c"], {}, "multinomial", ("a", "b", "c")),
        ("text", ["b", "a"], {"name": "multinomial"}, "multinomial", ("a", "b")),
        ("text", [], {"given": ["b", "a"]}, "binomial", ("b", "a")),
        ("number", [], {"given": [2, 1.0, "3"]}, "multinomial", (2, 1, 3)),
        ("boolean", [], {"given": ["True", False]}, "binomial", (True, False)),
        ("number", [0.0, 1.0], {"name": "binomial"}, "binomial", (0, 1)),
        ("number", [0.0, 0.25, 1.0], {"name": "binomial"}, "binomial", None),
        ("number", [0.25, 0.75], {"name": "binomial"}, "binomial", None),
        ("number", [1.0, 2.0], {"name": "binomial"}, "binomial", (1, 2)),
        ("number", [3.0, 1.0, 2.0], {"name": "multinomial"}, "multinomial", (1, 2, 3)),
        ("number", [0.0, 1.0], {"name": "poisson"}, "poisson", None),
    ],
)
def test_table_of_targets(kind, values, options, family, classes):
    target = infer("y", kind, values, **options)
    assert target.family.name == family
    assert target.classes == classes
    assert bool(target.reason) == ("name" not in options)


@pytest.mark.parametrize(
    ("kind", "values", "options", "text"),
    [
        ("number", [], {}, "no values where it was looked at"),
        ("text", ["a"], {}, "one class only"),
        ("text", [f"t{i}" for i in range(21)], {}, "more than 20 different values"),
        ("text", [f"t{i}" for i in range(1001)], {"name": "multinomial"}, "more than 1000"),
        ("text", ["a", "b", "c"], {"name": "binomial"}, "use --family multinomial"),
        ("text", ["a", "b"], {"name": "gamma"}, "gamma models numbers"),
        ("number", [1.0], {"given": ["a", "b"]}, "the target, which holds numbers"),
        ("boolean", [], {"given": ["a", "b"]}, "the target, which holds true or false"),
    ],
)
def test_what_is_refused(kind, values, options, text):
    with pytest.raises(DataError, match=text):
        infer("y", kind, values, **options)


@pytest.mark.parametrize(
    ("kind", "classes", "values"),
    [
        ("number", [0, 1], np.array([1.0, 0.0, 1.0])),
        ("number", [2, 0.5], np.array([0.5, 2.0, 0.5])),
        ("text", ["b", "a"], np.array(["a", "b", "a"], dtype=object)),
        ("boolean", [False, True], np.array([True, False, True])),
    ],
)
def test_numbers_of_classes(kind, classes, values):
    target = infer("y", kind, [], given=classes)
    assert target.numbers(values, str).tolist() == [1, 0, 1]
    odd = np.array([*values[:2], {"text": "aa"}.get(kind, 7.0)], dtype=values.dtype)
    if kind != "boolean":
        with pytest.raises(DataError, match=r"place 2: the target 'y' is .*(--levels|--family)"):
            target.numbers(odd, "place {}".format)
