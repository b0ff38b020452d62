"""Rows of sparse matrices are read as dense ones."""

import numpy as np
import pytest
import scipy.sparse

from somf.sources import SparseSource
from somf.testing import SourceContract


class TestCSRArray(SourceContract):
    def make(self, X, tmp_path):
        return SparseSource(scipy.sparse.csr_array(X))


class TestCSRMatrix(SourceContract):
    def make(self, X, tmp_path):
        return SparseSource(scipy.sparse.csr_matrix(X))


class TestCSC(SourceContract):
    def make(self, X, tmp_path):
        return SparseSource(scipy.sparse.csc_array(X))


class TestCOO(SourceContract):
    def make(self, X, tmp_path):
        return SparseSource(scipy.sparse.coo_matrix(X))


def test_csr_is_used_as_it_is():
    X = scipy.sparse.csr_array(np.eye(3))
    assert SparseSource(X).X is X


def test_source_is_in_memory():
    assert SparseSource(scipy.sparse.csr_array(np.eye(3))).in_memory


def test_entries_that_are_stored_twice_are_added():
    entries = ([1.0, 2.0, 5.0], ([0, 0, 1], [3, 3, 0]))
    source = SparseSource(scipy.sparse.coo_array(entries, shape=(2, 4)))
    np.testing.assert_array_equal(
        source.read(np.array([0, 1])), [[0, 0, 0, 3], [5, 0, 0, 0]]
    )


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_integers_become_float64(dtype):
    X = (np.arange(12).reshape(3, 4) % 3).astype(dtype)
    source = SparseSource(scipy.sparse.csr_array(X))
    batch = source.read(np.array([0, 2]))
    assert source.dtype == batch.dtype == np.float64
    np.testing.assert_array_equal(batch, X[[0, 2]])


def test_complex_numbers_are_refused():
    with pytest.raises(TypeError, match="holds complex128; samples must be real"):
        SparseSource(scipy.sparse.csr_array(np.eye(3) * 1j))


def test_vectors_are_refused():
    vector = scipy.sparse.coo_array(np.eye(3))
    vector = vector.reshape(9) if hasattr(vector, "coords") else None
    if vector is None:
        pytest.skip("this SciPy has no sparse vectors")
    with pytest.raises(ValueError, match="has 1 dimensions"):
        SparseSource(vector)
