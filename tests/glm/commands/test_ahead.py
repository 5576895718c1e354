"""Work in the background: order, errors, and an end at any time."""

import threading
import time

import pytest

from tangograd.glm.commands import ahead
from tangograd.glm.commands.ahead import AHEAD, Ahead


def test_items_come_in_order():
    items = Ahead(iter(range(50)), lambda number: [(number, k) for k in range(number % 3)])
    assert list(items) == [(number, k) for number in range(50) for k in range(number % 3)]


def test_whatever_the_source_gives_is_an_item():
    assert list(Ahead(iter([1, None, 0]), lambda item: [item, None])) == [
        1,
        None,
        None,
        None,
        0,
        None,
    ]


def test_the_end_of_the_source_is_noticed_at_once(monkeypatch):
    monkeypatch.setattr(ahead, "WAIT", 10.0)
    ended = []

    def source():
        yield 1
        time.sleep(0.12)
        ended.append(time.perf_counter())

    assert list(Ahead(source(), lambda item: [item])) == [1]
    assert time.perf_counter() - ended[0] < 5


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
    assert 6 <= len(found) <= 6 + 2 * (AHEAD + 1)


def test_what_was_read_before_the_source_broke_is_not_lost():
    def source():
        yield from range(5)
        raise ValueError("broken")

    found = []
    with pytest.raises(ValueError, match="broken"):
        for item in Ahead(source(), lambda number: [number]):
            time.sleep(0.02)
            found.append(item)
    assert found == list(range(5))


@pytest.mark.parametrize("slow", ["source", "use"])
def test_the_work_is_done_by_whoever_has_time(slow):
    workers = []

    def source():
        for number in range(20):
            time.sleep(0.01 if slow == "source" else 0)
            yield number

    def work(number):
        workers.append(threading.current_thread() is threading.main_thread())
        return [number]

    for _ in Ahead(source(), work):
        time.sleep(0.01 if slow == "use" else 0)
    assert len(workers) == 20
    assert sum(workers) > 15 if slow == "source" else sum(workers) < 5


def test_the_work_is_never_done_twice_at_once():
    busy = threading.Lock()

    def work(number):
        assert busy.acquire(blocking=False)
        time.sleep(0.001)
        yield number
        busy.release()

    assert list(Ahead(iter(range(100)), work)) == list(range(100))
