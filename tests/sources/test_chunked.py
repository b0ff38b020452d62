"""Chunks are read once, only those that are needed, and kept while there is room."""

import os
import pickle
import sys
from itertools import pairwise

import dask.array as da
import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from somf.sources import ArraySource, ChunkCache, DaskSource, HDF5Source, ZarrSource
from somf.sources import chunked as chunked_module
from somf.sources.chunked import ChunkedSource
from somf.testing import SourceContract

OLD_ZARR = zarr.__version__.startswith("2.")


def matrix(n=12, p=10, dtype=np.float32):
    return np.arange(n * p).reshape(n, p).astype(dtype)


def write_hdf5(path, X, name="X", **options):
    with h5py.File(path, "a") as file:
        file.create_dataset(name, data=X, **options)
    return path


def write_zarr(path, X, chunks, version=2, shards=None):
    if OLD_ZARR:
        if version == 3:
            pytest.skip("zarr 2 writes version 2 of the format only")
        array = zarr.open(
            str(path), mode="w", shape=X.shape, dtype=X.dtype, chunks=chunks
        )
    else:
        array = zarr.create_array(
            path,
            shape=X.shape,
            dtype=X.dtype,
            chunks=chunks,
            shards=shards,
            zarr_format=version,
        )
    array[:] = X
    return path


# The contract


class TestHDF5InOnePiece(SourceContract):
    def make(self, X, tmp_path):
        return HDF5Source(write_hdf5(tmp_path / "X.h5", X))


class TestHDF5InChunks(SourceContract):
    def make(self, X, tmp_path):
        return HDF5Source(write_hdf5(tmp_path / "X.h5", X, chunks=(5, 4)))


class TestHDF5Compressed(SourceContract):
    def make(self, X, tmp_path):
        path = tmp_path / "X.h5"
        write_hdf5(path, X, "group/X", chunks=(7, 18), compression="gzip", shuffle=True)
        return HDF5Source(path, "group/X")


class TestOpenHDF5Dataset(SourceContract):
    def make(self, X, tmp_path):
        write_hdf5(tmp_path / "X.h5", X, chunks=(1, 5))
        return HDF5Source(h5py.File(tmp_path / "X.h5", "r")["X"])


class TestZarr2(SourceContract):
    def make(self, X, tmp_path):
        return ZarrSource(write_zarr(tmp_path / "X.zarr", X, (5, 4), version=2))


class TestZarr3(SourceContract):
    def make(self, X, tmp_path):
        return ZarrSource(write_zarr(tmp_path / "X.zarr", X, (4, 18), version=3))


class TestShardedZarr(SourceContract):
    def make(self, X, tmp_path):
        path = write_zarr(tmp_path / "X.zarr", X, (3, 5), version=3, shards=(6, 10))
        return ZarrSource(path)


class TestZarrArray(SourceContract):
    def make(self, X, tmp_path):
        path = write_zarr(tmp_path / "X.zarr", X, (30, 7))
        return ZarrSource(zarr.open(str(path), mode="r"))


class TestZarrGroup(SourceContract):
    def make(self, X, tmp_path):
        zarr.open_group(str(tmp_path / "X.zarr"), mode="w")
        write_zarr(tmp_path / "X.zarr" / "samples", X, (6, 6), 2 if OLD_ZARR else 3)
        order = np.arange(18)[::-1]
        write_zarr(tmp_path / "X.zarr" / "features", order, (18,), 2 if OLD_ZARR else 3)
        return ZarrSource(tmp_path / "X.zarr")


class TestDask(SourceContract):
    def make(self, X, tmp_path):
        return DaskSource(da.from_array(X, chunks=(5, 4)))


class TestDaskInRows(SourceContract):
    def make(self, X, tmp_path):
        return DaskSource(da.from_array(X, chunks=((1, 20, 2), 18)))


class TestDaskInColumns(SourceContract):
    def make(self, X, tmp_path):
        return DaskSource(da.from_array(X, chunks=(23, (2, 10, 6))))


class TestChunkCache(SourceContract):
    def make(self, X, tmp_path):
        path = write_hdf5(tmp_path / "X.h5", X, chunks=(5, 4))
        return ChunkCache(HDF5Source(path), capacity_bytes=2 * 5 * 18 * 4)


# What the storage says of itself


@pytest.mark.parametrize(
    ("options", "row_chunks", "feature_chunk"),
    [
        ({}, None, None),
        ({"chunks": (5, 4)}, [0, 5, 10, 12], 4),
        ({"chunks": (5, 10)}, [0, 5, 10, 12], None),
        ({"chunks": (12, 5)}, [0, 12], 5),
        ({"chunks": (1, 5)}, None, 5),
        ({"chunks": (20, 20), "maxshape": (None, None)}, [0, 12], None),
    ],
)
def test_chunks_of_hdf5(tmp_path, options, row_chunks, feature_chunk):
    source = HDF5Source(write_hdf5(tmp_path / "X.h5", matrix(), **options))
    assert_bounds(source.row_chunks, row_chunks)
    assert source.feature_chunk == feature_chunk


@pytest.mark.parametrize(
    ("version", "chunks", "shards", "row_chunks", "feature_chunk"),
    [
        (2, (5, 4), None, [0, 5, 10, 12], 4),
        (3, (5, 10), None, [0, 5, 10, 12], None),
        (3, (3, 2), (6, 10), [0, 3, 6, 9, 12], 2),
    ],
)
def test_chunks_of_zarr(tmp_path, version, chunks, shards, row_chunks, feature_chunk):
    source = ZarrSource(write_zarr(tmp_path / "X", matrix(), chunks, version, shards))
    assert_bounds(source.row_chunks, row_chunks)
    assert source.feature_chunk == feature_chunk


@pytest.mark.parametrize(
    ("chunks", "row_chunks", "feature_chunk"),
    [
        ((5, 4), [0, 5, 10, 12], 4),
        (((2, 7, 3), (10,)), [0, 2, 9, 12], None),
        ((1, 10), None, None),
        (((12,), (4, 4, 2)), [0, 12], 4),
        (((12,), (4, 6)), [0, 12], None),
        (((12,), (4, 2, 4)), [0, 12], None),
        (((0, 12), (5, 5, 0)), [0, 12], 5),
    ],
)
def test_chunks_of_dask(chunks, row_chunks, feature_chunk):
    source = DaskSource(da.from_array(matrix(), chunks=(12, 10)).rechunk(chunks))
    assert_bounds(source.row_chunks, row_chunks)
    assert source.feature_chunk == feature_chunk


def assert_bounds(bounds, expected):
    if expected is None:
        assert bounds is None
    else:
        assert bounds.dtype == np.intp
        np.testing.assert_array_equal(bounds, expected)


@pytest.mark.parametrize("kind", ["hdf5", "zarr", "dask"])
@pytest.mark.parametrize(
    ("stored", "read"),
    [
        (np.float16, np.float32),
        (np.float64, np.float64),
        (">f8", np.float64),
        (np.int16, np.float64),
        (np.uint8, np.float64),
        (np.bool_, np.float64),
    ],
)
def test_numbers_become_floats(tmp_path, kind, stored, read):
    X = matrix(dtype=stored)
    source = make_source(kind, X, tmp_path)
    batch = source.read(np.array([1, 7]))
    assert source.dtype == batch.dtype == read
    assert batch.dtype.isnative
    np.testing.assert_array_equal(batch, X[[1, 7]].astype(read))


def make_source(kind, X, tmp_path):
    chunks = (5, 4)[: X.ndim] + (2,) * (X.ndim - 2)
    if kind == "hdf5":
        return HDF5Source(write_hdf5(tmp_path / "X.h5", X, chunks=chunks), "X")
    if kind == "zarr":
        return ZarrSource(write_zarr(tmp_path / "X.zarr", X, chunks))
    return DaskSource(da.from_array(X, chunks=chunks))


@pytest.mark.parametrize("kind", ["hdf5", "zarr", "dask"])
def test_only_real_numbers(tmp_path, kind):
    with pytest.raises(TypeError, match=r"holds complex64; samples must be real"):
        make_source(kind, matrix(dtype=np.complex64), tmp_path)


@pytest.mark.parametrize("kind", ["hdf5", "zarr", "dask"])
@pytest.mark.parametrize("shape", [(6,), (6, 5, 4)])
def test_only_matrices(tmp_path, kind, shape):
    with pytest.raises(ValueError, match=rf"has {len(shape)} dimensions.*must have 2"):
        make_source(kind, np.ones(shape), tmp_path)


def test_features_may_be_stored_in_another_order(tmp_path):
    source = TestZarrGroup().make(np.ones((23, 18)), tmp_path)
    np.testing.assert_array_equal(source.feature_order, np.arange(18)[::-1])
    copy = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(copy.feature_order, source.feature_order)


# What is read


class Recorded(ChunkedSource):
    """An array in made-up chunks that notes every rectangle that is read."""

    def __init__(self, X, row_bounds, feature_bounds):
        self.X, self.shape, self.dtype = X, X.shape, X.dtype
        self._set_layout(row_bounds, feature_bounds)
        self.blocks = []

    def _block(self, rows, features):
        self.blocks.append((rows, features))
        return self.X[rows, features]


@st.composite
def cuts(draw, n):
    inner = draw(st.sets(st.integers(1, n - 1)))
    return np.array([0, *sorted(inner), n])


@st.composite
def choices(draw, n):
    return np.array(sorted(draw(st.sets(st.integers(0, n - 1), min_size=1))))


def touched(bounds, ranges):
    """Numbers of the chunks that each range cuts."""
    return [
        {i for i, (a, b) in enumerate(pairwise(bounds)) if a < r.stop and r.start < b}
        for r in ranges
    ]


def chunks_of(bounds, wanted):
    return set(np.searchsorted(bounds, wanted, side="right") - 1)


@given(st.data(), st.sampled_from([1, 40, 400, 10**9]))
def test_needed_chunks_are_read_once_and_no_others(data, piece):
    n, p = 17, 13
    row_bounds, feature_bounds = data.draw(cuts(n)), data.draw(cuts(p))
    rows, features = data.draw(choices(n)), data.draw(choices(p))
    source = Recorded(matrix(n, p), row_bounds, feature_bounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_module, "PIECE", piece)
        part = source.read_features(rows, features)
    np.testing.assert_array_equal(part, source.X[rows][:, features])
    row_sets = touched(row_bounds, [block[0] for block in source.blocks])
    feature_sets = touched(feature_bounds, [block[1] for block in source.blocks])
    read = [
        (r, f)
        for row_set, feature_set in zip(row_sets, feature_sets, strict=True)
        for r in row_set
        for f in feature_set
    ]
    assert len(read) == len(set(read))
    assert {r for r, _ in read} == chunks_of(row_bounds, rows)
    assert {f for _, f in read} == chunks_of(feature_bounds, features)


@given(st.data(), st.sampled_from([1, 40, 400]))
def test_calls_ask_for_little_or_for_one_chunk(data, piece):
    n, p = 30, 20
    row_bounds, feature_bounds = data.draw(cuts(n)), data.draw(cuts(p))
    source = Recorded(matrix(n, p), row_bounds, feature_bounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_module, "PIECE", piece)
        source.read_features(data.draw(choices(n)), data.draw(choices(p)))
    chunk = 4 * np.diff(row_bounds).max() * np.diff(feature_bounds).max()
    sizes = [4 * (r.stop - r.start) * (f.stop - f.start) for r, f in source.blocks]
    assert max(sizes) <= 2 * piece + chunk


def test_neighbouring_chunks_are_read_in_one_call():
    source = Recorded(matrix(), np.arange(0, 13, 2), np.arange(0, 11, 5))
    source.read(np.array([0, 1, 2, 5, 8]))
    assert source.blocks == [
        (slice(0, 6), slice(0, 10)),
        (slice(8, 9), slice(0, 10)),
    ]


def test_rows_without_chunks_are_read_over_small_gaps(monkeypatch):
    monkeypatch.setattr(chunked_module, "GAP", 2 * 10 * 4)
    source = Recorded(matrix(), None, np.array([0, 10]))
    assert source.row_chunks is None
    np.testing.assert_array_equal(
        source.read(np.array([0, 3, 4, 8, 11])), source.X[[0, 3, 4, 8, 11]]
    )
    assert [block[0] for block in source.blocks] == [
        slice(0, 5),
        slice(8, 12),
    ]


def test_long_runs_of_rows_are_read_in_pieces(monkeypatch):
    monkeypatch.setattr(chunked_module, "PIECE", 5 * 10 * 4)
    source = Recorded(matrix(), None, np.array([0, 10]))
    source.read(np.arange(12))
    assert [block[0] for block in source.blocks] == [
        slice(0, 5),
        slice(5, 10),
        slice(10, 12),
    ]


def test_pieces_count_all_that_is_stored_between_features(monkeypatch):
    monkeypatch.setattr(chunked_module, "PIECE", 5 * 10 * 4)
    source = Recorded(matrix(), np.arange(13), np.array([0, 10]))
    source.read_features(np.arange(12), np.array([0, 9]))
    assert [block[0] for block in source.blocks] == [
        slice(0, 5),
        slice(5, 10),
        slice(10, 12),
    ]


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_chunks_that_are_not_needed_are_not_opened(tmp_path, version):
    X = matrix(12, 10)
    source = ZarrSource(write_zarr(tmp_path / "X.zarr", X, (4, 5), version))
    name = "1.1" if version == 2 else "c/1/1"
    for chunk in (tmp_path / "X.zarr").rglob("*"):
        if chunk.is_file() and "json" not in chunk.name and chunk.name[0] != ".":
            keep = chunk == tmp_path / "X.zarr" / name
            chunk.write_bytes(chunk.read_bytes() if keep else b"no chunk")
    part = source.read_features(np.array([4, 7]), np.array([6, 9]))
    np.testing.assert_array_equal(part, X[[4, 7]][:, [6, 9]])
    with pytest.raises((RuntimeError, ValueError)):  # of the decompressor
        source.read_features(np.array([4, 7]), np.array([4, 6]))


def test_hdf5_chunks_that_are_not_needed_are_not_opened(tmp_path):
    X = matrix(12, 10)
    path = write_hdf5(tmp_path / "X.h5", X, chunks=(4, 5), compression="gzip")
    with h5py.File(path, "a") as file:
        for start in np.ndindex(3, 2):
            if start != (1, 1):
                corner = (start[0] * 4, start[1] * 5)
                file["X"].id.write_direct_chunk(corner, b"no chunk")
    source = HDF5Source(path)
    part = source.read_features(np.array([4, 7]), np.array([6, 9]))
    np.testing.assert_array_equal(part, X[[4, 7]][:, [6, 9]])
    with pytest.raises(OSError, match="read"):
        source.read_features(np.array([4, 7]), np.array([4, 6]))


def test_dask_blocks_that_are_not_needed_are_not_computed():
    computed = []

    def note(block, block_info=None):
        computed.append(tuple(block_info[0]["chunk-location"]))
        return block

    X = da.from_array(matrix(), chunks=(4, 5)).map_blocks(note, dtype=np.float32)
    source = DaskSource(X)
    source.read_features(np.array([0, 2, 11]), np.array([5]))
    assert sorted(computed) == [(0, 1), (2, 1)]


def test_nothing_is_read_for_nothing():
    source = Recorded(matrix(), np.array([0, 12]), np.array([0, 10]))
    none = np.array([], np.intp)
    assert source.read(none).shape == (0, 10)
    assert source.read_features(np.array([3]), none).shape == (1, 0)
    assert source.blocks == []


# HDF5 files


def test_the_only_matrix_of_a_file_is_found(tmp_path):
    path = write_hdf5(tmp_path / "X.h5", matrix(), "deep/inside/X")
    write_hdf5(path, np.ones(5), "labels")
    write_hdf5(path, np.array([[b"a", b"b"]]), "names")
    write_hdf5(path, h5py.Empty("f4"), "nothing")
    assert HDF5Source(path).name == "/deep/inside/X"


def test_one_of_several_matrices_must_be_named(tmp_path):
    path = write_hdf5(tmp_path / "X.h5", matrix(), "train")
    write_hdf5(path, matrix(5), "test")
    with pytest.raises(
        ValueError,
        match=r"2 2-D datasets, /test \(5, 10\), /train \(12, 10\); .*X.h5::/test",
    ):
        HDF5Source(path)
    assert HDF5Source(path, "train").shape == (12, 10)


def test_file_without_matrix(tmp_path):
    path = write_hdf5(tmp_path / "X.h5", np.ones(5), "labels")
    with pytest.raises(ValueError, match=r"no 2-D dataset of numbers; it has /labels"):
        HDF5Source(path)


def test_file_without_anything(tmp_path):
    h5py.File(tmp_path / "X.h5", "w").close()
    with pytest.raises(ValueError, match=r"no 2-D dataset of numbers; it has none"):
        HDF5Source(tmp_path / "X.h5")


@pytest.mark.parametrize("name", ["Y", "group"])
def test_name_that_is_no_dataset(tmp_path, name):
    path = write_hdf5(tmp_path / "X.h5", matrix(), "group/X")
    with pytest.raises(ValueError, match=rf"no dataset {name}; it has /group/X"):
        HDF5Source(path, name)


def test_file_that_is_no_hdf5(tmp_path):
    (tmp_path / "X.h5").write_text("hello")
    with pytest.raises(ValueError, match=r"X\.h5 is not a readable HDF5 file"):
        HDF5Source(tmp_path / "X.h5")


def test_group_is_no_dataset(tmp_path):
    with (
        h5py.File(write_hdf5(tmp_path / "X.h5", matrix()), "r") as file,
        pytest.raises(TypeError, match=r"not <class 'h5py.*File'>; .*file\[\"name\"\]"),
    ):
        HDF5Source(file)


def test_file_is_found_from_elsewhere(tmp_path, monkeypatch):
    write_hdf5(tmp_path / "X.h5", matrix())
    monkeypatch.chdir(tmp_path)
    source = pickle.dumps(HDF5Source("X.h5"))
    monkeypatch.chdir("/")
    assert pickle.loads(source).read(np.array([3])).shape == (1, 10)


def test_open_dataset_is_used_as_it_is(tmp_path):
    path = tmp_path / "X.h5"
    with h5py.File(path, "w", driver="core", backing_store=False) as file:
        file["X"] = matrix()  # in memory: it could not be opened again
        read = HDF5Source(file["X"]).read(np.array([3]))
    np.testing.assert_array_equal(read, matrix()[[3]])


def test_closed_dataset_is_opened_again(tmp_path):
    with h5py.File(write_hdf5(tmp_path / "X.h5", matrix()), "r") as file:
        source = HDF5Source(file["X"])
    np.testing.assert_array_equal(source.read(np.array([3])), matrix()[[3]])


def test_dataset_is_opened_again_after_a_fork(tmp_path, monkeypatch):
    source = HDF5Source(write_hdf5(tmp_path / "X.h5", matrix()))
    source.read(np.array([3]))
    before = source._dataset
    source.read(np.array([3]))
    assert source._dataset is before
    monkeypatch.setattr(os, "getpid", lambda: -1)
    source.read(np.array([3]))
    assert source._dataset is not before


# Zarr groups


def zarr_group(path, **arrays):
    zarr.open_group(str(path), mode="w", **({} if OLD_ZARR else {"zarr_format": 2}))
    for name, array in arrays.items():
        write_zarr(path / name, array, array.shape)
    return path


def test_group_without_samples(tmp_path):
    path = zarr_group(tmp_path / "X.zarr", other=matrix())
    with pytest.raises(
        ValueError, match=r'no array "samples"; it has /other \(12, 10\).*its path'
    ):
        ZarrSource(path)
    assert ZarrSource(path / "other").shape == (12, 10)


def test_unfinished_conversion(tmp_path):
    path = zarr_group(tmp_path / "X.zarr", samples=matrix())
    record = {"complete": False, "rows_done": 5, "n_samples": 12}
    zarr.open_group(str(path), mode="r+").attrs["somf"] = record
    with pytest.raises(ValueError, match=r"unfinished .* 5 of 12 samples"):
        ZarrSource(path)
    zarr.open_group(str(path), mode="r+").attrs["somf"] = record | {"complete": True}
    assert ZarrSource(path).shape == (12, 10)


@pytest.mark.parametrize(
    "order", [np.arange(9), np.arange(1, 11), np.zeros(10, int)], ids=str
)
def test_order_of_features_must_name_each_once(tmp_path, order):
    path = zarr_group(tmp_path / "X.zarr", samples=matrix(), features=order)
    with pytest.raises(ValueError, match=r'"features" .*numbers 0 to 9 once'):
        ZarrSource(path)


@pytest.mark.parametrize("file", ["zarr.json", ".zarray"])
def test_folder_that_is_no_zarr(tmp_path, file):
    (tmp_path / "X.zarr").mkdir()
    (tmp_path / "X.zarr" / file).write_text("hello")
    with pytest.raises(ValueError, match=r"X\.zarr (is not a readable|has version 3)"):
        ZarrSource(tmp_path / "X.zarr")


def test_empty_folder_is_no_zarr(tmp_path):
    (tmp_path / "X.zarr").mkdir()
    with pytest.raises(ValueError, match=r"X\.zarr is not a readable Zarr"):
        ZarrSource(tmp_path / "X.zarr")


def test_old_zarr_cannot_read_the_new_format(tmp_path, monkeypatch):
    (tmp_path / "zarr.json").write_text("{}")
    monkeypatch.setattr(zarr, "__version__", "2.18.3")
    with pytest.raises(ValueError, match=r"version 3 .* zarr 2\.18\.3 .*zarr>=3"):
        ZarrSource(tmp_path)


def test_zarr_source_of_something_else():
    with pytest.raises(TypeError, match=r"a zarr.Array or a zarr.Group, not .*ndarray"):
        ZarrSource(matrix())


# Dask


def test_unknown_chunks_must_be_computed_first():
    X = da.from_array(matrix(), chunks=(4, 5))
    X = X[X[:, 0] > 30]
    with pytest.raises(ValueError, match=r"\(nan, 10\); call X.compute_chunk_sizes"):
        DaskSource(X)
    X.compute_chunk_sizes()
    np.testing.assert_array_equal(DaskSource(X).read(np.array([0])), matrix()[[4]])


def test_dask_source_of_something_else():
    with pytest.raises(TypeError, match=r"not .*ndarray.*to_dask_array"):
        DaskSource(matrix())


def test_blocks_must_be_arrays():
    from scipy.sparse import csr_matrix

    X = da.from_array(matrix(), chunks=(4, 10)).map_blocks(csr_matrix)
    with pytest.raises(TypeError, match=r"csr_matrix.*X\.map_blocks"):
        DaskSource(X)


# Packages that are not installed


@pytest.mark.parametrize(
    ("package", "extra", "purpose", "make"),
    [
        ("h5py", "chunked", "HDF5 files", lambda: HDF5Source("X.h5")),
        ("zarr", "chunked", "Zarr arrays", lambda: ZarrSource("X.zarr")),
        ("dask", "dask", "Dask arrays", lambda: DaskSource(None)),
    ],
)
def test_missing_package(monkeypatch, package, extra, purpose, make):
    for module in list(sys.modules):
        if module.partition(".")[0] == package:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as caught:
        make()
    assert str(caught.value) == (
        f"Reading {purpose} needs the package {package}, which is not installed. "
        f"Install the extra: pip install 'somf[{extra}]'"
    )


def test_broken_package_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "zarr.py").write_text("import numcodecs_of_the_future")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "zarr")
    with pytest.raises(ModuleNotFoundError, match="numcodecs_of_the_future"):
        ZarrSource(tmp_path)


# Memory of chunks


class Counted(ArraySource):
    """An array in chunks that counts what is read of it."""

    def __init__(self, X, bounds):
        super().__init__(X)
        self.row_chunks = np.asarray(bounds)
        self.feature_chunk = 2
        self.feature_order = np.arange(X.shape[1])[::-1]
        self.in_memory = False
        self.reads = []

    def read(self, rows):
        self.reads.append(rows.tolist())
        return super().read(rows)


def test_cache_is_a_source_like_the_one_below():
    source = Counted(matrix(), [0, 4, 8, 12])
    cached = ChunkCache(source, 0)
    assert cached.shape == source.shape
    assert cached.dtype == source.dtype
    assert cached.row_chunks is source.row_chunks
    assert cached.feature_chunk == 2
    assert cached.feature_order is source.feature_order
    assert cached.in_memory is False


@pytest.mark.parametrize("group", [1, 3])
def test_an_epoch_reads_each_chunk_once(group):
    rng = np.random.default_rng(0)
    bounds = np.unique(np.concatenate([[0, 200], rng.integers(1, 200, 30)]))
    chunks = [np.arange(a, b) for a, b in pairwise(bounds)]
    source = Counted(matrix(200), bounds)
    # A batch may hold the end of one group and the beginning of the next.
    capacity = 2 * group * max(len(chunk) for chunk in chunks) * 10 * 4
    cached = ChunkCache(source, capacity)
    order = rng.permutation(len(chunks))
    groups = [order[i : i + group] for i in range(0, len(order), group)]
    epoch = np.concatenate(
        [rng.permutation(np.concatenate([chunks[c] for c in some])) for some in groups]
    )
    for start in range(0, 200, 3):
        rows = np.sort(epoch[start : start + 3])
        np.testing.assert_array_equal(cached.read(rows), source.X[rows])
        assert cached.held <= capacity
    assert sorted(source.reads) == [chunk.tolist() for chunk in chunks]


def test_oldest_chunk_makes_room():
    source = Counted(matrix(), [0, 4, 8, 12])
    cached = ChunkCache(source, 2 * 4 * 10 * 4)
    for row in (0, 4, 0, 8, 0, 4):  # 8 takes the place of 4, not of 0
        cached.read(np.array([row]))
    assert [rows[0] for rows in source.reads] == [0, 4, 8, 4]
    assert cached.held == 2 * 4 * 10 * 4


def test_last_chunk_is_kept_without_room():
    source = Counted(matrix(), [0, 4, 8, 12])
    cached = ChunkCache(source, 0)
    for row in (0, 1, 5, 6):
        cached.read(np.array([row]))
    assert source.reads == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cached.held == 4 * 10 * 4


def test_chunks_that_are_here_are_used_before_others_push_them_out():
    source = Counted(matrix(), [0, 4, 8, 12])
    cached = ChunkCache(source, 2 * 4 * 10 * 4)
    for _ in range(4):
        np.testing.assert_array_equal(cached.read(np.arange(12)), source.X)
    assert len(source.reads) == 3 + 3 * 1


def test_features_pass_through_the_cache():
    source = Counted(matrix(), [0, 4, 8, 12])
    cached = ChunkCache(source, 10**6)
    part = cached.read_features(np.array([1, 5]), np.array([0, 9]))
    np.testing.assert_array_equal(part, source.X[[1, 5]][:, [0, 9]])
    assert cached.held == 0
    assert source.reads == []


def test_copies_start_without_chunks(tmp_path):
    path = write_hdf5(tmp_path / "X.h5", matrix(), chunks=(4, 10))
    cached = ChunkCache(HDF5Source(path), 10**6)
    before = len(pickle.dumps(cached))
    cached.read(np.arange(12))
    assert len(pickle.dumps(cached)) == before
    copy = pickle.loads(pickle.dumps(cached))
    assert copy.held == 0
    assert copy.capacity_bytes == 10**6
    np.testing.assert_array_equal(copy.read(np.arange(3)), matrix()[:3])


def test_cache_needs_chunks():
    with pytest.raises(ValueError, match=r"no row_chunks.*without ChunkCache"):
        ChunkCache(ArraySource(matrix()), 100)


def test_capacity_cannot_be_negative():
    with pytest.raises(ValueError, match="capacity_bytes=-1 must be 0 or more"):
        ChunkCache(Counted(matrix(), [0, 12]), -1)
