"""The grammar of formulas: what it accepts agrees with formulaic, all else is refused unevaluated."""

import builtins
import os
import time

import numpy as np
import pandas as pd
import pytest
from formulaic import model_matrix

from tangograd.glm.designs.expressions import BINARY, FUNCTIONS, NEGATIVE
from tangograd.glm.designs.formula import MAX_OPERATIONS, MAX_TERMS, parse
from tangograd.glm.designs.terms import expand
from tangograd.glm.designs.tokens import ALLOWED, MAX_DEPTH, MAX_LENGTH
from tangograd.glm.errors import DataError

COLUMNS = {"a": False, "b": False, "odd name": False, "g": True, "h": True}


def terms(text, columns=COLUMNS, others=()):
    """Each term as a text; a level's name stands for all but the baseline, ``g*`` for all."""
    return [
        ":".join(part.factor.expression.text + "*" * part.full for part in term.parts)
        for term in expand(parse(text, columns, others))
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ["a"]),
        ("a + b", ["a", "b"]),
        ("a + a", ["a"]),
        ("a:b", ["a:b"]),
        ("a*b", ["a", "b", "a:b"]),
        ("a*b - a", ["b", "a:b"]),
        ("(a + b):g - 1", ["a:g*", "b:g*"]),
        ("(a + b)*g", ["a", "b", "g", "a:g", "b:g"]),
        ("g", ["g"]),
        ("g - 1", ["g*"]),
        ("C(g) + g", ["g"]),
        ("a:g", ["a:g*"]),
        ("g:h", ["h", "g:h*"]),
        ("(a + g + h)^2", ["a", "g", "h", "a:g", "a:h", "g:h"]),
        ("(a + g + h)**2 - a:g", ["a", "g", "h", "a:h", "g:h"]),
        ("a^2", ["I(a ** 2)"]),
        ("(a)^3", ["I(a ** 3)"]),
        ("log(a)**2 + a", ["I(log(a) ** 2)", "a"]),
        ("log(a):g + g", ["g", "log(a):g*"]),
        ("`odd name` + Q('odd name') + log(`odd name`)", ["`odd name`", "log(`odd name`)"]),
        ("I(a + b) + I((a+b))", ["I(a + b)"]),
        ("sqrt(abs(-a)) + exp(+a / 2)", ["sqrt(abs(-a))", "exp(a / 2)"]),
        ("I(a - (b - 1) - 2)", ["I(a - (b - 1) - 2)"]),
        ("I(-a**2) + I((-a)**2) + I(a^-1)", ["I(-a ** 2)", "I((-a) ** 2)", "I(a ** -1)"]),
        ("I(a * (b + .5e1) / 2.)", ["I(a * (b + 5) / 2)"]),
        ("a - a", []),
        ("- a + b", ["b"]),
        ("1", []),
    ],
)
def test_terms(text, expected):
    assert terms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (".", ["a", "g"]),
        (". - a", ["g"]),
        (". + log(a)", ["a", "g", "log(a)"]),
        (".^2", ["a", "g", "a:g"]),
        ("b + .:h", ["b", "a:h*", "h", "g:h*"]),
    ],
)
def test_a_dot_is_all_other_columns(text, expected):
    assert terms(text, others=["a", "g"]) == expected
    assert parse(text, COLUMNS, ["a", "g"]).everything


@pytest.mark.parametrize(
    ("text", "intercept"),
    [
        ("a", True),
        ("a - 1", False),
        ("a + 0", False),
        ("0 + a", False),
        ("-1 + a", False),
        ("1 + a", True),
        ("a - 1 + 1", True),
        ("a - 0", True),
    ],
)
def test_intercept(text, intercept):
    assert parse(text).intercept is intercept


@pytest.mark.parametrize(
    ("text", "target"),
    [("y ~ a", "y"), ("~ a", None), ("a", None), ("`my y` ~ a", "my y"), ('Q("y") ~ a', "y")],
)
def test_target(text, target):
    assert parse(text).target == target


@pytest.mark.parametrize(
    ("level", "expected"),
    [('"north"', "north"), ("'a b'", "a b"), ("3", "3"), ("-2.5", "-2.5"), ("True", "true")],
)
def test_baseline(level, expected):
    assert parse(f"C(g, baseline={level}) + a", COLUMNS).baselines == {"g": expected}


@pytest.mark.parametrize(
    "text",
    [
        "a + log(b) + I(a**2)",
        "a*b*g - a:b:g",
        "g*h + a:g",
        "a:g - 1",
        "g:h:a",
        "(a + b + g)**2 - 1",
        "sqrt(b) * h",
        "I(a / (b + 1) - 2 * a) + g:h",
        "exp(a) + log1p(b) + abs(a)",
    ],
)
def test_values_and_coding_agree_with_formulaic(text):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=40), "b": rng.uniform(0.5, 2, size=40)})
    table["g"] = pd.Categorical(rng.choice(list("uvw"), size=40))
    table["h"] = pd.Categorical(rng.choice(list("xyz"), size=40))
    functions = {"sqrt": np.sqrt, "log1p": np.log1p, "abs": np.abs}
    theirs = model_matrix(text, table, context=functions)
    formula = parse(text, {"a": False, "b": False, "g": True, "h": True})
    width = formula.intercept
    for term in expand(formula):
        values = np.ones(40)
        for part in term.numbers:
            values = values * part.value({"a": table["a"].array, "b": table["b"].array})
        sizes = [3 if full else 2 for _, full in term.categories]
        if not sizes:
            np.testing.assert_allclose(values, theirs[term.name({})], rtol=1e-14)
        width += int(np.prod(sizes))
    assert width == theirs.shape[1] == np.linalg.matrix_rank(theirs.to_numpy())


def test_texts_of_expressions_can_be_parsed_again():
    """A random expression, written and read, is the same."""
    rng = np.random.default_rng(1)

    def grow(depth):
        kind = rng.integers(5) if depth else rng.integers(2)
        if kind == 0:
            return rng.choice(["a", "b"])
        if kind == 1:
            return str(rng.integers(1, 9))
        if kind == 2:
            return f"-({grow(depth - 1)})"
        if kind == 3:
            return f"{rng.choice(list(FUNCTIONS))}({grow(depth - 1)})"
        operator = rng.choice(list(BINARY))
        right = "2" if operator == "**" else f"({grow(depth - 1)})"
        return f"({grow(depth - 1)}){operator}{right}"

    for _ in range(200):
        (first,) = parse(f"I(a + {grow(4)})").factors
        (again,) = parse(first.expression.text).factors
        assert again == first
        data = {"a": np.array([0.3]), "b": np.array([1.7])}
        with np.errstate(all="ignore"):
            ours = first.expression.value(data)
            python = eval(
                first.expression.text,
                {**{name: FUNCTIONS[name].apply for name in FUNCTIONS}, **data},
            )
        np.testing.assert_array_equal(ours, np.asarray(python, dtype=float))
    assert NEGATIVE.symbol == "-"


HOSTILE = [
    "I(__import__('os').system('touch owned'))",
    "__import__('os')",
    "a + __builtins__",
    "a.__class__",
    "I(a.__class__.__mro__)",
    "a.b",
    "I(a.real)",
    "I((lambda: 0)())",
    "lambda x: x",
    "I([x for x in a])",
    "[a]",
    "{a}",
    "I(a[0])",
    "f'{a}'",
    'I(f"{a}")',
    "I('text')",
    "I(a if b else a)",
    "I(a and b)",
    "I(a == b)",
    "I(a := 1)",
    "I(a % 2)",
    "I(a // 2)",
    "I(a @ b)",
    "I(~a)",
    "eval('a')",
    "exec('a')",
    "open('/etc/passwd')",
    "getattr(a, 'b')",
    "I(open('x'))",
    "np.log(a)",
    "numpy.exp(a)",
    "log(a)(b)",
    "log(a, b)",
    "log()",
    "log(a=b)",
    "I(*a)",
    "a; b",
    "a\\b",
    "a # b",
    "a \x00 b",
    "a $ b",
    "a | b",
    "a % b",
    "a %in% b",
    "a / b",
    "2 * a",
    "a + 2",
    "(a + 1)",
    "a:1",
    "a^0",
    "a^1.5",
    "a^b",
    "a^99",
    "I(a**b)",
    "I(a**2**3)",
    "I(1e999 * a)",
    "I(2)",
    "log(2)",
    "a b",
    "a +",
    "+",
    "",
    "   ",
    "()",
    "(a",
    "a)",
    "I(a",
    "a ~ b ~ a",
    "a + b ~ a",
    "1 ~ a",
    "0",
    "- 1",
    "ｌｏｇ(a)",  # fullwidth letters, which Python itself would read as log
    "lоg(a)",  # a Cyrillic o
    "а + b",  # a Cyrillic a
    "a − b",  # a minus sign that is none
    "a\u2028+ `b\n`",
    "a + `",
    "``",
    "a + `b` `",
    "`__import__('os')`",
    "`a` ; import os ; `b`",
    "Q(a)",
    "Q('a' + 'b')",
    "Q('a\\x41')",
    "C()",
    "C(log(a))",
    "C(a + b)",
    "C(g, contr=__import__('os'))",
    "C(g, contr.treatment(base='x'))",
    "C(g, Treatment('x'))",
    "C(g, baseline=open('x'))",
    "C(g, baseline=[1])",
    "C(g, baseline=lambda: 1)",
    "C(g, baseline)",
    "C(g, baseline='x', baseline='y')",
    "C(g, baseline='x') + C(g, baseline='y')",
    "C(g)^2",
    "g^2",
    "log(g)",
    "I(g + 1)",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_everything_else_is_refused_before_anything_is_evaluated(text, monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("evaluated")

    with monkeypatch.context() as patch:
        for name in ("eval", "exec", "open"):
            patch.setattr(builtins, name, forbidden)
        patch.setattr(os, "system", forbidden)
        with pytest.raises(DataError) as refusal:
            parse(text, COLUMNS)
    said = str(refusal.value)
    assert ALLOWED in said or "is not in the data" in said or "neither columns" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agee", "column 'agee' (in the formula) is not in the data; its columns are: age"),
        ("agee", "Did you mean 'age'?"),
        ("scale(age)", "its state would be that of the first chunk alone"),
        ("poly(age, 2)", "powers are I(x**2)"),
        ("bs(age, df=4)", "Write the transformed column into the data"),
        ("I(center(age) + 1)", "center() learns from the data"),
        ("hashed(age)", "learns from the data"),
        ("sin(age)", "the function sin is not allowed. A formula may hold"),
        ("C(age, Treatment(1))", 'C(column, baseline="level")'),
        ("Treatment(age)", 'C(column, baseline="level")'),
        ("age / age", "write I(a / b) for the ratio"),
        ("age.x", "back-quoted, as in `a.b`"),
        ("log(y) ~ age", "use a family with a log link (--family poisson"),
        ("y ~ age + y", "the target 'y' cannot explain itself"),
        ("age + @", "character 7, near 'age + @': '@' is not allowed"),
        ("2 * age", "outside of I(...) numbers are 0 or 1"),
        ("age +", "it ends too early"),
    ],
)
def test_refusals_say_why_and_the_way_out(text, said):
    with pytest.raises(DataError) as refusal:
        parse(text, {"age": False, "y": False})
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a" * (MAX_LENGTH + 1), f"at most {MAX_LENGTH} are read"),
        ("(" * 9000 + "a" + ")" * 9000, f"more than {MAX_DEPTH} deep"),
        ("I(" + "(" * 9000 + "a" + ")" * 9000 + ")", f"more than {MAX_DEPTH} deep"),
        ("I(" + "-" * 9000 + "a)", f"more than {MAX_DEPTH} deep"),
        ("log(" * 3000 + "a" + ")" * 3000, f"more than {MAX_DEPTH} deep"),
        ("I(" + "+".join(["a"] * 5000) + ")", f"more than {MAX_OPERATIONS} operations"),
        ("*".join(f"C(x{i})" for i in range(30)), "an interaction of 7 factors"),
        ("(" + "+".join(f"x{i}" for i in range(60)) + ")^9", f"more than {MAX_TERMS}"),
        ("+".join(["a:b"] * 4000), f"more than {MAX_TERMS}"),
    ],
)
def test_long_and_deep_formulas_are_refused_at_once(text, said):
    start = time.perf_counter()
    with pytest.raises(DataError, match="formula") as refusal:
        parse(text)
    assert said in str(refusal.value)
    assert len(str(refusal.value)) < 1000
    assert time.perf_counter() - start < 1


def test_the_deepest_that_is_allowed():
    (factor,) = parse("I(" + "(" * 18 + "a" + ")" * 18 + ")").factors
    assert factor.expression.text == "I(a)"


def test_formulaic_sees_no_text_of_the_user(monkeypatch):
    import formulaic

    seen = []
    real = formulaic.model_matrix

    def spy(text, table, **options):
        seen.append((text, tuple(table.columns)))
        return real(text, table, **options)

    monkeypatch.setattr(formulaic, "model_matrix", spy)
    expand(parse("`os.system('x')`*C(g) + log(b)"))
    assert seen == [("1 + ((f00000 * f00001) + f00002)", ("f00000", "f00001", "f00002"))]
