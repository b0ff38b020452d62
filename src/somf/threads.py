"""Threads of a fit: whole pieces of work for each, and a BLAS that adds none.

Parallelism is ours alone. Inside a `Team`, BLAS runs on one thread and the team
splits the work, so that nothing oversubscribes, concurrent fits do not disturb one
another, and the bits of a result depend on the data and the number of threads only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import joblib
import scipy.linalg  # noqa: F401  (loads SciPy's BLAS, so that the controller sees it)
from threadpoolctl import ThreadpoolController


@cache
def _controller() -> Any:
    return ThreadpoolController()


class _SingleThreadedBlas:
    """BLAS on one thread for as long as anybody asks, then as it was before.

    The setting belongs to the process: with one context manager per fit, the fit that
    ends last would restore the limit of another fit instead of the user's.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limiter: Any = None

    def acquire(self) -> None:
        with self._lock:
            if self._users == 0:
                self._limiter = _controller().limit(limits=1, user_api="blas")
            self._users += 1

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._limiter.restore_original_limits()

    def after_fork(self) -> None:
        """Forget the parent's fits: none of their threads exist in the child."""
        if self._users:
            self._limiter.restore_original_limits()
        self.reset()


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

    def __enter__(self) -> Self:
        _blas.acquire()
        if self.n_threads > 1:
            self._pool = ThreadPoolExecutor(self.n_threads - 1, "somf")
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
        _blas.release()

    def slices(self, n: int, smallest: int = 1) -> list[tuple[int, int]]:
        """Cut range(n) into one slice a thread, none shorter than `smallest`."""
        pieces = max(1, min(self.n_threads, n // max(1, smallest)))
        cuts = [n * i // pieces for i in range(pieces + 1)]
        return list(pairwise(cuts))

    def share(
        self, task: Callable[[int, int], Any], n: int, smallest: int = 1
    ) -> list[Any]:
        """Run `task(start, stop)` on every slice of range(n); results in order.

        While the other threads are busy with what `start` gave them, the caller does
        all slices alone. The slices are the same, and so are the bits.
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

    def start(self, task: Callable[[], Any]) -> None:
        """Run `task()` on every thread but the caller's, until `finish`."""
        self._background = [self._submit(task) for _ in range(self.n_threads - 1)]

    def finish(self) -> None:
        """Wait for what `start` began, and raise what it raised."""
        wait(self._background)
        background, self._background = self._background, []
        for future in background:
            future.result()

    @property
    def busy(self) -> bool:
        """Whether `start` has been called and `finish` has not."""
        return bool(self._background)

    def _submit(self, task: Callable[..., Any], *args: Any) -> Future[Any]:
        assert self._pool is not None, "a Team works inside its `with` block"
        return self._pool.submit(task, *args)
