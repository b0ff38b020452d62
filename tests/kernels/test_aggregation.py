"""Sums over the codes that are not zero equal the dense product."""

import numpy as np
import pytest

from somf.kernels.aggregation import GROUP, add_outer, compress, sort_by_atom, sum_pairs


def make(n, k, p, density, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    codes = rng.standard_normal((n, k)) * (rng.random((n, k)) < density)
    return codes.astype(dtype), rng.standard_normal((n + 7, p)).astype(dtype)


def squeeze(codes, room=None):
    """Return how many codes are not zero, where they are and which atoms have some."""
    n, k = codes.shape
    room = codes.size if room is None else room
    found = np.full(n + 1, -1), np.full(room, -1), np.full(room, np.nan, codes.dtype)
    used = np.ones(k, bool)
    return compress(codes, *found, used), found, used


def sort(codes):
    n_nonzero, found, _ = squeeze(codes)
    n_groups = -(-len(codes) // GROUP)
    by_atom = (
        np.full((n_groups, codes.shape[1] + 1), -1),
        np.full(n_nonzero, -1),
        np.full(n_nonzero, np.nan, codes.dtype),
    )
    sort_by_atom(*found, *by_atom)
    return by_atom


@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_codes_are_found_in_their_order(density, dtype):
    codes, _ = make(50, 9, 1, density, dtype=dtype)
    n_nonzero, (starts, atoms, values), used = squeeze(codes)
    samples, expected = np.nonzero(codes)
    assert n_nonzero == starts[-1] == len(samples)
    np.testing.assert_array_equal(np.repeat(np.arange(50), np.diff(starts)), samples)
    np.testing.assert_array_equal(atoms[:n_nonzero], expected)
    np.testing.assert_array_equal(values[:n_nonzero], codes[samples, expected])
    np.testing.assert_array_equal(used, codes.any(axis=0))


def test_codes_without_room_are_counted():
    codes, _ = make(50, 9, 1, 0.2)
    codes[:, 4] = 0
    codes[:, 5] = 0
    codes[49, 5] = 1
    for room in (0, 8, 9, 60):
        n_nonzero, _, used = squeeze(codes, room)
        assert n_nonzero == np.count_nonzero(codes)
        np.testing.assert_array_equal(used, codes.any(axis=0))


@pytest.mark.parametrize("k", [1, 9, 16, 40])
@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
def test_sums_of_pairs_equal_the_product(k, density):
    codes, _ = make(30, k, 1, density)
    C = np.full((k, k), np.nan)
    sum_pairs(*squeeze(codes)[1], 0.3, C)
    np.testing.assert_allclose(C, 0.3 * codes.T @ codes, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(C, C.T)


@pytest.mark.parametrize("n", [1, GROUP, GROUP + 1, 3 * GROUP - 1])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_every_code_has_its_place(n, density):
    codes, _ = make(n, 9, 1, density)
    all_places, samples, weights = sort(codes)
    found = np.zeros_like(codes)
    for g, places in enumerate(all_places):
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
