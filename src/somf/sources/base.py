"""What a source of samples is, and what an iteration gets from it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Batch:
    """The rows `rows` of a C-ordered array `X`, not copied.

    `index` numbers the samples in the whole data set, for estimators that remember
    them; None when they have no number. `missing` tells which entries are not known:
    `X` is then a copy, of these samples alone, with zeros there.
    """

    X: Array
    rows: Indices
    index: Indices | None = None
    missing: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, X: Array, index: Indices | None = None) -> Batch:
        """All rows of `X`."""
        return cls(X, np.arange(len(X)), index)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def adjacent(self) -> Array | None:
        """The batch as a view, if its rows stand one after the other in `X`."""
        first, last = self.rows[0], self.rows[-1]
        if last - first + 1 == len(self.rows) and np.all(np.diff(self.rows) == 1):
            return self.X[first : last + 1]
        return None

    def copy_rows(self, which: Indices) -> Array:
        """Return the chosen samples of the batch as a new array."""
        return np.asarray(self.X[self.rows[which]])


@dataclass(frozen=True)
class ObservedBatch:
    """Samples of which only the features of one mask were read: `X` is (n, q)."""

    X: Array
    index: Indices
    source: SampleSource
    wanted: Requirements
    missing: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.index)

    def copy_rows(self, which: Indices) -> Array:
        """Read all features of the chosen samples; one may be chosen twice."""
        rows, inverse = np.unique(self.index[which], return_inverse=True)
        X = self.source.read(rows)
        self.wanted.check(X, rows)
        X[np.isnan(X)] = 0
        return X[inverse.ravel()]


@runtime_checkable
class SampleSource(Protocol):
    """A (n_samples, n_features) matrix of float32 or float64 read by rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """(n_samples, n_features)."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of what `read` returns: float32 or float64."""
        ...

    def read(self, rows: Indices) -> Array:
        """Return X[rows] as a new C-ordered array; `rows` is sorted and unique."""
        ...


class Source:
    """Base of our sources: what a source may say of itself beyond `SampleSource`.

    Attributes
    ----------
    shape : tuple of int
        n_samples and n_features.
    dtype : numpy.dtype
        float32 or float64.
    row_chunks : array of int, default=None
        Bounds, from 0 to n_samples, of rows that are read together; None if any row can
        be read for itself at no more cost.
    row_files : array of int, default=None
        Bounds of rows that are in one file, though each can be read for itself; None if
        all are.
    feature_chunk : int, default=None
        Number of neighbouring features that are read together; None if a part of a row
        costs as much as all of it.
    feature_order : array of int, default=None
        Which original feature each column is, if they were shuffled.
    feature_key : str, default=None
        What the features are, if data with as many of them may differ in that: a
        checksum of the mask that voxels come from.
    in_memory : bool, default=False
        Whether there is nothing to read ahead.
    """

    row_chunks: Indices | None = None
    row_files: Indices | None = None
    feature_chunk: int | None = None
    feature_order: Indices | None = None
    feature_key: str | None = None
    in_memory: bool = False

    shape: tuple[int, int]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        """Bytes of a sample in memory."""
        return self.shape[1] * self.dtype.itemsize

    @property
    def longest_chunk(self) -> int:
        """Most rows that are read together."""
        return 1 if self.row_chunks is None else int(np.diff(self.row_chunks).max())

    def read(self, rows: Indices) -> Array:
        """Return X[rows] as a new C-ordered array; `rows` is sorted and unique."""
        raise NotImplementedError

    def read_features(self, rows: Indices, features: Indices) -> Array:
        """Return X[rows][:, features] as a new C-ordered array; both are sorted."""
        return np.ascontiguousarray(self.read(rows)[:, features])

    def batch(self, rows: Indices, wanted: Requirements) -> Batch:
        """Return the batch of these rows, checked if that was not done before."""
        X = self.read(rows)
        wanted.check(X, rows)
        return Batch.of(X, rows)


def float_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the float type in which data of `dtype` are factorized."""
    if dtype in (np.float32, np.float16):
        return np.dtype(np.float32)
    return np.dtype(np.float64)


def adopt(source: SampleSource) -> Source:
    """Return a source with all that `Source` has; what it does not tell is unknown."""
    return source if isinstance(source, Source) else _Adopted(source)


class _Adopted(Source):
    """Somebody's source, which need not have more than `SampleSource` asks for."""

    def __init__(self, source: SampleSource) -> None:
        self.source = source
        self.shape = source.shape
        self.dtype = np.dtype(source.dtype)
        self.row_chunks = getattr(source, "row_chunks", None)
        self.feature_chunk = getattr(source, "feature_chunk", None)
        self.feature_order = getattr(source, "feature_order", None)
        self.feature_key = getattr(source, "feature_key", None)
        self.in_memory = getattr(source, "in_memory", False)

    def read(self, rows: Indices) -> Array:
        return self.source.read(rows)

    def read_features(self, rows: Indices, features: Indices) -> Array:
        if hasattr(self.source, "read_features"):
            return np.asarray(self.source.read_features(rows, features))
        return super().read_features(rows, features)


class ArraySource(Source):
    """An array in memory: C order is used in place, any other is read row by row."""

    in_memory = True

    def __init__(self, X: Array) -> None:
        self.X = X
        self.shape = X.shape
        self.dtype = float_dtype(X.dtype)
        self.in_place = X.dtype == self.dtype and X.flags.c_contiguous

    def read(self, rows: Indices) -> Array:
        """Return X[rows] as a new C-ordered array."""
        return np.ascontiguousarray(self.X[rows], dtype=self.dtype)

    def read_features(self, rows: Indices, features: Indices) -> Array:
        """Return X[rows][:, features] as a new array."""
        return np.ascontiguousarray(self.X[np.ix_(rows, features)], dtype=self.dtype)

    def batch(self, rows: Indices, wanted: Requirements) -> Batch:
        """Return the batch without a copy if possible; the array was checked before."""
        if self.in_place:
            return Batch(self.X, rows, rows)
        return Batch.of(self.read(rows), rows)


@dataclass(frozen=True)
class Requirements:
    """What samples must be, checked as they are read."""

    finite: bool = True  # else NaN may stand for what is missing
    nonnegative: bool = False
    known: bool = False  # whether the samples were checked before
    first_row: int = 0  # number of row 0 in the whole data set, for messages

    def check(self, X: Array, rows: Indices) -> None:
        """Raise for samples that cannot be learned from, and name them."""
        if self.known:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            suspect = not np.isfinite(X.sum())
        if suspect:
            bad = ~np.isfinite(X) if self.finite else np.isinf(X)
            what = "NaN or infinity" if self.finite else "infinity"
            self._refuse(bad, rows, f"hold {what}; remove or repair them")
        if self.nonnegative:  # NaN is not less than zero
            hint = "are negative somewhere; NMF takes non-negative data"
            self._refuse(X < 0, rows, hint)

    def _refuse(self, bad: Array, rows: Indices, why: str) -> None:
        which = rows[bad.any(axis=1)] + self.first_row
        if len(which):
            raise ValueError(
                f"Samples {which[:5].tolist()} of the source ({len(which)} of "
                f"{len(rows)} in this batch) {why}."
            )


COMPLETE = Requirements()


def read_batch(source: Source, rows: Indices, wanted: Requirements = COMPLETE) -> Batch:
    """Read the batch of these rows, with NaN marked where it may be there."""
    batch = source.batch(rows, wanted)
    return batch if wanted.finite else mark_missing(batch)


def fingerprint(source: SampleSource) -> str:
    """Return a checksum of three samples, which tells data from other data."""
    n_samples = source.shape[0]
    rows = np.unique([0, n_samples // 2, n_samples - 1])
    return hashlib.sha256(np.ascontiguousarray(source.read(rows)).data).hexdigest()


def mark_missing(batch: Batch) -> Batch:
    """Return the batch with NaN marked as missing and replaced by zero in a copy."""
    X = batch.X[batch.rows]
    missing = np.isnan(X)
    if not missing.any():
        return batch
    X[missing] = 0
    return Batch(X, np.arange(len(X)), batch.index, missing)


def read_observed(
    source: Source,
    rows: Indices,
    features: Indices,
    wanted: Requirements = COMPLETE,
) -> ObservedBatch:
    """Read these features of the batch of these rows, and nothing else."""
    X = source.read_features(rows, features)
    wanted.check(X, rows)
    missing = np.isnan(X) if not wanted.finite else None
    if missing is None or not missing.any():
        return ObservedBatch(X, rows, source, wanted)
    X[missing] = 0
    return ObservedBatch(X, rows, source, wanted, missing)
