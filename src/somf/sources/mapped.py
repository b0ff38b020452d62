"""Memory maps: used in place while they fit in memory, else read from their file."""

from __future__ import annotations

import mmap
import os
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from somf.memory import available_memory
from somf.sources.base import Batch, Indices, Requirements, Source, float_dtype
from somf.sources.checks import check_rows

Array = NDArray[Any]

# A map is used in place if it takes no more than this part of the free memory: no copy,
# and the system may take the pages back. Beyond, rows are copied from the file. Pages
# that are touched in place stay resident, and may be 2 MB large for a row of 200 kB.
PART_IN_PLACE = 0.25


class MappedSource(Source):
    """A 2-D memory map. C-ordered floats that fit in memory are used in place.

    Reading a batch touches every page of it, so that the thread that reads ahead waits
    for the disk and the threads that compute do not.

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
        fits = X.nbytes <= PART_IN_PLACE * available_memory()
        self.in_place = fits and X.dtype == self.dtype and X.flags.c_contiguous
        self._file = None if fits else _RowsOfFile.of(X)

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
        check_rows(rows, self.shape[0])
        if self._file is None:
            return np.array(self.X[rows], dtype=self.dtype, order="C")
        stored = np.empty((len(rows), self.shape[1]), self.X.dtype)
        self._file.read(rows, stored)
        return stored.astype(self.dtype, copy=False)

    def batch(self, rows: Indices, wanted: Requirements) -> Batch:
        """Bring the rows into memory, and check them."""
        if not self.in_place:
            return super().batch(rows, wanted)
        X = self.X.view(np.ndarray)
        for row in rows:
            if wanted.known:
                X[row, :: mmap.PAGESIZE // self.dtype.itemsize].max()  # touch its pages
            else:
                wanted.check(X[row : row + 1], row[None])
        return Batch(X, rows, rows)

    def __getstate__(self) -> dict[str, Any]:
        """A map travels as its place in a file."""
        file = _RowsOfFile.of(self.X)
        if file is None:
            return {"X": np.array(self.X)}
        return {"place": (file.path, self.X.dtype, file.offset, self.shape)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "place" in state:
            path, dtype, offset, shape = state["place"]
            self.__init__(np.memmap(path, dtype, "r", offset, shape))  # type: ignore[misc]
        else:
            self.__init__(state["X"])  # type: ignore[misc]


class _RowsOfFile:
    """The rows of a C-ordered map, read from its file and not through the map."""

    def __init__(self, path: str, offset: int, row_bytes: int) -> None:
        self.path = path
        self.offset = offset
        self.row_bytes = row_bytes

    @classmethod
    def of(cls, X: Array) -> _RowsOfFile | None:
        """Return where `X` is in its file; None if it is not there as it is here."""
        name, base = getattr(X, "filename", None), _map_under(X)
        changed = getattr(X, "mode", None) == "c"  # pages that no file has
        if name is None or base is None or changed or not X.flags.c_contiguous:
            return None
        start = np.frombuffer(base, np.uint8).ctypes.data
        # np.memmap maps from a boundary at or below its offset.
        offset = X.offset - X.offset % mmap.ALLOCATIONGRANULARITY  # type: ignore[attr-defined]
        return cls(os.fspath(name), offset + X.ctypes.data - start, X.strides[0])

    def read(self, rows: Indices, out: Array) -> None:
        """Overwrite `out` with the rows; neighbours are read in one call."""
        with open(self.path, "rb", buffering=0) as file:
            for first, row, n in _runs(rows):
                file.seek(self.offset + int(row) * self.row_bytes)
                part = out[first : first + n].reshape(-1).view(np.uint8).data
                while len(part):
                    n_read = file.readinto(part)
                    if not n_read:
                        raise OSError(
                            f"{self.path} ends before row {row + n}; was it cut off "
                            "while it was read?"
                        )
                    part = part[n_read:]


def _map_under(X: Array) -> mmap.mmap | None:
    base: Any = X
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None


def _runs(rows: Indices) -> list[tuple[int, int, int]]:
    """Return sorted rows as neighbours: (position of the first, its row, how many)."""
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    starts = np.concatenate([[0], cuts]) if len(rows) else cuts
    stops = np.append(starts[1:], len(rows))
    return [
        (int(a), int(rows[a]), int(b - a)) for a, b in zip(starts, stops, strict=True)
    ]
