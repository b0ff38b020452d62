"""The data of a distributed fit: pieces, and which rows go together to one worker."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from somf.sources.base import Array, ArraySource, Indices, Requirements, Source
from somf.sources.checks import need
from somf.sources.chunked import DaskSource
from somf.sources.opening import as_source
from somf.sources.sparse import SparseSource
from somf.sources.stacked import StackedSource

MOST_RANGES = 256  # pieces that one source is cut into


@dataclass(frozen=True)
class Piece:
    """Rows start..stop of something: a Dask block, which is computed, or a source."""

    what: Any
    start: int
    stop: int
    held: bool  # whether a worker computes it once and keeps it in memory

    def __len__(self) -> int:
        return self.stop - self.start


class RowRange(Source):
    """Rows start..stop of a source, counted from 0."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self.source = source
        self.start = start
        self.shape = (stop - start, source.shape[1])
        self.dtype = source.dtype
        self.feature_chunk = source.feature_chunk
        self.feature_order = source.feature_order
        self.feature_key = source.feature_key
        self.in_memory = source.in_memory
        if source.row_chunks is not None:
            inside = np.clip(source.row_chunks, start, stop)
            self.row_chunks = np.unique(inside) - start

    def read(self, rows: Indices) -> Array:
        """Return the rows as a new C-ordered array."""
        return self.source.read(rows + self.start)

    def read_features(self, rows: Indices, features: Indices) -> Array:
        """Return features of the rows as a new C-ordered array."""
        return self.source.read_features(rows + self.start, features)


class PartedSource(Source):
    """All samples, as the client sees them: it may read a few, workers read the rest.

    Where workers hold their rows in memory, any of them can be read at no cost.
    """

    def __init__(self, source: Source, pieces: list[Piece], n_workers: int) -> None:
        self.source = source
        self.pieces = pieces
        self.n_lanes = min(n_workers, len(pieces))
        self.shape = source.shape
        self.dtype = source.dtype
        self.feature_order = source.feature_order
        self.feature_key = source.feature_key
        self.in_memory = all(piece.held for piece in pieces)
        if not self.in_memory:
            self.row_chunks = source.row_chunks
            self.feature_chunk = source.feature_chunk

    @property
    def is_read(self) -> bool:
        """Whether workers read samples, rather than have them in memory."""
        return not (self.in_memory or self.source.in_memory)

    def read(self, rows: Indices) -> Array:
        """Return X[rows] as a new C-ordered array."""
        return self.source.read(rows)

    def read_features(self, rows: Indices, features: Indices) -> Array:
        """Return X[rows][:, features] as a new C-ordered array."""
        return self.source.read_features(rows, features)


def part(X: Any, source: Source, n_workers: int) -> PartedSource:
    """Cut the data that `source` reads into pieces that workers can take."""
    if isinstance(
        source, DaskSource
    ):  # and not one whose features are brought in order
        blocks = X.rechunk({1: -1}).to_delayed()[:, 0]
        sizes = X.chunks[0]
        pieces = [
            Piece(block, 0, int(n), held=True)
            for block, n in zip(blocks, sizes, strict=True)
            if n > 0
        ]
        return PartedSource(source, pieces, n_workers)
    members = source.sources if isinstance(source, StackedSource) else [source]
    most = max(1, MOST_RANGES // len(members))
    least = -(-n_workers // len(members))
    pieces = [piece for member in members for piece in _ranges(member, least, most)]
    return PartedSource(source, pieces, n_workers)


def _ranges(source: Source, least: int, most: int) -> list[Piece]:
    """Cut a source into up to `most` ranges of rows that are read together.

    Files are kept whole if that gives at least `least` of them.
    """
    bounds = source.row_chunks
    if bounds is None:
        bounds = source.row_files
    if bounds is None or (source.row_chunks is None and len(bounds) <= least):
        bounds = np.arange(source.shape[0] + 1)
    chosen = np.unique(np.linspace(0, len(bounds) - 1, most + 1).round().astype(int))
    bounds = np.unique(bounds[chosen])
    return [
        Piece(source, int(low), int(high), held=False)
        for low, high in itertools.pairwise(bounds)
    ]


def share_out(pieces: list[Piece], n_parts: int) -> list[list[Piece]]:
    """Cut the list of pieces into about equally many samples, at least one piece each.

    >>> pieces = [Piece(None, 0, n, True) for n in (10, 1, 1, 10, 20)]
    >>> [[len(piece) for piece in part] for part in share_out(pieces, 3)]
    [[10, 1, 1], [10], [20]]
    """
    n_parts = min(n_parts, len(pieces))
    ends = np.cumsum([len(piece) for piece in pieces])
    cuts = [0]
    for i in range(1, n_parts):
        wanted = ends[-1] * i / n_parts
        nearest = int(np.abs(ends - wanted).argmin()) + 1
        cuts.append(min(max(nearest, cuts[-1] + 1), len(pieces) - (n_parts - i)))
    cuts.append(len(pieces))
    return [pieces[a:b] for a, b in itertools.pairwise(cuts)]


def joined(pieces: list[Piece]) -> list[Piece]:
    """Join ranges of the same source that follow one another."""
    out: list[Piece] = []
    for piece in pieces:
        last = out[-1] if out else None
        if (
            last is not None
            and not piece.held
            and last.what is piece.what
            and last.stop == piece.start
        ):
            out[-1] = Piece(piece.what, last.start, piece.stop, held=False)
        else:
            out.append(piece)
    return out


def packed(piece: Piece) -> Piece:
    """Return a piece for the way to a worker: of data in memory, its own rows alone."""
    if piece.held:
        return replace(piece, what=None)
    if type(piece.what) in (ArraySource, SparseSource):
        rows = type(piece.what)(piece.what.X[piece.start : piece.stop])
        return Piece(rows, 0, len(piece), held=False)
    return replace(piece, what=pack(piece.what))


def pack(source: Source) -> bytes:
    """Pack a source that `unpack` opens: Dask would take its errors for its own."""
    data: bytes = need("cloudpickle", "dask", "Running on Dask").dumps(source)
    return data


def unpack(data: bytes) -> Source:
    """Open a source on a worker."""
    try:
        source: Source = pickle.loads(data)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{str(error).rstrip('.')}. Workers must find files under the path that "
            "the client gives."
        ) from error
    return source


def open_part(
    pieces: list[Piece], dtype: np.dtype[Any], wanted: Requirements, room: int
) -> Source:
    """Return the samples of some pieces, whose blocks have been computed, as a source.

    What is held in memory is checked here, once; the rest as it is read. `room` is how
    many bytes may be used beside it.
    """
    sources: list[Source] = []
    row = 0
    for piece in pieces:
        if piece.held:
            X = np.ascontiguousarray(piece.what, dtype)
            wanted.check(X, np.arange(row, row + len(X)))
            sources.append(ArraySource(X))
        else:
            sources.append(_range_of(piece))
        row += len(piece)
    return sources[0] if len(sources) == 1 else _together(sources, room)


def _together(sources: list[Source], room: int) -> Source:
    """Stack sources; blocks in memory become one array if there is room for both.

    Batches of one array are used in place; of several blocks they would be copied, all
    features of every sample, in each iteration.
    """
    stacked = StackedSource(sources)
    blocks = [source.X for source in sources if isinstance(source, ArraySource)]
    n_bytes = stacked.shape[0] * stacked.row_bytes
    if len(blocks) < len(sources) or n_bytes > room // 2:
        return stacked
    return ArraySource(np.concatenate(blocks))


def _range_of(piece: Piece) -> Source:
    what = piece.what
    source = as_source(unpack(what) if isinstance(what, bytes) else what)
    if (piece.start, piece.stop) == (0, source.shape[0]):
        return source
    return RowRange(source, piece.start, piece.stop)


def lay_out(pieces: list[Piece], like: Source) -> Source:
    """Return how a worker will read some pieces, without their data."""
    sources = [_Layout(piece, like) for piece in joined(pieces)]
    return sources[0] if len(sources) == 1 else StackedSource(sources)


class _Layout(Source):
    """Shape and chunks of a piece."""

    def __init__(self, piece: Piece, like: Source) -> None:
        self.shape = (len(piece), like.shape[1])
        self.dtype = like.dtype
        self.feature_order = like.feature_order
        self.in_memory = piece.held
        if not piece.held:
            real = _range_of(piece)
            self.row_chunks = real.row_chunks
            self.feature_chunk = real.feature_chunk
            self.in_memory = real.in_memory
