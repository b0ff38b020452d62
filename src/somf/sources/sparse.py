"""SciPy sparse matrices, of which only the rows of a batch become dense."""

from __future__ import annotations

from typing import Any

import numpy as np

from somf.sources.base import Array, Indices, Source
from somf.sources.checks import matrix_dtype, matrix_shape


class SparseSource(Source):
    """A SciPy sparse matrix or array; what is not stored is zero.

    Rows are read from the CSR format. A matrix in another format (CSC, COO, ...) is
    converted once, which holds both in memory for a moment; CSR is used as it is.

    Parameters
    ----------
    X : sparse matrix or array of shape (n_samples, n_features)

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> from somf.sources import SparseSource
    >>> X = csr_array(([5.0, 7.0], ([0, 2], [1, 3])), shape=(3, 4))
    >>> SparseSource(X).read(np.array([0, 2]))
    array([[0., 5., 0., 0.],
           [0., 0., 0., 7.]])
    """

    in_memory = True

    def __init__(self, X: Any) -> None:
        self.shape = matrix_shape(X.shape, "The sparse matrix")
        self.dtype = matrix_dtype(X.dtype, "The sparse matrix")
        self.X = X.tocsr()

    def read(self, rows: Indices) -> Array:
        """Return X[rows] as a new dense array."""
        return self._dense(self.X[rows])

    def read_features(self, rows: Indices, features: Indices) -> Array:
        """Return X[rows][:, features] as a new dense array."""
        return self._dense(self.X[rows][:, features])

    def _dense(self, part: Any) -> Array:
        return np.asarray(part.astype(self.dtype).toarray(order="C"))
