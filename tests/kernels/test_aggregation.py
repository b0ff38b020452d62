"""Sums over the codes that are not zero equal the dense product."""

import numpy as np
import pytest

from somf.kernels.aggregation import GROUP, add_outer, sort_by_atom


def make(n, k, p, density, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    codes = rng.standard_normal((n, k)) * (rng.random((n, k)) < density)
    return codes.astype(dtype), rng.standard_normal((n + 7, p)).astype(dtype)


def sort(codes):
    n_nonzero = np.count_nonzero(codes)
    n_groups = -(-len(codes) // GROUP)
    by_atom = (
        np.full((n_groups, codes.shape[1] + 1), -1),
        np.full(n_nonzero, -1),
        np.full(n_nonzero, np.nan, codes.dtype),
    )
    sort_by_atom(codes, *by_atom)
    return by_atom


@pytest.mark.parametrize("n", [1, GROUP, GROUP + 1, 3 * GROUP - 1])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_every_code_has_its_place(n, density):
    codes, _ = make(n, 9, 1, density)
    starts, samples, weights = sort(codes)
    found = np.zeros_like(codes)
    for g, places in enumerate(starts):
        for j in range(codes.shape[1]):
            some = slice(places[j], places[j + 1])
            assert np.all(samples[some] // GROUP == g)
            found[samples[some], j] += weights[some]
    np.testing.assert_array_equal(found, codes)


@pytest.mark.parametrize("n", [1, 5, 2 * GROUP + 3])
@pytest.mark.parametrize("keep", [0.0, 0.7])
def test_sparse_sums_equal_the_product(n, keep):
    codes, X = make(n, 9, 2500, 0.2)
    rows = np.random.default_rng(1).permutation(len(X))[:n]
    B = np.random.default_rng(2).standard_normal((9, 2500))
    expected = B.copy()
    expected[:, 100:2300] = keep * B[:, 100:2300] + codes.T @ X[rows, 100:2300]
    if keep == 0:
        B[:, 100:2300] = np.nan  # what a fresh buffer may hold
    add_outer(B, keep, X, rows, *sort(codes), 100, 2300)
    np.testing.assert_allclose(B, expected, rtol=0, atol=1e-11)
