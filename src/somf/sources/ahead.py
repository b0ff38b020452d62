"""Reading ahead: a thread fetches what the next iterations need."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

DEPTH = 2  # batches that wait to be used; more would only help a reader that stutters


def read_ahead(
    read: Callable[[Item], Result], items: Iterable[Item], depth: int = DEPTH
) -> Iterator[tuple[Item, Result]]:
    """Yield (item, read(item)) in order; a thread is up to `depth` items ahead.

    With depth 0 there is no thread. What `read` raises is raised when its turn comes.

    >>> list(read_ahead(lambda x: x * x, [1, 2, 3]))
    [(1, 1), (2, 4), (3, 9)]
    """
    if depth == 0:
        for item in items:
            yield item, read(item)
        return
    upcoming = iter(items)
    pending: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(1, "somf-reader") as reader:
        try:
            for item in islice(upcoming, depth):
                pending.append((item, reader.submit(read, item)))
            while pending:
                item, future = pending.popleft()
                result = future.result()
                for new in islice(upcoming, 1):
                    pending.append((new, reader.submit(read, new)))
                yield item, result
        finally:
            for _, future in pending:
                future.cancel()


class Ahead(Generic[Item, Result]):
    """Reads in a thread what will be asked for next, and the rest when it is asked for.

    >>> squares = Ahead(lambda x: x * x)
    >>> squares.begin("three", 3)
    >>> squares.take("three", 3), squares.take("four", 4)
    (9, 16)
    """

    def __init__(self, read: Callable[[Item], Result]) -> None:
        self._read = read
        self._thread = ThreadPoolExecutor(1, "somf-reader")
        self._begun: tuple[Hashable, Future[Result]] | None = None

    def begin(self, key: Hashable, item: Item) -> None:
        """Read an item that will be taken by its key, probably."""
        self._begun = key, self._submit(item)

    def take(self, key: Hashable, item: Item) -> Result:
        """Return read(item), or raise what it raised."""
        begun, self._begun = self._begun, None
        if begun is not None:
            if begun[0] == key:
                return begun[1].result()
            begun[1].cancel()
            begun = None
        return self._submit(item).result()

    def _submit(self, item: Item) -> Future[Result]:
        # What Dask knows of a thread of its workers is in its context.
        return self._thread.submit(copy_context().run, self._read, item)

    def close(self) -> None:
        """End the thread."""
        self._begun = None
        self._thread.shutdown(wait=False, cancel_futures=True)
