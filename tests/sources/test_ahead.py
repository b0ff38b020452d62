"""Reading ahead: in order, not too far, errors in their turn."""

import threading
import time

import pytest

from somf.sources.ahead import Ahead, read_ahead


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_results_come_in_order(depth):
    assert list(read_ahead(lambda x: 10 * x, range(20), depth)) == [
        (i, 10 * i) for i in range(20)
    ]


@pytest.mark.parametrize("depth", [0, 2])
def test_nothing_to_read(depth):
    assert list(read_ahead(str, [], depth)) == []


@pytest.mark.parametrize("depth", [1, 3])
def test_reads_ahead_but_not_further(depth):
    begun = []
    for item, _ in read_ahead(lambda x: begun.append(x), range(10), depth):
        time.sleep(0.02)  # the reader could go on
        # `item` is in use, `depth` more wait
        assert begun[-1] == min(item + depth, 9)


def test_reads_in_a_thread_of_its_own_unless_depth_is_zero():
    def name(_):
        return threading.current_thread().name

    assert next(read_ahead(name, [0], 2))[1].startswith("somf-reader")
    assert next(read_ahead(name, [0], 0))[1] == threading.current_thread().name


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_comes_when_its_turn_has_come(depth):
    def read(x):
        if x == 3:
            raise OSError("bad sector")
        return x

    stream = read_ahead(read, range(10), depth)
    assert [next(stream) for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
    with pytest.raises(OSError, match="bad sector"):
        next(stream)


def test_leaving_early_ends_the_thread():
    before = threading.active_count()
    for _ in read_ahead(lambda x: x, range(1000), 2):
        break
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_items_are_drawn_no_further_than_needed():
    drawn = []

    def items():
        for i in range(10):
            drawn.append(i)
            yield i

    stream = read_ahead(lambda x: x, items(), 2)
    next(stream)
    assert drawn == [0, 1, 2]
    stream.close()


def test_what_waits_is_not_read_after_leaving():
    begun, waits, go_on = [], threading.Event(), threading.Event()

    def read(item):
        begun.append(item)
        if item == 1:
            waits.set()
            go_on.wait(10)

    stream = read_ahead(read, range(10), 3)
    next(stream)
    assert waits.wait(10)
    closing = threading.Thread(target=stream.close)
    closing.start()
    time.sleep(0.05)  # it now waits for item 1, and has given up 2 and 3
    go_on.set()
    closing.join()
    assert begun == [0, 1]


def test_what_was_begun_is_read_meanwhile_and_once():
    done, reads = threading.Event(), []

    def read(x):
        reads.append((x, threading.current_thread().name))
        done.set()
        return 10 * x

    ahead = Ahead(read)
    ahead.begin("a", 3)
    assert done.wait(5)  # nobody has asked for it yet
    assert ahead.take("a", 3) == 30
    assert ahead.take("a", 3) == 30  # a second time is another read
    ahead.begin("b", 4)
    assert ahead.take("c", 5) == 50  # not what was expected
    assert [x for x, _ in reads if x != 4] == [3, 3, 5]  # 4 may not have begun
    assert {name.split("_")[0] for _, name in reads} == {"somf-reader"}
    ahead.close()


def test_an_error_of_what_was_begun():
    def read(x):
        if x == 3:
            raise OSError("bad sector")
        return x

    ahead = Ahead(read)
    ahead.begin("a", 3)
    with pytest.raises(OSError, match="bad sector"):
        ahead.take("a", 3)
    ahead.begin("a", 3)
    assert ahead.take("b", 4) == 4  # nobody wants to know
    ahead.close()
