"""Work in the background: order, errors, and an end at any time."""

import threading
import time

import pytest

from tangograd.glm.commands.ahead import AHEAD, Ahead


def test_items_come_in_order():
    items = Ahead(iter(range(50)), lambda number: [(number, k) for k in range(number % 3)])
    assert list(items) == [(number, k) for number in range(50) for k in range(number % 3)]


def test_it_is_ahead_but_not_far():
    made = []

    def work(number):
        made.append(number)
        yield number

    items = iter(Ahead(iter(range(50)), work))
    assert next(items) == 0
    time.sleep(0.3)
    assert 1 < len(made) <= AHEAD + 2
    items.close()


@pytest.mark.parametrize("where", ["source", "work"])
def test_errors_are_raised_where_the_items_are_used(where):
    def source():
        yield 1
        if where == "source":
            raise ValueError("broken")
        yield 2

    def work(number):
        if number == 2:
            raise ValueError("broken")
        return [number]

    found = []
    with pytest.raises(ValueError, match="broken"):
        found.extend(Ahead(source(), work))
    before = threading.active_count()
    items = iter(Ahead(source(), work))
    assert next(items) == 1
    items.close()
    time.sleep(0.2)
    assert threading.active_count() <= before


def test_stopped_while_the_source_waits():
    release = threading.Event()

    def source():
        yield 1
        yield 2
        release.wait(10)
        yield 3

    items = Ahead(source(), lambda number: [number])
    found = []
    start = time.perf_counter()
    for item in items:
        found.append(item)
        if item == 2:
            items.stop()
    assert found == [1, 2]
    assert time.perf_counter() - start < 5
    release.set()


def test_what_is_made_when_stopped_is_not_lost():
    items = Ahead(iter(range(1000)), lambda number: [number])
    found = []
    for item in items:
        found.append(item)
        if item == 5:
            time.sleep(0.2)
            items.stop()
    assert found == list(range(len(found)))
    assert 6 <= len(found) <= 6 + AHEAD + 2
