"""Copies between all features of a matrix and the observed ones.

Samples, dictionary and statistics all keep features as columns, each row contiguous.
Indices of features are taken as unsigned: an index that may be negative costs a test
for every number, and gathering a quarter more time.
"""

from __future__ import annotations

import numpy as np

from somf.kernels._jit import kernel


@kernel
def gather_features(A, rows, features, out):
    """out[i, f] = A[rows[i], features[f]]."""
    for i in range(rows.size):
        row, to = A[rows[i]], out[i]
        for f in range(features.size):
            to[f] = row[np.uintp(features[f])]


@kernel
def gather_samples(X, rows, features, out, energy):
    """Gather the observed features of samples, and their squared norms."""
    gather_features(X, rows, features, out)
    for i in range(rows.size):
        energy[i] = _square(out[i])


@kernel
def copy_samples(X, rows, out, energy):
    """Copy samples, and compute their squared norms."""
    copy_tile(X, rows, 0, X.shape[1], out)
    for i in range(rows.size):
        energy[i] = _square(out[i])


@kernel
def _square(x):
    square = 0.0
    for f in range(x.size):
        square += np.float64(x[f]) * np.float64(x[f])
    return square


@kernel
def mix_features(A, features, keep, gain, added, out, start, stop):
    """Overwrite the features of A and `out` with keep·A + gain·added: start..stop."""
    for i in range(start, stop):
        for f in range(features.size):
            place = np.uintp(features[f])
            mixed = keep[f] * A[i, place] + gain[f] * added[i, f]
            A[i, place] = mixed
            out[i, f] = mixed


@kernel
def gather_mixed(A, features, keep, gain, added, out, start, stop):
    """out[i, f] = keep[f]·A[i, features[f]] + gain[f]·added[i, f]; i in start..stop."""
    for i in range(start, stop):
        for f in range(features.size):
            place = np.uintp(features[f])
            out[i, f] = keep[f] * A[i, place] + gain[f] * added[i, f]


@kernel
def scatter_features(A, rows, features, values):
    """A[i, features[f]] = values[i, f] for i in rows."""
    for i in rows:
        for f in range(features.size):
            A[i, np.uintp(features[f])] = values[i, f]


@kernel
def copy_tile(A, rows, low, high, out):
    """out[i, f] = A[rows[i], low + f] for f in 0..high − low."""
    for i in range(rows.size):
        row = A[rows[i], low:high]
        for f in range(row.size):
            out[i, f] = row[f]
