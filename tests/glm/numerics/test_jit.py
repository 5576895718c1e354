"""Compiled functions are generic in classes, and their cache knows the sources of these classes."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numba
import numpy as np
import pytest

from tangograd.glm.numerics import jit
from tangograd.glm.numerics.jit import Compiled, compiled, compiled_method

KERNEL = """
from typing import NamedTuple
from tangograd.glm.numerics.jit import Compiled, compiled, compiled_method

class Shape(Compiled):
    @compiled_method
    def area(self, side):
        raise NotImplementedError

@compiled
def double_area(shape, side):
    return 2 * shape.area(side)
"""
SQUARE = """
from typing import NamedTuple
from kernel import Shape

class Square(Shape, NamedTuple("Fields", [("scale", float)])):
    def area(self, side):
        return self.scale * side * side
"""
CUBE = SQUARE.replace("Square", "Cube").replace("side * side", "6 * side * side")
SCRIPT = """
import importlib, json, sys
import kernel
found = {}
for name in sys.argv[1:]:
    shape = getattr(importlib.import_module(name), name.capitalize())(1.0)
    found[name] = kernel.double_area(shape, 3.0)
stats = kernel.double_area.stats
names = lambda counts: sorted(key[0].instance_class.__name__ for key in counts)
print(json.dumps([found, names(stats.cache_hits), names(stats.cache_misses)]))
"""


def run(folder, *names, script=SCRIPT, **environment):
    """Results, cache hits and cache misses of a new process."""
    paths = [str(folder), str(Path(jit.__file__).parents[3])]
    environment = {"NUMBA_CACHE_DIR": str(folder / "cache"), **environment}
    done = subprocess.run(
        [sys.executable, "-c", script, *names],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path):
    for name, text in {"kernel": KERNEL, "square": SQUARE, "cube": CUBE}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def test_an_edit_of_a_class_invalidates_what_was_compiled_for_it_alone(folder):
    areas = {"square": 18.0, "cube": 108.0}
    assert run(folder, "square", "cube") == [areas, [], ["Cube", "Square"]]
    assert run(folder, "square", "cube") == [areas, ["Cube", "Square"], []]
    (folder / "square.py").write_text(SQUARE.replace("side * side", "10 * side * side"))
    areas["square"] = 180.0
    assert run(folder, "square", "cube") == [areas, ["Cube"], ["Square"]]
    # the classes of other entries need not be there, nor are their modules imported
    (folder / "cube.py").unlink()
    assert run(folder, "square") == [{"square": 180.0}, ["Square"], []]
    (folder / "square.py").write_text(SQUARE)
    assert run(folder, "square") == [{"square": 18.0}, ["Square"], []]


def test_an_edit_of_a_base_invalidates_all(folder):
    run(folder, "square", "cube")
    (folder / "kernel.py").write_text(KERNEL + "\n# edited\n")
    assert run(folder, "square", "cube")[1:] == [[], ["Cube", "Square"]]


def test_without_a_writable_cache_functions_are_compiled_and_it_is_said_once(monkeypatch):
    def refuse(**flags):
        if flags.get("cache"):
            raise RuntimeError("cannot cache function 'f': no locator available for file 'f.py'")
        return numba.njit(**flags)

    monkeypatch.setattr(jit, "numba", SimpleNamespace(njit=refuse))
    jit._warn_uncached.cache_clear()
    with pytest.warns(RuntimeWarning, match="set NUMBA_CACHE_DIR") as warned:
        functions = [compiled(f) for f in (lambda x: x + 1, lambda x: x + 2)]
    assert len(warned) == 1
    assert [f(1.0) for f in functions] == [2.0, 3.0]


def test_a_package_in_a_read_only_place_can_be_imported(folder):
    """numba looks for a place to write to by its locators, and none finds one."""
    script = """
import json, sys, warnings
from numba.core import caching
for locator in caching.CacheImpl._locator_classes:
    locator.from_function = classmethod(lambda *_: None)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from tangograd.glm.families import by_name, evaluate
    loss = evaluate(by_name("poisson"), [0.0], [1.0]).loss[0]
print(json.dumps([loss, sum("NUMBA_CACHE_DIR" in str(w.message) for w in caught)]))
"""
    assert run(folder, script=script) == [1.0, 1]


class Pair(Compiled, NamedTuple("PairFields", [("a", float), ("b", float)])):
    @compiled_method
    def total(self):
        return self.a + self.b


class Difference(Pair):
    def total(self):
        return self.a - self.b


class Nothing(Compiled, NamedTuple("NothingFields", [])):
    def total(self):
        return 7.0


@compiled
def doubled(pair):
    return 2 * pair.total()


@compiled
def returned(pair):
    return pair


def test_methods_are_those_of_the_class():
    for value in (Pair(3.0, 1.0), Difference(3.0, 1.0), Nothing()):
        assert doubled(value) == 2 * value.total()


def test_instances_come_back_from_compiled_functions():
    assert returned(Difference(3.0, 1.0)) == Difference(3.0, 1.0)


def test_classes_differ_where_their_tuples_do_not():
    assert Pair(1.0, 2.0) == Pair(1.0, 2.0)
    assert Pair(1.0, 2.0) != Difference(1.0, 2.0)
    assert len({Pair(1.0, 2.0), Difference(1.0, 2.0), Pair(1.0, 2.0)}) == 2
    assert Nothing()
    assert pickle.loads(pickle.dumps(Difference(1.0, 2.0))) == Difference(1.0, 2.0)


def test_types_are_pickled_by_name_and_digest(monkeypatch):
    kind = numba.typeof(Pair(1.0, 2.0))
    stored = pickle.dumps(kind)
    assert pickle.loads(stored) == kind
    monkeypatch.setattr(Pair, "source_digest", "another")
    absent = pickle.loads(stored)
    assert absent != kind
    assert absent != numba.typeof(Pair(1.0, 2.0))
    again = pickle.dumps(absent)
    monkeypatch.undo()
    assert pickle.loads(again) == kind


def test_other_errors_of_compilation_are_not_hidden(monkeypatch):
    def fail(**flags):
        raise RuntimeError("another reason")

    monkeypatch.setattr(jit, "numba", SimpleNamespace(njit=fail))
    with pytest.raises(RuntimeError, match="another reason"):
        compiled(np.sum)
