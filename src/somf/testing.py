"""Tests that sources inherit: ours, and those of others."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from somf.sources.base import Array, Indices, SampleSource, Source, adopt

N_SAMPLES, N_FEATURES = 23, 18


class SourceContract:
    """What every source must do, as a class of tests for pytest.

    A subclass, named `Test...` so that pytest finds it, says how to make a source that
    holds a given matrix. Files go into the folder `tmp_path`.

    >>> from somf.sources import as_source
    >>> from somf.testing import SourceContract
    >>> class TestMySource(SourceContract):
    ...     def make(self, X, tmp_path):
    ...         return as_source(X)
    """

    def make(self, X: Array, tmp_path: Path) -> SampleSource:
        """Return a source that holds `X`, of shape (23, 18), float32 or float64."""
        raise NotImplementedError

    def _pair(self, tmp_path: Path, dtype: Any = np.float32) -> tuple[Source, Array]:
        """Return a source and its matrix; some entries are zero, none needs float64."""
        rng = np.random.default_rng(0)
        X = rng.standard_normal((N_SAMPLES, N_FEATURES)).astype(np.float32)
        X[rng.random(X.shape) < 0.3] = 0
        X = X.astype(dtype)
        return adopt(self.make(X.copy(), tmp_path)), X

    def test_describes_itself(self, tmp_path: Path) -> None:
        """Shape and type are those of the matrix; what it adds is possible."""
        source, X = self._pair(tmp_path)
        assert isinstance(source, SampleSource)
        assert tuple(source.shape) == X.shape, "shape is not that of the matrix"
        assert isinstance(source.dtype, np.dtype), "dtype must be a numpy.dtype"
        assert isinstance(source.in_memory, bool)
        order = source.feature_order
        if order is not None:
            np.testing.assert_array_equal(np.sort(order), np.arange(N_FEATURES))

    def test_chunks_are_bounds(self, tmp_path: Path) -> None:
        """Chunks of rows go from 0 to n_samples; those of features leave some out."""
        source, _ = self._pair(tmp_path)
        if source.row_chunks is not None:
            bounds = np.asarray(source.row_chunks)
            assert bounds.dtype.kind == "i", "row_chunks must be integers"
            assert (bounds[0], bounds[-1]) == (0, N_SAMPLES)
            assert np.all(np.diff(bounds) > 0), "row_chunks must grow"
        if source.feature_chunk is not None:
            assert isinstance(source.feature_chunk, int)
            assert 1 <= source.feature_chunk < N_FEATURES, "None stands for all"

    def test_float32_stays_float32(self, tmp_path: Path) -> None:
        """No sample is twice as large as it was."""
        assert self._pair(tmp_path, np.float32)[0].dtype == np.float32

    def test_float64_is_read(self, tmp_path: Path) -> None:
        """Other types may become float32 or float64, and nothing else."""
        source, X = self._pair(tmp_path, np.float64)
        assert source.dtype in (np.float32, np.float64)
        assert_rows(source, X, np.arange(N_SAMPLES))

    def test_rows_are_those_of_the_matrix(self, tmp_path: Path) -> None:
        """Any sorted rows come back in order, as often as they are asked for."""
        source, X = self._pair(tmp_path)
        for rows in _choices(N_SAMPLES):
            assert_rows(source, X, rows)
            assert_rows(source, X, rows)

    def test_row_beyond_the_last_is_an_error(self, tmp_path: Path) -> None:
        """No made-up samples."""
        source, _ = self._pair(tmp_path)
        try:
            source.read(np.array([0, N_SAMPLES]))
        except IndexError:
            return
        raise AssertionError("reading a row that does not exist must be an IndexError")

    def test_features_are_those_of_the_matrix(self, tmp_path: Path) -> None:
        """Part of the features is the same as that part of all of them."""
        source, X = self._pair(tmp_path)
        for rows in _choices(N_SAMPLES):
            for features in _choices(N_FEATURES):
                part = source.read_features(rows, features)
                _assert_new(part, source)
                np.testing.assert_array_equal(part, X[rows][:, features])

    def test_batches_are_new_arrays(self, tmp_path: Path) -> None:
        """Whoever gets a batch may overwrite it."""
        source, X = self._pair(tmp_path)
        rows, features = np.arange(3, 9), np.arange(N_FEATURES)
        first, second = source.read(rows), source.read(rows)
        assert not np.shares_memory(first, second), "two batches share memory"
        part = source.read_features(rows, features)
        for batch in (first, part):
            assert not np.shares_memory(batch, second), "two batches share memory"
            batch[:] = -1
        np.testing.assert_array_equal(second, X[rows])
        assert_rows(source, X, rows)

    def test_survives_pickling(self, tmp_path: Path) -> None:
        """A copy reads the same, made before the first read or after it."""
        source, X = self._pair(tmp_path)
        rows = np.arange(0, N_SAMPLES, 3)
        for _ in range(2):
            copy = pickle.loads(pickle.dumps(source))
            assert tuple(copy.shape) == X.shape
            assert copy.dtype == source.dtype
            assert copy.feature_chunk == source.feature_chunk
            np.testing.assert_array_equal(copy.row_chunks, source.row_chunks)
            assert_rows(copy, X, rows)
            assert_rows(source, X, rows)

    def test_reads_in_other_threads(self, tmp_path: Path) -> None:
        """Threads other than the one that made the source read, at the same time."""
        source, X = self._pair(tmp_path)
        choices = _choices(N_SAMPLES) * 4
        with ThreadPoolExecutor(4) as pool:
            batches = list(pool.map(source.read, choices))
        for rows, batch in zip(choices, batches, strict=True):
            np.testing.assert_array_equal(batch, X[rows])


def assert_rows(source: SampleSource, X: Array, rows: Indices) -> None:
    """Check that the source reads X[rows], as a new array of its type."""
    batch = source.read(rows)
    _assert_new(batch, source)
    np.testing.assert_array_equal(batch, X[rows])


def _assert_new(batch: Array, source: SampleSource) -> None:
    assert isinstance(batch, np.ndarray)
    assert batch.dtype == source.dtype, f"read {batch.dtype}, not {source.dtype}"
    assert batch.flags.c_contiguous, "a batch must be C-ordered"
    assert batch.flags.writeable, "a batch must be writeable"


def _choices(n: int) -> list[Indices]:
    """Return sorted indices of all kinds: one, all, neighbours, scattered."""
    scattered = np.random.default_rng(1).random((4, n)) < [[0.2], [0.4], [0.6], [0.8]]
    some = [np.flatnonzero(chosen) for chosen in scattered]
    one = [np.array([i]) for i in (0, n // 2, n - 1)]
    ends = np.array([0, n - 1])
    return [*one, ends, np.arange(n), np.arange(2, n - 3), np.arange(1, n, 2), *some]
