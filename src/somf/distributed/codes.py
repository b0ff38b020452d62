"""Exact codes and the objective on the workers of a cluster: `transform`, `score`."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from somf.distributed.parts import RowRange, pack, unpack
from somf.solver.evaluation import CHUNK, Evaluation
from somf.sources.base import Array, ArraySource, Indices, Requirements, Source
from somf.sources.checks import need
from somf.sources.chunked import DaskSource
from somf.sources.reordered import ReorderedSource
from somf.sources.stacked import StackedSource
from somf.threads import Team

TASK_BYTES = 2**27  # of the samples that one task reads: as much as a usual Dask chunk
EXPECTED = (ValueError, TypeError, OSError)  # what can be wrong with data


class RemoteEvaluation:
    """An `Evaluation` by the workers of a Dask cluster: its arrays are Dask arrays.

    A worker gets one copy of the dictionary, however many blocks it codes, and no
    sample comes to the client. Arrays are not computed before somebody asks for them.

    Parameters
    ----------
    evaluation : Evaluation
        What to do. Every task has a team like its team, which is not used here.
    client : dask.distributed.Client
    lasting : bool
        Whether the cluster will be there later on. If not, arrays are computed.
    """

    def __init__(
        self, evaluation: Evaluation, client: Any, lasting: bool = True
    ) -> None:
        self.evaluation = evaluation
        self.client = client
        self.lasting = lasting

    def codes(self, source: Source) -> Any:
        """Return the exact codes of all samples, (n_samples, n_components)."""
        return self._result(self._codes(source))

    def stream(self, source: Source) -> Iterator[Array]:
        """Yield the codes of the samples in order, those of a block at a time."""
        return self._blocks(self._codes(source))

    def imputed(self, source: Source) -> Any:
        """Return the samples with missing entries filled."""
        dtype = self.evaluation.D.dtype
        return self._result(self._map("imputed", source, source.shape[1], dtype))

    def objective(self, source: Source) -> float:
        """Return the mean of ½‖x − D a‖² + alpha·Ω(a) over the samples."""
        losses = self._map("losses", source, 1, np.dtype(np.float64))
        return float(self.client.compute(losses.mean()).result())

    def _codes(self, source: Source) -> Any:
        D = self.evaluation.D
        return self._map("codes", source, len(D), D.dtype)

    def _map(self, what: str, source: Source, width: int, dtype: np.dtype[Any]) -> Any:
        """Return what a method of `Evaluation` makes of the samples, block by block."""
        dask = need("dask.array", "dask", "Running on Dask")
        evaluation = self._send(self._portable())
        arrays, first_row = [], 0
        for part in parts_of(source):
            stored, columns = _as_stored(part)
            if isinstance(stored, DaskSource):
                data = stored.array.rechunk({1: -1})
                heights = data.chunks[0]
                order = None if columns is None else self._send(columns)
            else:
                data = self._send_source(part, stored.in_memory)
                heights = tuple(np.diff(cuts(part)).tolist())
                order = None
            array = dask.map_blocks(
                partial(_evaluate, what, first_row),
                data,
                order,
                evaluation,
                name=f"somf-{what}-{uuid.uuid4().hex}",
                chunks=(heights, (width,)),
                dtype=dtype,
                meta=np.empty((0, 0), dtype),
            )
            arrays.append(array)
            first_row += part.shape[0]
        return arrays[0] if len(arrays) == 1 else dask.concatenate(arrays)

    def _portable(self) -> Evaluation:
        """Return the evaluation as it is now, whatever becomes of the dictionary."""
        evaluation = self.evaluation
        with Team(1):
            G = evaluation.gram()
        team = Team(evaluation.team.n_threads)
        return replace(evaluation, D=evaluation.D.copy(), G=G, team=team)

    def _send(self, what: Any, everywhere: bool = True) -> Any:
        """Send to all workers, or to one from which the others get what they need."""
        # Not under its hash: who forgets it would take it away from whoever sent it too
        return self.client.scatter(what, broadcast=everywhere, hash=False)

    def _send_source(self, source: Source, in_memory: bool) -> Any:
        """Send samples, or word of where they are, which tasks read and not Dask."""
        if in_memory:
            return self._send(source, everywhere=False)
        return self._send(pack(source))

    def _result(self, array: Any) -> Any:
        return array if self.lasting else np.concatenate(list(self._blocks(array)))

    def _blocks(self, array: Any) -> Iterator[Array]:
        """Yield the blocks in order; the workers are ahead by one for each thread."""
        ahead = sum(self.client.nthreads().values())
        waiting: deque[Any] = deque()
        for number in range(array.numblocks[0]):
            waiting.append(self.client.compute(array.blocks[number]))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


# -- how samples are cut -------------------------------------------------------------


def parts_of(source: Source) -> list[Source]:
    """Cut samples into parts that travel for themselves.

    Those are Dask arrays, of which nothing travels, and rows that are in the memory of
    the client. Anything else is one part: workers open it, and read what they need.
    """
    if isinstance(source, ReorderedSource):
        order = source.columns, source.feature_order
        return [ReorderedSource(part, *order) for part in parts_of(source.source)]
    if isinstance(source, StackedSource):
        parts = [part for member in source.sources for part in parts_of(member)]
        return parts if any(_must_part(part) for part in parts) else [source]
    if isinstance(source, ArraySource):
        X = source.X
        return [ArraySource(X[start:stop]) for start, stop in pairwise(cuts(source))]
    return [source]


def _must_part(source: Source) -> bool:
    stored, _ = _as_stored(source)
    return stored.in_memory or isinstance(stored, DaskSource)


def is_in_memory(source: Source) -> bool:
    """Whether some of the samples are in the memory of this process."""
    return any(_as_stored(part)[0].in_memory for part in parts_of(source))


def _as_stored(source: Source) -> tuple[Source, Indices | None]:
    """Return a source with its features as they are stored, and their order."""
    if isinstance(source, ReorderedSource):
        return source.source, source.columns
    return source, None


def cuts(source: Source) -> Indices:
    """Return bounds of rows for tasks, at chunks of the source if it has some.

    >>> cuts(ArraySource(np.broadcast_to(np.float32(1), (1000, 2**16))))
    array([   0,  512, 1000])
    """
    n_samples = source.shape[0]
    n_chunks = max(1, TASK_BYTES // (CHUNK * source.row_bytes))
    wanted = np.arange(0, n_samples, CHUNK * n_chunks)
    if source.row_chunks is not None:
        wanted = source.row_chunks[np.searchsorted(source.row_chunks, wanted)]
    return np.unique(np.append(wanted, n_samples))


# -- on a worker ---------------------------------------------------------------------


def _evaluate(
    what: str,
    first_row: int,
    data: Array | Source | bytes,
    order: Indices | None,
    evaluation: Evaluation,
    block_info: Any = None,
) -> Array:
    """Return what a method of `Evaluation` makes of a block of rows.

    `data` is the block, or what to read it from, packed if that has to be opened, and
    `order` that of its features.
    """
    here = block_info[None]
    start, stop = here["array-location"][0]
    if start == stop:
        return np.empty(here["chunk-shape"], here["dtype"])
    number, wanted = first_row + start, evaluation.wanted
    try:
        if isinstance(data, np.ndarray):
            block: Source = ArraySource(data)
            if order is not None:
                block = ReorderedSource(block, order)
            source = CheckedRows(block, 0, stop - start, number, wanted)
        else:
            opened = unpack(data) if isinstance(data, bytes) else data
            source = CheckedRows(opened, start, stop, number, wanted)
        with Team(evaluation.team.n_threads) as team:
            known = replace(wanted, known=True)
            result = getattr(replace(evaluation, team=team, wanted=known), what)(source)
    except EXPECTED as error:
        kind = next(kind for kind in EXPECTED if isinstance(error, kind))
        rows = f"rows {number} to {number + stop - start - 1} of X"
        raise kind(f"{_worker()}, {rows}: {error}") from error
    return np.asarray(result).reshape(stop - start, -1)


class CheckedRows(RowRange):
    """Rows start..stop of a source, checked; in errors they have their number in X."""

    def __init__(
        self, source: Source, start: int, stop: int, number: int, wanted: Requirements
    ) -> None:
        super().__init__(source, start, stop)
        self.number = number
        self.wanted = wanted

    def read(self, rows: Indices) -> Array:
        """Return the rows as a new C-ordered array."""
        X = super().read(rows)
        self.wanted.check(X, rows + self.number)
        return X


def _worker() -> str:
    from distributed import get_worker

    return f"Worker {get_worker().address}"
