"""Reading ahead: a thread fetches what the next iterations need."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

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
