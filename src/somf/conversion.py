"""Rewrites any input as a Zarr group, in chunks that suit masks of feature blocks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.parameters import check_number
from somf.sampling import as_generator
from somf.sources import as_source
from somf.sources.ahead import read_ahead
from somf.sources.base import Indices, Source
from somf.sources.checks import need
from somf.sources.chunked import read_in_order
from somf.sources.reordered import align_features

Array = NDArray[Any]
Progress = Callable[[int, int], None]

# Names inside of the group.
SAMPLES, FEATURES, RECORD = "samples", "features", "somf"

CHUNK_BYTES = 2**19  # wanted for a chunk
MOST_FEATURES = 2048
MOST_SAMPLES = 256  # samples of a chunk are read together, and mix with fewer others
FEATURE_CHUNKS = 48  # a mask of 1 in 12 is then still made of four chunks or more
LINE = 16  # features; a narrower chunk is no faster to read
BLOCK_BYTES = 2**26  # read and written at a time


def convert(
    X: Any,
    target: str | os.PathLike[str],
    *,
    chunk_samples: int | None = None,
    chunk_features: int | None = None,
    shuffle_features: bool = False,
    random_state: Any = None,
    dtype: Any = None,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> None:
    """Write samples to a Zarr group from which a few features are read at little cost.

    The group holds the array "samples", uncompressed (compression made reading of one
    column of chunks half as fast, and saved 7 % of random floats), and, if features are
    shuffled, the array "features": which original feature each column is. What learns
    from the group gives `components_` in the original order.

    A conversion that was stopped goes on where it was when it is called again in the
    same way. Until it is complete, the group cannot be opened as samples.

    Parameters
    ----------
    X : anything that `SOMF.fit` takes
    target : path that ends with .zarr
    chunk_samples, chunk_features : int, default=None
        Shape of a chunk. None takes as many features as make 48 chunks of a sample, but
        between 16 and 2048, and as many samples as make half a megabyte, but between 64
        and 256.
    shuffle_features : bool, default=False
        Whether columns are stored in one random order, so that a chunk is a random
        sample of the features. Neighbours are often alike; without shuffling, a mask of
        whole chunks sees less of the variety of the features.
    random_state : int, RandomState instance, Generator or None, default=None
        Draws that order.
    dtype : float32 or float64, default=None
        Type of the values; None keeps the type in which the input is factorized.
    progress : callable, default=None
        Called with the samples done and all samples, after each block.
    overwrite : bool, default=False
        Whether a Zarr group that is there already is replaced.

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> from somf.conversion import convert
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "samples.zarr"
    >>> convert(np.eye(100), target, chunk_features=25)
    """
    target = _check_target(target, X)
    source = as_source(X)
    layout = Layout.choose(source, chunk_samples, chunk_features, dtype)
    if overwrite:
        _remove(target)
    order = None
    if shuffle_features:
        order = as_generator(random_state).permutation(source.shape[1])
    record = _read_record(target)
    if record is None or record["rows_done"] == 0:
        _remove(target)
        _create(target, layout, order)
        done = 0
    else:
        fixed = shuffle_features and random_state is not None
        order = _check_same(target, layout, shuffle_features, order if fixed else None)
        done = record["rows_done"]
        _check_values(target, align_features(source, order), layout, done)
    _copy(align_features(source, order), target, layout, done, progress)


@dataclass(frozen=True)
class Layout:
    """Shape, type and chunks of the array of samples."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    chunks: tuple[int, int]

    @classmethod
    def choose(
        cls,
        source: Source,
        chunk_samples: int | None,
        chunk_features: int | None,
        dtype: Any,
    ) -> Layout:
        """Return the layout as it is asked for, the rest by the rule of `convert`."""
        kind = np.dtype(source.dtype if dtype is None else dtype)
        if kind not in (np.float32, np.float64):
            raise ValueError(f"dtype={dtype!r} must be float32 or float64.")
        n_samples, n_features = source.shape
        if chunk_features is None:
            chunk_features = n_features // FEATURE_CHUNKS // LINE * LINE
            chunk_features = min(max(chunk_features, LINE), MOST_FEATURES)
        check_number("chunk_features", chunk_features, 1, integer=True)
        chunk_features = min(chunk_features, n_features)
        if chunk_samples is None:
            chunk_samples = CHUNK_BYTES // (chunk_features * kind.itemsize)
            chunk_samples = min(max(chunk_samples, 64), MOST_SAMPLES)
        check_number("chunk_samples", chunk_samples, 1, integer=True)
        chunk_samples = min(chunk_samples, n_samples)
        return cls(source.shape, kind, (int(chunk_samples), int(chunk_features)))

    def blocks(self, start: int) -> list[Indices]:
        """Rows from `start` on that are copied together: whole rows of chunks."""
        n_samples, n_features = self.shape
        chunk_bytes = self.chunks[0] * n_features * self.dtype.itemsize
        step = self.chunks[0] * max(1, BLOCK_BYTES // chunk_bytes)
        starts = range(start, n_samples, step)
        return [np.arange(i, min(i + step, n_samples)) for i in starts]


def _copy(
    source: Source, target: Path, layout: Layout, done: int, progress: Progress | None
) -> None:
    """Write the rows from `done` on; what is done is noted after it is written."""
    group = _zarr().open_group(str(target), mode="r+")
    samples = group[SAMPLES]
    record = dict(group.attrs[RECORD])
    blocks = layout.blocks(done)
    source = read_in_order(source, len(blocks[0]) if blocks else 0)
    for rows, block in read_ahead(source.read, blocks, depth=1):
        done = int(rows[-1]) + 1
        samples[rows[0] : done] = block.astype(layout.dtype, copy=False)
        record.update(rows_done=done, complete=done == layout.shape[0])
        group.attrs[RECORD] = record
        if progress is not None:
            progress(done, layout.shape[0])


def _create(target: Path, layout: Layout, order: Indices | None) -> None:
    group = _zarr().open_group(str(target), mode="w-", **_version())
    # Before the arrays: from the start, readers see that it is not complete.
    group.attrs[RECORD] = {
        "complete": False,
        "rows_done": 0,
        "n_samples": layout.shape[0],
    }
    create_array(target, layout.shape, layout.chunks, layout.dtype, SAMPLES)
    if order is not None:
        features = create_array(target, order.shape, order.shape, np.int64, FEATURES)
        features[:] = order


def create_array(
    store: Path,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: Any,
    name: str = "",
) -> Any:
    """Make an uncompressed Zarr array, a folder for each row of chunks.

    It is of version 2 of the format, which every zarr-python reads.
    """
    return _zarr().open_array(
        str(store),
        mode="w",
        path=name,
        shape=shape,
        chunks=chunks,
        dtype=np.dtype(dtype).str,
        compressor=None,
        fill_value=0,
        dimension_separator="/",
        **_version(),
    )


# -- what is there already -----------------------------------------------------------


def _check_target(target: str | os.PathLike[str], X: Any) -> Path:
    path = Path(target)
    if path.suffix != ".zarr":
        raise ValueError(
            f"{path} must end with .zarr: that is how it is known again as an input."
        )
    inputs = X if isinstance(X, list | tuple) else [X]
    for one in inputs:
        if isinstance(one, str | os.PathLike) and Path(one).resolve() == path.resolve():
            raise ValueError(f"{path} is the input itself; write to another place.")
    return path


def _remove(target: Path) -> None:
    """Remove a Zarr group; anything else that is there stays, with an error."""
    if not target.exists():
        return
    if not any((target / name).exists() for name in (".zgroup", "zarr.json")):
        raise FileExistsError(f"{target} is there and is no Zarr group; move it away.")
    shutil.rmtree(target)


def _read_record(target: Path) -> dict[str, Any] | None:
    """Return what is known of an unfinished conversion; None if there is nothing."""
    if not target.exists():
        return None
    try:
        attributes = dict(_zarr().open_group(str(target), mode="r").attrs)
        record = dict(attributes[RECORD])
        complete, _ = record["complete"], record["rows_done"]
    except (ValueError, KeyError, OSError) as error:
        raise FileExistsError(
            f"{target} is there, and is not an unfinished conversion that could be "
            "continued. Write to another place, or overwrite it."
        ) from error
    if complete:
        raise FileExistsError(
            f"{target} is a complete conversion already. Write to another place, or "
            "overwrite it."
        )
    return record


def _check_same(
    target: Path, layout: Layout, shuffled: bool, order: Indices | None
) -> Indices | None:
    """Raise if the group is laid out in another way; return its order of features."""
    group = _zarr().open_group(str(target), mode="r")
    samples = group[SAMPLES]
    there = Layout(samples.shape, np.dtype(samples.dtype), samples.chunks)
    differences = [
        f"{name} {getattr(there, name)} there and {getattr(layout, name)} here"
        for name in ("shape", "dtype", "chunks")
        if getattr(there, name) != getattr(layout, name)
    ]
    stored: Any = group[FEATURES][:] if FEATURES in group else None
    if stored is None and shuffled:
        differences.append("features in their own order there, shuffled here")
    elif stored is not None and not shuffled:
        differences.append("features shuffled there, in their own order here")
    elif order is not None and not np.array_equal(stored, order):
        differences.append(
            "features shuffled in another order, by another random_state"
        )
    if differences:
        _refuse(target, "; ".join(differences))
    return None if stored is None else np.asarray(stored, np.intp)


def _check_values(target: Path, source: Source, layout: Layout, done: int) -> None:
    """Raise unless the first and the last row that are done come from this input."""
    samples = _zarr().open_group(str(target), mode="r")[SAMPLES]
    for row in (0, done - 1):
        here = source.read(np.array([row])).astype(layout.dtype, copy=False)
        if not np.array_equal(samples[row : row + 1], here, equal_nan=True):
            _refuse(target, f"sample {row} has other values there than here")


def _refuse(target: Path, difference: str) -> None:
    raise ValueError(
        f"{target} is the unfinished conversion of something else ({difference}). Call "
        "with the same input and settings to continue it, or overwrite it."
    )


# -- zarr ----------------------------------------------------------------------------


def _zarr() -> Any:
    return need("zarr", "chunked", "Writing Zarr arrays")


def _version() -> dict[str, int]:
    """The argument that asks for version 2 of the format; zarr 2 knows no other."""
    return {"zarr_format": 2} if int(_zarr().__version__.split(".")[0]) >= 3 else {}
