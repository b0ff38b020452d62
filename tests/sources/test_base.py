"""Batches are views where they can be, and copies of the right type elsewhere."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from somf.sources import Batch, SampleSource, as_source
from somf.sources.base import COMPLETE, ArraySource, float_dtype, read_batch
from somf.testing import SourceContract


class TestArray(SourceContract):
    def make(self, X, tmp_path):
        return ArraySource(X)


class TestFortranArray(SourceContract):
    def make(self, X, tmp_path):
        return ArraySource(np.asfortranarray(X))


ROWS = np.array([1, 3, 4])


def matrix(dtype=np.float64, order="C"):
    return np.array(np.arange(24).reshape(6, 4), dtype=dtype, order=order)


def reads_only(X):
    X.flags.writeable = False
    return X


# name: array, whether batches use it in place, dtype of the samples
ARRAYS = {
    "C float64": (matrix(), True, np.float64),
    "C float32": (matrix(np.float32), True, np.float32),
    "read-only": (reads_only(matrix()), True, np.float64),
    "one row": (matrix()[2:3], True, np.float64),
    "Fortran": (matrix(order="F"), False, np.float64),
    "every second row": (matrix()[::2], False, np.float64),
    "some columns": (matrix()[:, 1:3], False, np.float64),
    "float16": (matrix(np.float16), False, np.float32),
    "int64": (matrix(np.int64), False, np.float64),
    "uint8": (matrix(np.uint8), False, np.float64),
    "bool": (matrix() > 5, False, np.float64),
    "longdouble": (matrix(np.longdouble), False, np.float64),
    "big-endian float64": (matrix(">f8"), False, np.float64),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_batch_holds_the_samples(name):
    X, in_place, dtype = ARRAYS[name]
    source = as_source(X)
    rows = np.array([row for row in (0, 2, 4) if row < len(X)])
    batch = read_batch(source, rows)
    assert source.shape == X.shape
    assert source.dtype == batch.X.dtype == dtype
    assert batch.X.dtype.isnative
    assert batch.X.flags.c_contiguous
    np.testing.assert_array_equal(batch.X[batch.rows], X[rows].astype(dtype))
    np.testing.assert_array_equal(batch.index, rows)
    assert len(batch) == len(rows)
    assert np.shares_memory(batch.X, X) == in_place


@pytest.mark.parametrize("name", ARRAYS)
def test_read_returns_new_rows(name):
    X, _, dtype = ARRAYS[name]
    rows = np.arange(len(X))
    read = ArraySource(X).read(rows)
    assert read.dtype == dtype
    assert read.flags.c_contiguous
    assert read.flags.writeable
    assert not np.shares_memory(read, X)
    np.testing.assert_array_equal(read, X.astype(dtype))


def test_memory_map_is_used_in_place(tmp_path):
    np.save(tmp_path / "X.npy", matrix(np.float32))
    X = np.load(tmp_path / "X.npy", mmap_mode="r")
    batch = read_batch(as_source(X), ROWS)
    assert np.shares_memory(batch.X, X)
    np.testing.assert_array_equal(batch.copy_rows(np.arange(3)), matrix()[ROWS])


def test_array_source_survives_pickling():
    source = pickle.loads(pickle.dumps(ArraySource(matrix())))
    np.testing.assert_array_equal(source.read(ROWS), matrix()[ROWS])
    assert np.shares_memory(source.batch(ROWS, COMPLETE).X, source.X)


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [
        (np.float16, np.float32),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.int8, np.float64),
        (np.bool_, np.float64),
    ],
)
def test_floats_keep_their_precision(given_dtype, expected):
    assert float_dtype(np.dtype(given_dtype)) == expected


class Shifted:
    """A source that is no array."""

    shape = (6, 4)
    dtype = np.dtype(np.float64)

    def __init__(self, shift):
        self.shift = shift

    def read(self, rows):
        return matrix()[rows] + self.shift


def test_sources_are_taken_as_they_are():
    source = Shifted(10)
    assert isinstance(source, SampleSource)
    adopted = as_source(source)
    assert (adopted.shape, adopted.dtype) == (source.shape, source.dtype)
    np.testing.assert_array_equal(adopted.read(ROWS), source.read(ROWS))
    part = adopted.read_features(ROWS, np.array([0, 2]))
    np.testing.assert_array_equal(part, source.read(ROWS)[:, [0, 2]])
    assert part.flags.c_contiguous
    assert adopted.row_chunks is adopted.feature_chunk is adopted.feature_order is None
    assert as_source(adopted) is adopted
    assert isinstance(as_source(matrix()), SampleSource)
    batch = read_batch(as_source(source), ROWS)
    np.testing.assert_array_equal(batch.X, matrix()[ROWS] + 10)
    np.testing.assert_array_equal(batch.rows, [0, 1, 2])
    np.testing.assert_array_equal(batch.index, ROWS)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite_are_named(bad):
    shift = np.zeros((3, 4))
    shift[1, 2] = bad
    with pytest.raises(ValueError, match=r"Samples \[3\] .*NaN or infinity"):
        read_batch(as_source(Shifted(shift)), ROWS)


def test_sums_that_overflow_are_no_error():
    X = read_batch(as_source(Shifted(1.7e308)), ROWS).X
    assert np.isfinite(X).all()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_adjacent_rows_are_a_view(rows):
    X = np.arange(30.0).reshape(10, 3)
    rows = np.array(rows)
    view = Batch(X, rows).adjacent
    if np.all(np.diff(rows) == 1):
        assert np.shares_memory(view, X)
        np.testing.assert_array_equal(view, X[rows])
    else:
        assert view is None


@pytest.mark.parametrize(
    ("rows", "adjacent"),
    [
        ([0], True),
        ([9], True),
        ([3, 4, 5], True),
        ([3, 5], False),
        ([4, 3], False),
        ([3, 3], False),
        ([1, 3, 2, 4], False),
    ],
)
def test_adjacent(rows, adjacent):
    view = Batch(np.arange(30.0).reshape(10, 3), np.array(rows)).adjacent
    assert (view is not None) == adjacent


def test_batch_of_all_rows():
    X = matrix()
    batch = Batch.of(X)
    assert batch.index is None
    assert batch.X is X
    assert np.shares_memory(batch.adjacent, X)
    np.testing.assert_array_equal(batch.adjacent, X)
    assert len(batch) == 6


def test_copied_rows_are_new():
    X = matrix()
    batch = Batch(X, np.array([5, 1, 3]))
    copied = batch.copy_rows(np.array([2, 0]))
    np.testing.assert_array_equal(copied, X[[3, 5]])
    assert not np.shares_memory(copied, X)
