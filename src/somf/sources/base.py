"""What a source of samples is, and what an iteration gets from it."""

from __future__ import annotations

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
    them; None when they have no number.
    """

    X: Array
    rows: Indices
    index: Indices | None = None

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


def float_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the float type in which data of `dtype` are factorized."""
    if dtype in (np.float32, np.float16):
        return np.dtype(np.float32)
    return np.dtype(np.float64)


class ArraySource:
    """An array in memory or a memory map: C order is used in place, else row by row."""

    def __init__(self, X: Array) -> None:
        self.X = X
        self.shape: tuple[int, int] = X.shape
        self.dtype = float_dtype(X.dtype)
        self._in_place = X.dtype == self.dtype and X.flags.c_contiguous

    def read(self, rows: Indices) -> Array:
        """Return X[rows] as a new C-ordered array."""
        return np.ascontiguousarray(self.X[rows], dtype=self.dtype)

    def batch(self, rows: Indices) -> Batch:
        """Return the batch of these rows without a copy where that is possible."""
        if self._in_place:
            return Batch(self.X, rows, rows)
        return Batch.of(self.read(rows), rows)


def as_source(X: Array | SampleSource) -> SampleSource:
    """Wrap an array; return a source as it is."""
    return ArraySource(X) if isinstance(X, np.ndarray) else X


def read_batch(source: SampleSource, rows: Indices) -> Batch:
    """Read the batch of these rows; what a source reads is checked here."""
    if isinstance(source, ArraySource):
        return source.batch(rows)
    X = source.read(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        suspect = not np.isfinite(X.sum())
    if suspect and not np.isfinite(X).all():
        bad = rows[~np.isfinite(X).all(axis=1)]
        raise ValueError(
            f"Samples {bad[:5].tolist()} of the source ({len(bad)} of {len(rows)} in "
            "this batch) hold NaN or infinity; remove or repair them."
        )
    return Batch.of(X, rows)
