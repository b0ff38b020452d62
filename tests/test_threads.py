"""A team shares work in order, and leaves BLAS as it was."""

import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from somf.threads import Team, resolve_n_threads


def blas_threads():
    return {
        pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"
    }


@pytest.fixture
def three_blas_threads():
    """What the user has chosen: neither our limit nor the number of cores."""
    with threadpool_limits(limits=3, user_api="blas"):
        if blas_threads() != {3}:
            pytest.skip("the number of threads of this BLAS cannot be set")
        yield
        assert blas_threads() == {3}


@given(st.integers(1, 9), st.integers(0, 100), st.integers(0, 40))
def test_slices_cover_the_range_in_order(n_threads, n, smallest):
    slices = Team(n_threads).slices(n, smallest)
    assert 1 <= len(slices) <= n_threads
    covered = [i for start, stop in slices for i in range(start, stop)]
    assert covered == list(range(n))
    sizes = [stop - start for start, stop in slices]
    assert max(sizes) - min(sizes) <= 1
    assert len(slices) == 1 or min(sizes) >= max(1, smallest)


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 2, 17])
def test_share_returns_results_in_order(n, n_threads):
    with Team(n_threads) as team:
        parts = team.share(lambda start, stop: list(range(start, stop)), n)
        assert [i for part in parts for i in part] == list(range(n))
        assert len(parts) == len(team.slices(n))


def test_share_uses_every_thread_once():
    barrier = threading.Barrier(3, timeout=60)

    def meet(start, stop):
        barrier.wait()  # passes only if three threads are here at the same time
        return threading.get_ident()

    with Team(3) as team:
        idents = team.share(meet, 3)
    assert len(set(idents)) == 3
    assert idents[0] == threading.get_ident()  # the caller works too


def test_one_thread_works_without_others():
    before = threading.active_count()
    with Team(1) as team:
        assert team.share(lambda *part: (part, threading.active_count()), 10) == [
            ((0, 10), before)
        ]
        team.start(lambda: pytest.fail("there is nobody else to do this"))
        assert not team.busy
        team.finish()


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_error_of_a_task_reaches_the_caller(culprit, n_threads):
    done = []

    def task(start, stop):
        if start <= culprit < stop:
            raise ZeroDivisionError(start)
        done.append(start)

    with Team(n_threads) as team:
        with pytest.raises(ZeroDivisionError):
            team.share(task, 3)
        # Nobody is still at work when the error is raised, and the team goes on.
        assert len(done) == n_threads - 1
        assert team.share(lambda start, stop: stop, 3)[-1] == 3


def test_together_runs_all_at_the_same_time():
    barrier = threading.Barrier(3, timeout=60)
    seen = []

    def meet(i):
        barrier.wait()
        seen.append(i)

    with Team(4) as team:
        team.together(meet, 3, give_up=barrier.abort)
    assert sorted(seen) == [0, 1, 2]


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_error_of_one_releases_those_that_wait_for_it(culprit):
    barrier = threading.Barrier(3)

    def meet(i):
        if i == culprit:
            raise KeyboardInterrupt
        barrier.wait(timeout=60)

    with Team(3) as team:
        with pytest.raises((KeyboardInterrupt, threading.BrokenBarrierError)):
            team.together(meet, 3, give_up=barrier.abort)
        assert barrier.broken
        assert team.share(lambda start, stop: (start, stop), 3) == team.slices(3)


def test_background_work_runs_until_finish():
    go = threading.Event()
    finished = []

    def work():
        assert go.wait(60)
        finished.append(threading.get_ident())

    with Team(3) as team:
        assert not team.busy
        team.start(work)
        assert team.busy
        # The others are busy: the caller does all slices, which are the same.
        callers = team.share(lambda start, stop: threading.get_ident(), 3)
        assert callers == [threading.get_ident()] * 3
        go.set()
        team.finish()
        assert not team.busy
    assert len(finished) == 2
    assert threading.get_ident() not in finished


def test_error_of_background_work_is_raised_by_finish():
    def fail():
        raise ZeroDivisionError

    with Team(2) as team:
        team.start(fail)
        with pytest.raises(ZeroDivisionError):
            team.finish()
        assert not team.busy
        team.finish()  # the error was told once


def test_error_of_background_work_waits_for_the_others():
    first, go, finished = threading.Lock(), threading.Event(), []

    def work():
        if first.acquire(blocking=False):
            raise ZeroDivisionError
        go.wait(60)
        finished.append(True)

    with Team(3) as team:
        team.start(work)
        timer = threading.Timer(0.1, go.set)
        timer.start()
        with pytest.raises(ZeroDivisionError):
            team.finish()
        assert finished  # nobody is at work any more
        timer.join()


def test_threads_end_with_the_team():
    before = threading.active_count()
    with Team(4) as team:
        team.share(lambda start, stop: None, 4)
        assert threading.active_count() > before
    assert threading.active_count() == before
    with pytest.raises(AssertionError, match="with"):
        team.share(lambda start, stop: None, 4)


def test_number_of_threads():
    assert resolve_n_threads(3) == 3
    assert 1 <= resolve_n_threads(None) <= (os.cpu_count() or 1)


@pytest.mark.usefixtures("three_blas_threads")
def test_blas_is_limited_inside_and_restored():
    with Team(1):
        assert blas_threads() == {1}
    assert blas_threads() == {3}


@pytest.mark.usefixtures("three_blas_threads")
def test_blas_is_restored_after_an_error():
    with pytest.raises(ZeroDivisionError), Team(2) as team:
        team.share(lambda start, stop: 1 / 0, 2)
    assert blas_threads() == {3}


@pytest.mark.usefixtures("three_blas_threads")
def test_blas_is_restored_after_nested_teams():
    with Team(2):
        with Team(1):
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == {3}


@pytest.mark.usefixtures("three_blas_threads")
def test_blas_is_restored_after_teams_that_overlap():
    first, second = Team(1), Team(1)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert blas_threads() == {1}  # the second is still at work
    second.__exit__(None, None, None)
    assert blas_threads() == {3}


@pytest.mark.usefixtures("three_blas_threads")
def test_blas_is_restored_by_another_thread_than_limited_it():
    """The thread that was first lives on, like those of a pool, but is not the last."""
    entered, leave, left, end = (threading.Event() for _ in range(4))

    def first_fit():
        with Team(1):
            entered.set()
            leave.wait(60)
        left.set()
        end.wait(60)

    thread = threading.Thread(target=first_fit)
    thread.start()
    try:
        assert entered.wait(60)
        with Team(1):
            both = blas_threads()
            leave.set()
            assert left.wait(60)
            second = blas_threads()
        none = blas_threads()
    finally:
        leave.set()
        end.set()
        thread.join()
    assert (both, second, none) == ({1}, {1}, {3})


@pytest.mark.usefixtures("three_blas_threads")
def test_blas_is_limited_in_any_thread():
    """Also while another one, here the main thread, holds the limit of the user."""
    seen = []

    def fit():
        with Team(1):
            seen.append(blas_threads())
        seen.append(blas_threads())

    for _ in range(2):
        thread = threading.Thread(target=fit)
        thread.start()
        thread.join()
        fit()
    assert seen == [{1}, {3}] * 4


@pytest.mark.usefixtures("three_blas_threads")
def test_blas_is_restored_after_teams_of_several_threads():
    n_fits = 6
    barrier = threading.Barrier(n_fits, timeout=60)
    seen = []

    def fit(i):
        for _ in range(20):
            barrier.wait()
            with Team(1 + i % 2) as team:
                seen.append(blas_threads())
                team.share(lambda start, stop: None, 2)

    fits = [threading.Thread(target=fit, args=(i,)) for i in range(n_fits)]
    for thread in fits:
        thread.start()
    for thread in fits:
        thread.join()
    assert seen == [{1}] * (20 * n_fits)
    assert blas_threads() == {3}


FORK = """
import multiprocessing
import sys
import threading

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from somf import threads
from somf.threads import Team

def blas_threads():
    return {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"}

def work():
    with Team(2) as team:
        inside = blas_threads()
        A = np.ones((300, 300))
        total = sum(team.share(lambda a, b: (A[a:b] @ A).sum(), len(A)))
    return total, inside

def child(limited):
    before = blas_threads()
    assert before == {3}, before  # no team of the parent works here
    total, inside = work()
    assert total == 300**3, total
    assert inside == limited, inside
    assert blas_threads() == before, blas_threads()
    print("child is done", flush=True)

def fork(limited):
    process = multiprocessing.get_context("fork").Process(target=child, args=(limited,))
    process.start()
    process.join(60)
    assert process.exitcode == 0, process.exitcode

with threadpool_limits(limits=3, user_api="blas"):
    if blas_threads() != {3}:
        sys.exit(77)
    fork({1})  # before any team
    work()
    fork({1})  # after one
    with Team(2) as team:
        team.share(lambda start, stop: None, 2)
        fork({1})  # inside one, whose threads do not exist in the child
        assert blas_threads() == {1}, "the parent's limit is the parent's"
    assert blas_threads() == {3}
    with threads._blas._lock:  # as if another thread were entering a team right now
        fork({1})
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_teams_work_after_a_fork():
    # A process of its own: threads of other tests would make the fork unsafe.
    result = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if result.returncode == 77:
        pytest.skip("the number of threads of this BLAS cannot be set")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("child is done") == 4
