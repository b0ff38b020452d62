"""Matrices stored in chunks: HDF5, Zarr, Dask, and a memory of chunks read lately."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from somf.sources.base import Array, Indices, SampleSource, Source, adopt
from somf.sources.checks import (
    check_rows,
    existing_file,
    matrix_dtype,
    matrix_shape,
    need,
)

# Bytes that are asked for at once: calls cost little beside that many, and that many
# little beside a batch. A chunk is never cut, however large.
PIECE = 2**24
# Reading over so many bytes costs no more than the call that would skip them.
GAP = 2**16


class ChunkedSource(Source):
    """Base of matrices that give rectangles: a subclass has `_block`, and a layout."""

    _row_bounds: Indices | None  # of chunks; None if rows are stored one by one
    _feature_bounds: Indices

    def _set_layout(self, row_bounds: Indices | None, feature_bounds: Indices) -> None:
        self._row_bounds = row_bounds
        self._feature_bounds = feature_bounds
        if row_bounds is not None and np.any(np.diff(row_bounds) > 1):
            self.row_chunks = row_bounds
        *widths, last = np.diff(feature_bounds).tolist() or [0]
        if len(set(widths)) == 1 and last <= widths[0]:
            self.feature_chunk = widths[0]

    def _block(self, rows: slice, features: slice) -> Array:
        """Return X[rows, features]."""
        raise NotImplementedError

    def read(self, rows: Indices) -> Array:
        """Return X[rows]; every chunk that holds some of them is read once."""
        return self.read_features(rows, np.arange(self.shape[1]))

    def read_features(self, rows: Indices, features: Indices) -> Array:
        """Return X[rows][:, features], from the chunks that hold some of both."""
        check_rows(rows, self.shape[0])
        out = np.empty((len(rows), len(features)), self.dtype)
        if out.size == 0:
            return out
        row_bytes = self._stored_width(features) * self.dtype.itemsize
        row_parts = _spans(rows, self._row_bounds, row_bytes)
        height = max(rows[part][-1] - rows[part][0] + 1 for part in row_parts)
        column_bytes = int(height) * self.dtype.itemsize
        columns = [
            (part, *_range_and_picks(features[part]))
            for part in _spans(features, self._feature_bounds, column_bytes)
        ]
        for part in row_parts:
            row_range, picks = _range_and_picks(rows[part])
            for column_part, column_range, column_picks in columns:
                block = self._block(row_range, column_range)
                out[part, column_part] = block[picks][:, column_picks]
        return out

    def _stored_width(self, features: Indices) -> int:
        """Return the number of features in the chunks that hold some of these."""
        widths = np.diff(self._feature_bounds)
        return int(widths[np.unique(_chunks_of(features, self._feature_bounds))].sum())


def _chunks_of(wanted: Indices, bounds: Indices) -> Indices:
    return np.searchsorted(bounds, wanted, side="right") - 1


def _spans(wanted: Indices, bounds: Indices | None, bytes_each: int) -> list[slice]:
    """Cut sorted indices into parts, each to be read in one call, first to last.

    What lies between indices of one chunk, or of neighbouring chunks, costs nothing
    more. A call asks for about PIECE bytes, or for one chunk if that has more.
    """
    if bounds is None:
        starts = wanted
        near = (np.diff(wanted) - 1) * bytes_each <= GAP
    else:
        chunks = _chunks_of(wanted, bounds)
        starts = bounds[chunks]
        near = np.diff(chunks) <= 1
    near &= np.diff(starts * bytes_each // PIECE) == 0
    cuts = np.flatnonzero(~near) + 1
    edges = [0, *cuts.tolist(), len(wanted)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _range_and_picks(wanted: Indices) -> tuple[slice, Indices | slice]:
    """Return the range that holds sorted indices, and where they are in it."""
    first, last = int(wanted[0]), int(wanted[-1])
    everything = last - first + 1 == len(wanted)
    return slice(first, last + 1), slice(None) if everything else wanted - first


def _regular_bounds(n: int, chunk: int) -> Indices:
    return np.append(np.arange(0, n, max(1, chunk)), n)


class HDF5Source(ChunkedSource):
    """A 2-D dataset of an HDF5 file.

    A file given by its path is opened when it is read, and again in every process that
    the source is sent to. An open dataset is used as it is.

    Parameters
    ----------
    dataset : path or h5py.Dataset
    name : str or None
        Name of the dataset in the file; None if it has one 2-D dataset of numbers.

    Examples
    --------
    >>> import h5py, numpy as np, pathlib, tempfile
    >>> from somf.sources import HDF5Source
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "data.h5"
    >>> with h5py.File(path, "w") as file:
    ...     X = np.arange(12.0).reshape(4, 3)
    ...     _ = file.create_dataset("X", data=X, chunks=(2, 3))
    >>> source = HDF5Source(path, "X")
    >>> source.row_chunks
    array([0, 2, 4])
    >>> source.read(np.array([0, 3]))
    array([[ 0.,  1.,  2.],
           [ 9., 10., 11.]])
    """

    def __init__(self, dataset: Any, name: str | None = None) -> None:
        h5py = _import_h5py()
        if isinstance(dataset, str | os.PathLike):
            self.path = os.fspath(existing_file(dataset))
            with self._open_file() as file:
                self.name = _name_in(file, name, self.path)
                self._describe(file[self.name])
            self._dataset: Any = None
        elif isinstance(dataset, h5py.Dataset):
            self.path = os.path.abspath(dataset.file.filename)
            self.name = dataset.name
            self._describe(dataset)
            self._dataset = dataset
        else:
            raise TypeError(
                f"HDF5Source takes a path or an h5py.Dataset, not {type(dataset)}; "
                'of an open file, give one dataset: file["name"].'
            )
        self._process = os.getpid()

    def _describe(self, dataset: Any) -> None:
        what = f"The dataset {dataset.name} of {self.path}"
        n, p = self.shape = matrix_shape(dataset.shape, what)
        self.dtype = matrix_dtype(dataset.dtype, what)
        if dataset.chunks is None:
            self._set_layout(None, _regular_bounds(p, p))
        else:
            rows, features = dataset.chunks
            self._set_layout(_regular_bounds(n, rows), _regular_bounds(p, features))

    def _open_file(self) -> Any:
        try:
            return _import_h5py().File(self.path, "r")
        except OSError as error:
            raise ValueError(
                f"{self.path} is not a readable HDF5 file ({error})."
            ) from error

    def _block(self, rows: slice, features: slice) -> Array:
        # A handle must not be used by two processes, and the user may have closed his.
        if not self._dataset or self._process != os.getpid():
            self._dataset = self._open_file()[self.name]
            self._process = os.getpid()
        return np.asarray(self._dataset[rows, features])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_dataset": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        existing_file(self.path)


def _import_h5py() -> Any:
    return need("h5py", "chunked", "Reading HDF5 files")


def _name_in(file: Any, name: str | None, path: str) -> str:
    """Return the name of the dataset of a file that is meant."""
    datasets = _datasets(file)
    if name is not None:
        if not hasattr(file.get(name), "dtype"):
            raise ValueError(
                f"{path} has no dataset {name}; it has {_names(datasets)}."
            )
        return name
    numbers = [
        dataset
        for dataset in datasets
        if len(dataset.shape or ()) == 2 and dataset.dtype.kind in "fiub"
    ]
    if len(numbers) == 1:
        return str(numbers[0].name)
    if not numbers:
        raise ValueError(
            f"{path} has no 2-D dataset of numbers; it has {_names(datasets)}. Write "
            "the samples as one, a sample a row."
        )
    raise ValueError(
        f"{path} has {len(numbers)} 2-D datasets, {_names(numbers)}; say which one, "
        f"by its name or as {os.path.basename(path)}::{numbers[0].name}."
    )


def _datasets(file: Any) -> list[Any]:
    found: list[Any] = []

    def keep(name: str, node: Any) -> None:
        if hasattr(node, "dtype"):  # a group has none
            found.append(node)

    file.visititems(keep)
    return found


def _names(arrays: Iterable[Any]) -> str:
    names = [f"{array.name} {array.shape}" for array in arrays]
    return ", ".join(names) if names else "none"


class ZarrSource(ChunkedSource):
    """A 2-D Zarr array, of version 2 or 3 of the format.

    Parameters
    ----------
    array : path or zarr.Array or zarr.Group
        A group holds the array "samples" (n_samples, n_features) and may hold
        "features" (n_features,): which original feature each column is, for matrices
        that were stored with shuffled features.

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile, zarr
    >>> from somf.sources import ZarrSource
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "data.zarr"
    >>> array = zarr.open(path, mode="w", shape=(4, 6), chunks=(2, 3), dtype="f4")
    >>> array[:] = np.arange(24).reshape(4, 6)
    >>> source = ZarrSource(path)
    >>> source.row_chunks, source.feature_chunk
    (array([0, 2, 4]), 3)
    >>> source.read_features(np.array([0, 3]), np.array([4, 5]))
    array([[ 4.,  5.],
           [22., 23.]], dtype=float32)
    """

    def __init__(self, array: Any) -> None:
        zarr = need("zarr", "chunked", "Reading Zarr arrays")
        what = "The Zarr array"
        if isinstance(array, str | os.PathLike):
            what = f"{what} {os.fspath(array)}"
            array = _open_zarr(array, zarr)
        order = None
        if isinstance(array, zarr.Group):
            array, order = _members(array, zarr)
        if not isinstance(array, zarr.Array):
            raise TypeError(
                f"ZarrSource takes a path, a zarr.Array or a zarr.Group, not "
                f"{type(array)}."
            )
        n, p = self.shape = matrix_shape(array.shape, what)
        self.dtype = matrix_dtype(array.dtype, what)
        rows, features = array.chunks  # of a sharded array: the chunks inside of shards
        self._set_layout(_regular_bounds(n, rows), _regular_bounds(p, features))
        if order is not None:
            self.feature_order = _permutation(order, p)
        self._array = array
        self._folder = _folder_of(array)

    def _block(self, rows: slice, features: slice) -> Array:
        return np.asarray(self._array[rows, features])

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._folder is not None:  # Zarr would read zeros where there is no file
            existing_file(self._folder)


def _folder_of(array: Any) -> str | None:
    """Return the folder of an array; None if it is not in a folder of this machine."""
    store = array.store
    root = getattr(store, "root", None) or getattr(store, "path", None)
    if not isinstance(root, str | os.PathLike):
        return None
    folder = os.path.abspath(os.path.join(root, array.path))
    return folder if os.path.isdir(folder) else None


def _open_zarr(path: str | os.PathLike[str], zarr: Any) -> Any:
    absolute = existing_file(path)
    if (absolute / "zarr.json").exists() and zarr.__version__.startswith("2."):
        raise ValueError(
            f"{os.fspath(path)} has version 3 of the Zarr format, which zarr "
            f"{zarr.__version__} does not read: pip install 'zarr>=3'."
        )
    try:
        return zarr.open(os.fspath(absolute), mode="r")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{os.fspath(path)} is not a readable Zarr array or group "
            f"({str(error).strip() or type(error).__name__})."
        ) from error


def _members(group: Any, zarr: Any) -> tuple[Any, Any]:
    """Return the samples of a group, and the order of their features."""
    record = dict(group.attrs).get("somf", {})  # of somf.convert
    if record.get("complete") is False:
        raise ValueError(
            "The Zarr group is an unfinished conversion: it has "
            f"{record['rows_done']} of {record['n_samples']} samples. Convert again, "
            "with the same settings, to complete it."
        )
    if "samples" not in group or not isinstance(group["samples"], zarr.Array):
        raise ValueError(
            f'The Zarr group has no array "samples"; it has {_names(_arrays(group))}. '
            "Give the array itself, or its path: the group's, a slash and its name."
        )
    return group["samples"], group.get("features")


def _arrays(group: Any) -> list[Any]:
    return [array for _, array in group.arrays()]


def _permutation(features: Any, p: int) -> Indices:
    order = np.asarray(features[:], np.intp)
    if not np.array_equal(np.sort(order), np.arange(p)):
        raise ValueError(
            f'"features" of the Zarr group has shape {order.shape}; it must hold each '
            f"of the numbers 0 to {p - 1} once, a number for every column of samples."
        )
    return order


class DaskSource(ChunkedSource):
    """A 2-D Dask array, computed block by block with the scheduler that is active.

    Parameters
    ----------
    array : dask.array.Array of shape (n_samples, n_features)
        In any chunks. Blocks that hold some of the wanted rows and features are
        computed, every time they are wanted; see `ChunkCache`.

    Examples
    --------
    >>> import dask.array as da, numpy as np
    >>> from somf.sources import DaskSource
    >>> source = DaskSource(da.arange(12, chunks=3).reshape(4, 3) / 2)
    >>> source.read(np.array([0, 3]))
    array([[0. , 0.5, 1. ],
           [4.5, 5. , 5.5]])
    """

    def __init__(self, array: Any) -> None:
        dask = need("dask.array", "dask", "Reading Dask arrays")
        if not isinstance(array, dask.Array):
            raise TypeError(
                f"DaskSource takes a dask.array.Array, not {type(array)}; of a "
                "dataframe, take df.to_dask_array(lengths=True)."
            )
        if any(np.isnan(length) for length in array.shape):
            raise ValueError(
                f"The Dask array has chunks of unknown size, shape {array.shape}; call "
                "X.compute_chunk_sizes() first."
            )
        if not isinstance(array._meta, np.ndarray):
            raise TypeError(
                f"The blocks of the Dask array are {type(array._meta)}; they must be "
                "NumPy arrays: convert them with X.map_blocks."
            )
        self.shape = matrix_shape(array.shape, "The Dask array")
        self.dtype = matrix_dtype(array.dtype, "The Dask array")
        rows, features = (
            np.unique(np.cumsum([0, *lengths])) for lengths in array.chunks
        )
        self._set_layout(rows, features)
        self.array = array

    def _block(self, rows: slice, features: slice) -> Array:
        return np.asarray(self.array[rows, features].compute())


def read_in_order(source: Source, n_rows: int) -> Source:
    """Return a source for reading rows from the first to the last, `n_rows` at a time.

    Chunks that one read shares with the next are kept.
    """
    if source.row_chunks is None:
        return source
    n_kept = n_rows + 2 * source.longest_chunk
    return ChunkCache(source, n_kept * source.row_bytes)


class ChunkCache(Source):
    """A source that keeps the row chunks of another one that were read lately.

    It always reads whole chunks, so batches that are drawn from a few of them read
    each one once.

    Parameters
    ----------
    source : Source
        One with `row_chunks`.
    capacity_bytes : int
        Room for chunks. The last one is kept even if it alone is larger.

    Examples
    --------
    >>> import dask.array as da, numpy as np
    >>> from somf.sources import ChunkCache, DaskSource
    >>> X = da.arange(24, chunks=6).reshape(8, 3)
    >>> cached = ChunkCache(DaskSource(X), capacity_bytes=100)
    >>> cached.read(np.array([1]))
    array([[3., 4., 5.]])
    >>> cached.held  # samples 0 and 1: 6 floats of 8 bytes
    48
    """

    row_chunks: Indices

    def __init__(self, source: SampleSource, capacity_bytes: int) -> None:
        source = adopt(source)
        if source.row_chunks is None:
            raise ValueError(
                "The source has no row_chunks, so there are none to keep; read it "
                "without ChunkCache."
            )
        if capacity_bytes < 0:
            raise ValueError(f"capacity_bytes={capacity_bytes} must be 0 or more.")
        self.source = source
        self.capacity_bytes = capacity_bytes
        self.shape = source.shape
        self.dtype = source.dtype
        self.row_chunks = source.row_chunks
        self.feature_chunk = source.feature_chunk
        self.feature_order = source.feature_order
        self.in_memory = source.in_memory
        self._forget()

    def _forget(self) -> None:
        self._chunks: OrderedDict[int, Array] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes of the chunks that are kept now."""
        return sum(chunk.nbytes for chunk in self._chunks.values())

    def read(self, rows: Indices) -> Array:
        """Return X[rows] as a new C-ordered array."""
        check_rows(rows, self.shape[0])
        out = np.empty((len(rows), self.shape[1]), self.dtype)
        numbers, first = np.unique(_chunks_of(rows, self.row_chunks), return_index=True)
        ends = np.append(first[1:], len(rows))
        parts = {
            int(number): slice(start, stop)
            for number, start, stop in zip(numbers, first, ends, strict=True)
        }
        # Those that are here come first: others might push them out unread.
        for number in sorted(parts, key=lambda number: number not in self._chunks):
            part = parts[number]
            out[part] = self._chunk(number)[rows[part] - self.row_chunks[number]]
        return out

    def read_features(self, rows: Indices, features: Indices) -> Array:
        """Return X[rows][:, features] from the source itself; nothing is kept."""
        return self.source.read_features(rows, features)

    def _chunk(self, number: int) -> Array:
        start, stop = self.row_chunks[number : number + 2]
        n_bytes = int(stop - start) * self.row_bytes
        with self._lock:
            if number in self._chunks:
                self._chunks.move_to_end(number)
                return self._chunks[number]
            self._make_room(n_bytes)
        chunk = self.source.read(np.arange(start, stop))
        with self._lock:
            self._make_room(n_bytes)  # again: other threads have read meanwhile
            self._chunks[number] = chunk
        return chunk

    def _make_room(self, n_bytes: int) -> None:
        while self._chunks and self.held + n_bytes > self.capacity_bytes:
            self._chunks.popitem(last=False)

    def __getstate__(self) -> dict[str, Any]:
        """The copy starts with no chunks."""
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("_chunks", "_lock")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()
