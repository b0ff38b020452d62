"""Missing entries: Gram matrices over the others, and what takes their place."""

import numpy as np
import pytest

from somf.solver.missing import impute, known_grams
from somf.threads import Team


@pytest.mark.parametrize("share", [0.0, 0.1, 0.49, 0.51, 0.9, 1.0])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_grams_are_those_of_the_known_features(share, n_threads):
    rng = np.random.default_rng(0)
    D = rng.standard_normal((4, 50))
    missing = rng.random((7, 50)) < share
    with Team(n_threads) as team:
        grams = known_grams(D, D @ D.T, missing, team)
    for G, unknown in zip(grams, missing, strict=True):
        known = D[:, ~unknown]
        np.testing.assert_allclose(G, known @ known.T, atol=1e-12)


@pytest.mark.parametrize("n_features", [5, 5000])
def test_imputed_entries_are_those_of_the_product(n_features):
    rng = np.random.default_rng(0)
    D, codes = rng.standard_normal((3, n_features)), rng.standard_normal((6, 3))
    X = rng.standard_normal((6, n_features))
    before = X.copy()
    missing = rng.random(X.shape) < 0.3
    with Team(2) as team:
        impute(X, missing, codes, D, team)
    np.testing.assert_array_equal(X[~missing], before[~missing])
    np.testing.assert_allclose(X[missing], (codes @ D)[missing])
