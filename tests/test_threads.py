"""A team shares work in order, and leaves BLAS as it was."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from somf import threads
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
        before = blas_threads()  # not {3} if the user's limit is that of their thread
        with Team(1):
            seen.append(blas_threads())
        seen.append(blas_threads() == before)

    for _ in range(2):
        thread = threading.Thread(target=fit)
        thread.start()
        thread.join()
        fit()
    assert seen == [{1}, True] * 4


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


class FakeBlas:
    """A library that keeps one number of threads for all, or one for each of them."""

    filepath = "/lib/libfake.so"

    def __init__(self, shared):
        self.internal_api = "openblas" if shared else "mkl"
        self.numbers = SimpleNamespace() if shared else threading.local()

    def get_num_threads(self):
        return getattr(self.numbers, "n", 3)

    def set_num_threads(self, n):
        self.numbers.n = n


@pytest.fixture(params=[True, False], ids=["of the process", "of a thread"])
def fake_blas(request, monkeypatch):
    """A BLAS which every look finds anew, if it is loaded, and no other."""
    fake = FakeBlas(request.param)
    fake.loaded = True

    def look():
        again = FakeBlas(request.param)
        again.numbers = fake.numbers
        found = [again] if fake.loaded else []
        return SimpleNamespace(
            select=lambda user_api: SimpleNamespace(lib_controllers=found)
        )

    monkeypatch.setattr(threads, "_blas", threads._SingleThreadedBlas())
    monkeypatch.setattr(threads, "_loaded", object)  # something, whenever one asks
    monkeypatch.setattr(threads, "ThreadpoolController", look)
    return fake


def in_a_thread(task):
    result = []
    thread = threading.Thread(target=lambda: result.append(task()))
    thread.start()
    thread.join()
    return result[0]


def test_limit_lasts_until_the_last_of_teams_that_overlap(fake_blas):
    first, second = Team(1), Team(1)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert fake_blas.get_num_threads() == 1
    second.__exit__(None, None, None)
    assert fake_blas.get_num_threads() == 3


def test_limit_of_a_library_that_is_loaded_while_a_team_works(fake_blas):
    fake_blas.loaded = False
    first, second = Team(1), Team(2)
    first.__enter__()
    fake_blas.loaded = True
    with second:
        fake_threads = second.share(lambda *_: fake_blas.get_num_threads(), 2)
        assert fake_threads == [1, 1]
    assert fake_blas.get_num_threads() == 1  # the first is still at work
    first.__exit__(None, None, None)
    assert fake_blas.get_num_threads() == 3


def test_limit_is_lifted_if_another_thread_ends_the_team(fake_blas):
    team = Team(1).__enter__()

    def end():
        before = fake_blas.get_num_threads()
        team.__exit__(None, None, None)
        return before, fake_blas.get_num_threads()

    shared = fake_blas.internal_api == "openblas"
    assert in_a_thread(end) == ((1, 3) if shared else (3, 3))
    # The other cannot reach what is ours: it is lifted after our next team.
    assert fake_blas.get_num_threads() == (3 if shared else 1)
    with Team(1):
        assert fake_blas.get_num_threads() == 1
    assert fake_blas.get_num_threads() == 3


def test_team_of_the_parent_is_forgotten_after_a_fork(fake_blas):
    team = Team(1).__enter__()
    threads._blas.after_fork()
    assert fake_blas.get_num_threads() == 3
    with Team(1):
        team.__exit__(None, None, None)  # the child leaves what it is not in
        assert fake_blas.get_num_threads() == 1
    assert fake_blas.get_num_threads() == 3


def test_libraries_are_looked_for_only_if_something_was_loaded(monkeypatch):
    looks = []
    look = threads.ThreadpoolController
    monkeypatch.setattr(
        threads, "ThreadpoolController", lambda: looks.append(1) or look()
    )
    monkeypatch.setattr(threads, "_blas", threads._SingleThreadedBlas())
    for what in [1, 1, 2, 2, 2]:
        monkeypatch.setattr(threads, "_loaded", lambda what=what: what)
        with Team(2) as team:
            team.share(lambda start, stop: None, 10)
    assert len(looks) == 2


LATE = """
import ctypes
import shutil
import sys
from pathlib import Path

from threadpoolctl import threadpool_info, threadpool_limits

from somf.threads import Team

def blas():
    return [p for p in threadpool_info() if p["user_api"] == "blas"]

def blas_threads():
    return len(blas()), {p["num_threads"] for p in blas()}

folder, how = sys.argv[1:]
threadpool_limits(limits=3, user_api="blas")
n, before = blas_threads()
if before != {3}:
    sys.exit("SKIP the number of threads of this BLAS cannot be set")
files = sorted(p["filepath"] for p in blas() if p["internal_api"] == "openblas")
if not files:
    sys.exit("SKIP there is no OpenBLAS to load a copy of")
# Another file is another library, with threads and a limit of its own.
late = shutil.copy(files[0], folder)

if how == "with a module":  # as on systems that tell nothing else
    def read_bytes(self):
        raise FileNotFoundError(self)
    Path.read_bytes = read_bytes

with Team(1):
    assert blas_threads() == (n, {1}), blas_threads()
try:
    if how == "with a module":
        Path(folder, "brings_a_library.py").write_text(
            f"import ctypes; ctypes.CDLL({late!r})"
        )
        sys.path.insert(0, folder)
        import brings_a_library
    else:
        ctypes.CDLL(late)
except OSError as error:
    sys.exit(f"SKIP the copy finds no libraries that it needs: {error}")
threadpool_limits(limits=3, user_api="blas")
assert blas_threads() == (n + 1, {3}), blas_threads()
with Team(1):
    assert blas_threads() == (n + 1, {1}), blas_threads()
assert blas_threads() == (n + 1, {3}), blas_threads()
"""


@pytest.mark.parametrize("how", ["with a module", "alone"])
def test_blas_that_is_loaded_late_is_limited(how, tmp_path):
    if how == "alone" and not threads._loaded()[1]:
        pytest.skip("this system does not tell how much is loaded")
    # A process of its own: what is loaded here would stay.
    result = subprocess.run(
        [sys.executable, "-c", LATE, str(tmp_path), how],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if result.stderr.startswith("SKIP "):
        pytest.skip(result.stderr.removeprefix("SKIP ").strip())
    assert result.returncode == 0, result.stderr


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
