"""Everything that holds samples becomes a source; anything else is told what would."""

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import dask.array as da
import h5py
import nibabel
import numpy as np
import pytest
import scipy.sparse
import zarr

from somf.sources import (
    ArraySource,
    DaskSource,
    HDF5Source,
    MappedSource,
    NiftiSource,
    SparseSource,
    StackedSource,
    ZarrSource,
    as_source,
    open_source,
)
from somf.sources.opening import OPENERS
from somf.testing import SourceContract

ROWS = np.array([1, 3, 4])


def matrix():
    return np.arange(48, dtype=np.float32).reshape(6, 8)


def write(path, X=None):
    """Write a file of the kind that its name tells."""
    X = matrix() if X is None else X
    name = path.name
    if name.endswith(".npy"):
        np.save(path, X)
    elif name.endswith(".npz"):
        scipy.sparse.save_npz(path, scipy.sparse.csr_matrix(X))
    elif name.endswith(".zarr"):
        array = zarr.open(str(path), mode="w", shape=X.shape, dtype=X.dtype)
        array[:] = X
    elif ".nii" in name:
        data = X.T.reshape(2, 2, 2, -1)
        nibabel.save(nibabel.Nifti1Image(data, np.eye(4)), path)
    else:
        with h5py.File(path, "w") as file:
            file["X"] = X
    return path


def mask_img():
    return nibabel.Nifti1Image(np.ones((2, 2, 2), np.uint8), np.eye(4))


def nifti_options(name):
    raw = {"mask_img": mask_img(), "standardize": False, "detrend": False}
    return raw if ".nii" in name else {}


FILES = {
    "X.npy": MappedSource,
    "X.npz": SparseSource,
    "X.h5": HDF5Source,
    "X.hdf5": HDF5Source,
    "X.hdf": HDF5Source,
    "X.HE5": HDF5Source,
    "X.zarr": ZarrSource,
    "X.nii": NiftiSource,
    "X.nii.gz": NiftiSource,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", [str, Path])
def test_extension_tells(tmp_path, name, kind):
    path = kind(write(tmp_path / name))
    source = open_source(path, **nifti_options(name))
    assert type(source) is FILES[name]
    np.testing.assert_array_equal(source.read(ROWS), matrix()[ROWS])


@pytest.mark.parametrize("name", [name for name in FILES if ".nii" not in name])
def test_paths_are_taken_for_samples(tmp_path, name):
    path = write(tmp_path / name)
    np.testing.assert_array_equal(as_source(path).read(ROWS), matrix()[ROWS])
    np.testing.assert_array_equal(as_source(str(path)).read(ROWS), matrix()[ROWS])


class TestOpenedArray(SourceContract):
    def make(self, X, tmp_path):
        return open_source(write(tmp_path / "X.npy", X))


class TestOpenedSeveral(SourceContract):
    def make(self, X, tmp_path):
        return open_source(
            (
                write(tmp_path / "X.npy", X[:5]),
                str(write(tmp_path / "X.h5", X[5:7])) + "::X",
                write(tmp_path / "X.zarr", X[7:]),
            )
        )


@pytest.mark.parametrize("slash", ["", "/"])
def test_zarr_is_known_by_what_the_folder_holds(tmp_path, slash):
    shutil.move(write(tmp_path / "X.zarr"), tmp_path / "samples")
    source = open_source(str(tmp_path / "samples") + slash)
    assert isinstance(source, ZarrSource)


def test_name_of_a_dataset_stands_behind_two_colons(tmp_path):
    with h5py.File(tmp_path / "X.h5", "w") as file:
        file["group/X"], file["group/Y"] = matrix(), -matrix()
    path = tmp_path / "X.h5"
    for source in (
        open_source(f"{path}::/group/Y"),
        open_source(f"{path}::group/Y"),
        open_source(path, name="group/Y"),
    ):
        np.testing.assert_array_equal(source.read(ROWS), -matrix()[ROWS])
    with pytest.raises(ValueError, match=r"2 2-D datasets.*X\.h5::/group/X"):
        open_source(path)


def test_several_images_are_one_source(tmp_path):
    paths = [write(tmp_path / name) for name in ("X.nii", "Y.nii.gz")]
    source = open_source(paths, **nifti_options(".nii"))
    assert type(source) is NiftiSource
    assert source.shape == (12, 8)


def test_images_and_arrays_are_stacked(tmp_path, monkeypatch):
    open_raw = partial(NiftiSource, **nifti_options(".nii"))
    monkeypatch.setitem(OPENERS, ".nii", open_raw)
    paths = [write(tmp_path / name) for name in ("X.npy", "Y.nii")]
    source = as_source(paths)
    assert type(source) is StackedSource
    np.testing.assert_array_equal(
        source.read(np.array([5, 6])), [matrix()[5], matrix()[0]]
    )


# Files that cannot be opened


@pytest.mark.parametrize("name", [*FILES, "X.txt"])
def test_missing_file(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=rf"no file .*{name}; a relative name"):
        open_source(tmp_path / name)


@pytest.mark.parametrize("name", [name for name in FILES if name != "X.zarr"])
def test_empty_file(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=rf"{name} is empty \(0 bytes\)"):
        open_source(tmp_path / name)


@pytest.mark.parametrize("name", FILES)
def test_file_that_is_not_what_its_name_says(tmp_path, name):
    (tmp_path / name).write_bytes(b"something else " * 100)
    with pytest.raises(ValueError, match=rf"{name} is not a"):
        open_source(tmp_path / name)


def test_archive_of_arrays_is_no_sparse_matrix(tmp_path):
    np.savez(tmp_path / "X.npz", X=matrix())
    with pytest.raises(ValueError, match=r"X\.npz is not a sparse.*as \.npy"):
        open_source(tmp_path / "X.npz")


@pytest.mark.parametrize("name", ["X.npy", "X.h5::X", "X.zarr"])
def test_file_with_another_number_of_dimensions(tmp_path, name):
    write(tmp_path / name.partition(":")[0], np.zeros((2, 3, 4)))
    with pytest.raises(ValueError, match=r"\(2, 3, 4\)"):
        open_source(tmp_path / name)


def test_unknown_extension(tmp_path):
    (tmp_path / "X.csv").write_text("1, 2")
    with pytest.raises(ValueError, match=r"X\.csv has no known.*\.npy, \.npz, .*\.gz"):
        open_source(tmp_path / "X.csv")


def test_folder_that_is_no_zarr(tmp_path):
    with pytest.raises(ValueError, match=r"no known extension.*folders of Zarr arrays"):
        open_source(tmp_path)


def test_no_paths():
    with pytest.raises(ValueError, match="list of paths is empty"):
        open_source([])


# Objects


class Bare:
    """No more than a source must have."""

    shape = (6, 8)
    dtype = np.dtype(np.float32)

    def read(self, rows):
        return matrix()[rows]


def test_sources_are_adopted():
    source = as_source(Bare())
    np.testing.assert_array_equal(source.read(ROWS), matrix()[ROWS])
    np.testing.assert_array_equal(
        source.read_features(ROWS, np.array([2])), matrix()[ROWS][:, [2]]
    )
    assert as_source(source) is source


def test_arrays_are_kept():
    X = matrix()
    source = as_source(X)
    assert type(source) is ArraySource
    assert source.X is X


def test_memory_maps_are_mapped(tmp_path):
    X = np.load(write(tmp_path / "X.npy"), mmap_mode="r")
    assert type(as_source(X)) is MappedSource


@pytest.mark.parametrize("kind", [scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_sparse_matrices(kind):
    assert type(as_source(kind(matrix()))) is SparseSource


def test_chunked_arrays(tmp_path):
    array = zarr.open(str(write(tmp_path / "X.zarr")), mode="r")
    assert type(as_source(array)) is ZarrSource
    assert type(as_source(da.ones((4, 3)))) is DaskSource
    with h5py.File(write(tmp_path / "X.h5"), "r") as file:
        assert type(as_source(file["X"])) is HDF5Source


@pytest.mark.parametrize("shape", [(), (3,), (3, 2, 2)])
def test_arrays_have_two_dimensions(tmp_path, shape):
    with pytest.raises(ValueError, match=f"The array has {len(shape)} dimensions"):
        as_source(np.zeros(shape))
    if shape:
        np.save(tmp_path / "X.npy", np.zeros(shape))
        with pytest.raises(ValueError, match=f"has {len(shape)} dimensions"):
            as_source(np.load(tmp_path / "X.npy", mmap_mode="r"))


@pytest.mark.parametrize("X", [3, None, [[1, 2]], [], ["X.npy", 3], {"X": 1}], ids=repr)
def test_other_objects(X):
    with pytest.raises(
        TypeError, match=r"X is a builtins\..*; samples must be a NumPy"
    ):
        as_source(X)


def test_optional_packages_are_not_imported():
    code = (
        "import sys, somf.sources as s, numpy as np; s.as_source(np.ones((2, 2))); "
        "print({'h5py', 'zarr', 'dask', 'nilearn', 'nibabel'} & set(sys.modules))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "set()"
