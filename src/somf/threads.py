"""Threads of a fit: whole pieces of work for each, and a BLAS that adds none.

Parallelism is ours alone. Inside a `Team`, BLAS runs on one thread and the team
splits the work, so that nothing oversubscribes, concurrent fits do not disturb one
another, and the bits of a result depend on the data and the number of threads only.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import joblib
import scipy.linalg  # noqa: F401  (loads SciPy's BLAS, so that the controller sees it)
from threadpoolctl import ThreadpoolController


def _loaded() -> tuple[int, bytes]:
    """Return what changes when a library is loaded, in a hundredth of a look for it.

    Linux tells the size of all libraries. Elsewhere it is the number of modules, for
    libraries come with modules; one that is loaded without any is found with the next.
    """
    try:
        status = Path("/proc/self/status").read_bytes()
    except OSError:
        status = b""
    return len(sys.modules), status.partition(b"VmLib:")[2].partition(b"\n")[0]


def _is_shared(library: Any) -> bool:
    """Whether a limit holds for the process, and not for the thread that sets it."""
    layer = getattr(library, "threading_layer", None)
    return bool(library.internal_api == "openblas" and layer != "openmp")


def _set(library: Any, n_threads: int) -> None:
    # threadpoolctl >= 3.8 lets one thread at a time change a shared limit and ignores
    # all others in silence; ours are counted, so whoever comes may.
    if _is_shared(library) and hasattr(library, "clear_controlling_thread"):
        library.clear_controlling_thread(force=True)
        library.set_num_threads(n_threads)
        library.clear_controlling_thread(force=True)
    else:
        library.set_num_threads(n_threads)


class _Limits:
    """Limits of the process or of one thread, and how many ask for them."""

    def __init__(self) -> None:
        self.users = 0
        self._before: dict[Any, int] = {}

    def limit(self, library: Any) -> None:
        """One thread for this library, which may be new since the first user came."""
        if library not in self._before:
            self._before[library] = library.get_num_threads()
        _set(library, 1)

    def lift(self) -> None:
        """Set all libraries as they were before the first user came."""
        for library, n_threads in self._before.items():
            _set(library, n_threads)
        self._before.clear()


class _SingleThreadedBlas:
    """BLAS on one thread for as long as anybody asks, then as it was before.

    A context manager per fit would not do: the fit that ends first would lift the
    limit of the others, and the one that ends last would restore the limit of another
    fit instead of the user's. So users are counted: those of the process where a limit
    belongs to the process, and those of a thread where it belongs to the thread.
    """

    def __init__(self) -> None:
        self._libraries: dict[str, Any] = {}
        self._seen: tuple[int, bytes] | None = None
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._shared = _Limits()
        self._local = threading.local()

    def _mine(self) -> _Limits:
        """Return the limits of this thread."""
        if not hasattr(self._local, "limits"):
            self._local.limits = _Limits()
        limits: _Limits = self._local.limits
        return limits

    def _look(self) -> None:
        """Find the libraries that were loaded since the last look."""
        loaded = _loaded()  # first, so that what is loaded meanwhile is found next time
        if loaded == self._seen:
            return
        # Without the lock: all the objects that are made here may set off a collection
        # of garbage, and a team that is collected wants the lock.
        found = ThreadpoolController().select(user_api="blas").lib_controllers
        with self._lock:
            # Known ones stay the same objects, under which limits are remembered.
            self._libraries = {lib.filepath: lib for lib in found} | self._libraries
            self._seen = loaded

    def acquire(self) -> tuple[_Limits, _Limits]:
        """Limit BLAS, also if it was loaded just now; returns what to release."""
        self._look()
        with self._lock:
            shared, mine = self._shared, self._mine()
            for library in self._libraries.values():
                (shared if _is_shared(library) else mine).limit(library)
            shared.users += 1
            mine.users += 1
            return shared, mine

    def release(self, limits: tuple[_Limits, _Limits]) -> None:
        """Lift the limits of this thread and of the process after their last user.

        If another thread acquired them, its own cannot be lifted from here: they are
        lifted after its next user.
        """
        shared, mine = limits
        with self._lock:
            shared.users -= 1
            if shared.users == 0:
                shared.lift()
            mine.users -= 1
            if mine.users == 0 and mine is self._mine():
                mine.lift()

    def limit_this_thread(self) -> None:
        """Limit BLAS in a thread that ends before the limit does."""
        for library in self._libraries.values():
            if not _is_shared(library):
                _set(library, 1)

    def after_fork(self) -> None:
        """Forget the parent's fits: none of their threads exist in the child."""
        shared, mine = self._shared, self._mine()
        self._reset()
        shared.lift()
        mine.lift()


_blas = _SingleThreadedBlas()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_blas.after_fork)


def resolve_n_threads(n_threads: int | None) -> int:
    """Return the number of threads to use; None means every core we may use."""
    return int(joblib.cpu_count()) if n_threads is None else n_threads


class Team:
    """`n_threads` threads, the caller's included, that work on one fit.

    >>> squares = [0] * 10
    >>> def square(start, stop):
    ...     for i in range(start, stop):
    ...         squares[i] = i * i
    >>> with Team(2) as team:
    ...     _ = team.share(square, 10)
    >>> squares
    [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._pool: ThreadPoolExecutor | None = None
        self._background: list[Future[Any]] = []
        self._limits: tuple[_Limits, _Limits] | None = None

    def __enter__(self) -> Self:
        self._limits = _blas.acquire()
        if self.n_threads > 1:
            self._pool = ThreadPoolExecutor(
                self.n_threads - 1, "somf", initializer=_blas.limit_this_thread
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        assert self._limits is not None, "nobody has entered this team"
        _blas.release(self._limits)

    def slices(self, n: int, smallest: int = 1) -> list[tuple[int, int]]:
        """Cut range(n) into one slice a thread, none shorter than `smallest`."""
        pieces = max(1, min(self.n_threads, n // max(1, smallest)))
        cuts = [n * i // pieces for i in range(pieces + 1)]
        return list(pairwise(cuts))

    def share(
        self, task: Callable[[int, int], Any], n: int, smallest: int = 1
    ) -> list[Any]:
        """Run `task(start, stop)` on every slice of range(n); results in order.

        While other threads are busy with what `start` gave them, the caller does all
        slices alone. The slices are the same, and so are the bits.
        """
        slices = self.slices(n, smallest)
        if self.busy:
            return [task(start, stop) for start, stop in slices]
        pending = [self._submit(task, start, stop) for start, stop in slices[1:]]
        try:
            result = task(*slices[0])
        finally:
            wait(pending)
        return [result, *(future.result() for future in pending)]

    def together(
        self, task: Callable[[int], Any], n: int, give_up: Callable[[], Any]
    ) -> None:
        """Run task(0) to task(n − 1) at the same time: they may wait for one another.

        Only while no other thread is busy. If one of them fails, `give_up` is called,
        which must release those that wait for it.
        """
        assert n <= self.n_threads
        assert n == 1 or not self.busy

        def run(i: int) -> None:
            try:
                task(i)
            except BaseException:
                give_up()
                raise

        pending: list[Future[Any]] = []
        try:
            pending += [self._submit(run, i) for i in range(1, n)]
            run(0)
        except BaseException:
            give_up()
            raise
        finally:
            wait(pending)
        for future in pending:
            future.result()

    def start(self, task: Callable[[], Any]) -> None:
        """Run `task()` on every thread but the caller's, until `finish`."""
        self._background += [self._submit(task) for _ in range(self.n_threads - 1)]

    def finish(self) -> None:
        """Wait for what `start` began, and raise what it raised."""
        wait(self._background)
        background, self._background = self._background, []
        for future in background:
            future.result()

    @property
    def busy(self) -> bool:
        """Whether other threads still work on what `start` gave them."""
        return not all(future.done() for future in self._background)

    def _submit(self, task: Callable[..., Any], *args: Any) -> Future[Any]:
        assert self._pool is not None, "a Team works inside its `with` block"
        return self._pool.submit(task, *args)
