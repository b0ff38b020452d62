"""Memory maps: rows are used in place, and their pages come ahead and go in time."""

from __future__ import annotations

import mmap
import os
from collections import deque
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from somf.sources.base import Batch, Indices, Requirements, Source, float_dtype

Array = NDArray[Any]

PAGE = mmap.PAGESIZE
# Bytes of a map that stay mapped. Beyond, pages are handed back to the system, which
# still has them in its cache as long as it has room: what is resident stays flat.
KEEP = 2**29


class MappedSource(Source):
    """A 2-D memory map. C-ordered floats are used in place, anything else is copied.

    Reading a batch touches every page of it, so that the thread that reads ahead waits
    for the disk and the threads that compute do not. A sample is looked at for NaN and
    infinity when it is read for the first time.

    Parameters
    ----------
    X : memory map of shape (n_samples, n_features)

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "X.npy"
    >>> np.save(path, np.arange(6.0).reshape(3, 2))
    >>> MappedSource.open(path).read(np.array([0, 2]))
    array([[0., 1.],
           [4., 5.]])
    """

    def __init__(self, X: np.memmap[Any, Any]) -> None:
        if X.ndim != 2 or X.dtype.kind not in "fiub":
            raise ValueError(
                f"The memory map has shape {X.shape} and type {X.dtype}; it must hold "
                "numbers, and have two dimensions: a sample a row."
            )
        self.X = X
        self.shape = X.shape
        self.dtype = float_dtype(X.dtype)
        self.in_place = X.dtype == self.dtype and X.flags.c_contiguous
        self._seen = np.zeros(X.shape[0], bool)
        self._pages = _Pages(X)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map a `.npy` file."""
        try:
            X = np.load(path, mmap_mode="r")
        except ValueError as error:
            raise ValueError(
                f"{os.fspath(path)} is not a readable .npy file of numbers ({error})."
            ) from error
        if not isinstance(X, np.memmap):  # an archive, or an empty array
            raise ValueError(f"{os.fspath(path)} does not hold one array in .npy form.")
        return cls(X)

    def read(self, rows: Indices) -> Array:
        """Return X[rows] as a new C-ordered array."""
        self._pages.make_room(rows)
        return np.array(self.X[rows], dtype=self.dtype, order="C")

    def read_features(self, rows: Indices, features: Indices) -> Array:
        """Return X[rows][:, features] as a new C-ordered array."""
        self._pages.make_room(rows)
        part = self.X[np.ix_(rows, features)]
        return np.array(part, dtype=self.dtype, order="C")

    def batch(self, rows: Indices, wanted: Requirements) -> Batch:
        """Bring the rows into memory, check the new ones, and return them in place."""
        if not self.in_place:
            X = self.read(rows)
            wanted.check(X, rows)
            return Batch.of(X, rows)
        self._pages.make_room(rows)
        plain = self.X.view(np.ndarray)
        for row in rows:
            if self._seen[row]:
                plain[row, :: PAGE // self.dtype.itemsize].max()  # touch its pages
            else:
                wanted.check(plain[row : row + 1], row[None])
        self._seen[rows] = True
        return Batch(plain, rows, rows)

    def __getstate__(self) -> dict[str, Any]:
        """A map travels as the place in its file, if it is one of a file."""
        X, base = self.X, _root(self.X)
        name = getattr(X, "filename", None)
        if name is None or base is None or X.flags.c_contiguous is False:
            return {"X": np.array(X)}
        start = np.frombuffer(base, np.uint8).ctypes.data
        # np.memmap maps from a page boundary below its offset.
        offset = X.offset - X.offset % mmap.ALLOCATIONGRANULARITY
        offset += X.ctypes.data - start
        return {"place": (os.fspath(name), X.dtype, offset, X.shape)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "place" in state:
            name, dtype, offset, shape = state["place"]
            self.__init__(np.memmap(name, dtype, "r", offset, shape))  # type: ignore[misc]
        else:
            self.__init__(state["X"])  # type: ignore[misc]


def _root(X: Array) -> mmap.mmap | None:
    """Return the map under an array, if it is one that never loses what was written."""
    if getattr(X, "mode", None) == "c":  # private pages: they are nowhere else
        return None
    base: Any = X
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None


class _Pages:
    """Hands back the pages of the rows that were read longest ago."""

    def __init__(self, X: Array) -> None:
        self._map = _root(X)
        advice = getattr(mmap, "MADV_DONTNEED", None)
        large = X.nbytes > KEEP and X.flags.c_contiguous
        self._advice = advice if large else None
        self._row_bytes = X.strides[0]
        self._resident: deque[Indices] = deque()
        self._n_rows = 0
        if self._map is not None and self._advice is not None:
            start = np.frombuffer(self._map, np.uint8).ctypes.data
            self._offset = X.ctypes.data - start

    def make_room(self, rows: Indices) -> None:
        """Note that `rows` are read now, and forget old ones beyond KEEP."""
        if self._map is None or self._advice is None or len(rows) == 0:
            return
        self._resident.append(rows)
        self._n_rows += len(rows)
        while len(self._resident) > 4 and self._n_rows * self._row_bytes > KEEP:
            old = self._resident.popleft()
            self._n_rows -= len(old)
            for first, n in _runs(old):
                start = self._offset + first * self._row_bytes
                start -= start % PAGE
                self._map.madvise(self._advice, start, n * self._row_bytes)


def _runs(rows: Indices) -> list[tuple[int, int]]:
    """Return sorted rows as (first, number) of neighbours."""
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    starts = np.concatenate([[0], cuts])
    stops = np.concatenate([cuts, [len(rows)]])
    return [(int(rows[a]), int(b - a)) for a, b in zip(starts, stops, strict=True)]
