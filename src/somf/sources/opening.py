"""From whatever holds samples, a path or an object, to a source."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from somf.sources.base import ArraySource, SampleSource, Source, adopt
from somf.sources.checks import existing_file, matrix_shape
from somf.sources.chunked import DaskSource, HDF5Source, ZarrSource
from somf.sources.mapped import MappedSource
from somf.sources.nifti import NiftiSource
from somf.sources.sparse import SparseSource
from somf.sources.stacked import StackedSource

PathLike = str | os.PathLike[str]

NIFTI = (".nii", ".nii.gz")
# Files that tell a folder with an array or a group from any other.
ZARR_FILES = ("zarr.json", ".zarray", ".zgroup")


def open_source(
    path: PathLike | list[PathLike] | tuple[PathLike, ...], **options: Any
) -> Source:
    """Return the samples of a file; what it is, its name tells.

    Parameters
    ----------
    path : path, or a list of paths
        =========================== ===============================================
        .npy                        an array, as a memory map
        .npz                        a matrix saved by scipy.sparse.save_npz
        .h5 .hdf5 .hdf .he5         HDF5; of several datasets one: "file.h5::name"
        .zarr, or a Zarr folder     Zarr
        .nii .nii.gz                images; volumes are samples
        =========================== ===============================================

        Several files are put one under the other.
    **options
        For the source: `NiftiSource` and `HDF5Source` have some.

    Returns
    -------
    source : Source

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> from somf.sources import open_source
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "X.npy"
    >>> np.save(path, np.arange(6.0).reshape(3, 2))
    >>> open_source([path, path]).read(np.array([2, 3]))
    array([[4., 5.],
           [0., 1.]])
    """
    if isinstance(path, list | tuple):
        return _open_several(path, options)
    name = os.fspath(path)
    opener = _opener(name)
    if opener is None:
        existing_file(name)
        raise ValueError(
            f"{name} has no known extension; known are {', '.join(OPENERS)}, and "
            "folders of Zarr arrays. Open other files yourself, and give the array."
        )
    return opener(name, **options)


def _open_several(
    paths: list[PathLike] | tuple[PathLike, ...], options: dict[str, Any]
) -> Source:
    if not paths:
        raise ValueError("The list of paths is empty; give at least one.")
    if all(os.fspath(path).lower().endswith(NIFTI) for path in paths):
        return NiftiSource(list(paths), **options)
    return StackedSource([open_source(path, **options) for path in paths])


def _open_sparse(path: str) -> Source:
    existing_file(path)
    try:
        X = scipy.sparse.load_npz(path)
    except (ValueError, OSError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is not a sparse matrix saved by scipy.sparse.save_npz ({error}); "
            "save an array as .npy."
        ) from error
    return SparseSource(X)


def _open_mapped(path: str) -> Source:
    existing_file(path)
    return MappedSource.open(path)


def _open_hdf5(path: str, **options: Any) -> Source:
    path, _, name = path.partition("::")
    if name:
        options["name"] = name
    return HDF5Source(path, **options)


OPENERS: dict[str, Callable[..., Source]] = {
    ".npy": _open_mapped,
    ".npz": _open_sparse,
    **dict.fromkeys((".h5", ".hdf5", ".hdf", ".he5"), _open_hdf5),
    ".zarr": ZarrSource,
    **dict.fromkeys(NIFTI, NiftiSource),
}


def _opener(name: str) -> Callable[..., Source] | None:
    if any((Path(name) / file).exists() for file in ZARR_FILES):
        return ZarrSource
    bare = name.partition("::")[0].rstrip("/\\").lower()
    known = [extension for extension in OPENERS if bare.endswith(extension)]
    return OPENERS[known[0]] if known else None


def as_source(X: Any) -> Source:
    """Return the samples that `X` holds as a source.

    Parameters
    ----------
    X : source, array, memory map, sparse matrix, h5py.Dataset, Zarr array, Dask \
array, path, or list of paths and sources
        A source is any object with `shape`, `dtype` and `read(rows)`.

    Returns
    -------
    source : Source

    Examples
    --------
    >>> import numpy as np
    >>> from somf.sources import as_source
    >>> as_source(np.ones((3, 2))).shape
    (3, 2)
    """
    if isinstance(X, SampleSource):
        return adopt(X)
    if isinstance(X, np.ndarray):
        matrix_shape(X.shape, "The array")
        return MappedSource(X) if isinstance(X, np.memmap) else ArraySource(X)
    if scipy.sparse.issparse(X):
        return SparseSource(X)
    if isinstance(X, str | os.PathLike) or _are_paths(X):
        return open_source(X)
    if isinstance(X, list | tuple) and any(isinstance(x, SampleSource) for x in X):
        return StackedSource([as_source(x) for x in X])
    package = type(X).__module__.partition(".")[0]
    if package in CHUNKED:
        return CHUNKED[package](X)
    raise TypeError(
        f"X is a {type(X).__module__}.{type(X).__qualname__}; samples must be a NumPy "
        "array or memory map, a SciPy sparse matrix, an h5py.Dataset, a Zarr or Dask "
        "array, a path or a list of paths, or an object with shape, dtype and "
        "read(rows). For anything else try numpy.asarray(X)."
    )


# Told by the name of their package, so that none of them has to be imported.
CHUNKED: dict[str, Callable[[Any], Source]] = {
    "h5py": HDF5Source,
    "zarr": ZarrSource,
    "dask": DaskSource,
}


def _are_paths(X: Any) -> bool:
    return (
        isinstance(X, list | tuple)
        and len(X) > 0
        and all(isinstance(path, str | os.PathLike) for path in X)
    )
