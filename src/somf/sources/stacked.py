"""Sources one under the other, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from somf.sources.base import Array, Indices, SampleSource, Source, adopt
from somf.sources.checks import check_rows


class StackedSource(Source):
    """The samples of several sources with the same features, one after the other.

    Parameters
    ----------
    sources : sequence of sources
        The type of the samples is the widest of theirs: float64 if one of them is.

    Examples
    --------
    >>> import numpy as np
    >>> from somf.sources import StackedSource, as_source
    >>> parts = [as_source(np.full((3, 2), value)) for value in (0.0, 1.0)]
    >>> both = StackedSource(parts)
    >>> both.shape
    (6, 2)
    >>> both.read(np.array([2, 3]))
    array([[0., 0.],
           [1., 1.]])
    """

    def __init__(self, sources: Sequence[SampleSource]) -> None:
        if len(sources) == 0:
            raise ValueError("There are 0 sources to stack; give at least one.")
        self.sources = [adopt(source) for source in sources]
        self._check()
        first = self.sources[0]
        n_samples = [source.shape[0] for source in self.sources]
        self._starts = np.concatenate([[0], np.cumsum(n_samples)])
        self.shape = (int(self._starts[-1]), first.shape[1])
        self.dtype = np.result_type(*(source.dtype for source in self.sources))
        self.row_chunks = _join_chunks(self.sources)
        chunks = {source.feature_chunk for source in self.sources}
        self.feature_chunk = first.feature_chunk if len(chunks) == 1 else None
        self.feature_order = first.feature_order
        keys = (source.feature_key for source in self.sources)
        self.feature_key = next((key for key in keys if key is not None), None)
        self.in_memory = all(source.in_memory for source in self.sources)

    def _check(self) -> None:
        first = self.sources[0]
        for i, source in enumerate(self.sources):
            if source.shape[1] != first.shape[1]:
                raise ValueError(
                    f"Source {i} has {source.shape[1]} features and source 0 has "
                    f"{first.shape[1]}; stacked sources must have the same features."
                )
            if not np.array_equal(_order(source), _order(first)):
                raise ValueError(
                    f"The features of source {i} are in another order than those of "
                    "source 0; convert both with the same order."
                )

        keys = {source.feature_key for source in self.sources} - {None}
        if len(keys) > 1:
            raise ValueError(
                "The features of these sources are not the same, although there are as "
                "many: voxels of different masks. Give all images one mask."
            )

    def read(self, rows: Indices) -> Array:
        """Return X[rows] as a new C-ordered array."""
        return self._gather(rows, self.shape[1], lambda source, here: source.read(here))

    def read_features(self, rows: Indices, features: Indices) -> Array:
        """Return X[rows][:, features] as a new C-ordered array."""
        return self._gather(
            rows,
            len(features),
            lambda source, here: source.read_features(here, features),
        )

    def _gather(
        self, rows: Indices, width: int, read: Callable[[Source, Indices], Array]
    ) -> Array:
        check_rows(rows, self.shape[0])
        out = np.empty((len(rows), width), self.dtype)
        for source, part, here in self._split(rows):
            if len(here) == len(rows) and source.dtype == self.dtype:
                return read(source, here)
            out[part] = read(source, here)
        return out

    def _split(self, rows: Indices) -> Iterator[tuple[Source, slice, Indices]]:
        """Yield each source with its part of `rows`, and their numbers in it."""
        cuts = np.searchsorted(rows, self._starts)
        for i, source in enumerate(self.sources):
            part = slice(cuts[i], cuts[i + 1])
            if part.stop > part.start:
                yield source, part, rows[part] - self._starts[i]


def _order(source: Source) -> Indices:
    if source.feature_order is None:
        return np.arange(source.shape[1])
    return source.feature_order


def _join_chunks(sources: list[Source]) -> Indices | None:
    """Return the chunks of all sources; those without get chunks of median length."""
    known = [source.row_chunks for source in sources if source.row_chunks is not None]
    if not known:
        return None
    lengths = np.concatenate([np.diff(chunks) for chunks in known])
    usual = max(1, int(np.median(lengths))) if len(lengths) else 1
    bounds, start = [np.zeros(1, np.intp)], 0
    for source in sources:
        n_samples, chunks = source.shape[0], source.row_chunks
        if chunks is None:
            chunks = np.append(np.arange(0, n_samples, usual), n_samples)
        bounds.append(start + chunks[1:])
        start += n_samples
    return np.concatenate(bounds)
