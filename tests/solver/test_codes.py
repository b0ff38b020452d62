"""Sums over codes do not depend on whether they are taken as sparse or dense."""

import numpy as np
import pytest

from somf.solver.codes import SPARSE, ByAtom, Codes


def make(density, n=40, k=10, dtype=np.float64):
    """Codes of which just this part is not zero."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((n, k)).astype(dtype)
    values.flat[rng.permutation(n * k)[round(density * n * k) :]] = 0
    return values


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("density", [0.0, 0.1, SPARSE - 0.0025, SPARSE, 0.6, 1.0])
def test_sums_are_those_of_the_array(density, dtype):
    values = make(density, dtype=dtype)
    codes = Codes.of(values)
    assert codes.n_nonzero == np.count_nonzero(values)
    assert codes.density == pytest.approx(density)
    assert (codes.sparse is not None) == (density < SPARSE)
    np.testing.assert_array_equal(codes.used, values.any(axis=0))
    C = codes.second_moment(0.5, 80)
    assert C.dtype == dtype
    np.testing.assert_allclose(C, values.T @ values * 0.5 / 80, rtol=0, atol=1e-6)


@pytest.mark.parametrize("density", [0.1, 0.6])
def test_what_a_batch_adds(density):
    values = make(density)
    X = np.random.default_rng(1).standard_normal((40, 7))
    new = Codes.of(values).weighted(0.5, 80)
    assert isinstance(new, ByAtom) == (density < SPARSE)
    B = np.full((10, 7), np.nan)
    if isinstance(new, ByAtom):
        new.add_to(B, 0, X, np.arange(40), 0, 7)
    else:
        B = new.T @ X
    np.testing.assert_allclose(B, values.T @ X * 0.5 / 80, rtol=0, atol=1e-12)
