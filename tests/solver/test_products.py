"""Products over all features: the same whichever way the threads share them."""

import numpy as np
import pytest

from somf.solver import products
from somf.solver.products import FEWEST_SAMPLES, TILE, WHOLE_SAMPLES, correlate
from somf.sources.base import Batch
from somf.threads import Team


@pytest.mark.parametrize("n_features", [7, TILE - 1, TILE, 2 * TILE - 1, 2 * TILE + 3])
@pytest.mark.parametrize("n_samples", [1, 2 * WHOLE_SAMPLES + 5])
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("adjacent", [False, True])
def test_correlations_and_squares(n_features, n_samples, n_threads, adjacent):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2 * n_samples, n_features))
    D = rng.standard_normal((3, n_features))
    rows = np.arange(n_samples)
    if not adjacent:
        rows = np.sort(rng.choice(len(X), n_samples, replace=False))
    with Team(n_threads) as team:
        beta, energy = correlate(Batch(X, rows), D, team)
    np.testing.assert_allclose(beta, X[rows] @ D.T, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(energy, (X[rows] ** 2).sum(axis=1))


@pytest.mark.parametrize(
    ("n_features", "n_samples", "n_slices"),
    [
        (TILE, 2 * FEWEST_SAMPLES, 1),  # too little to do for two
        (TILE, 10_000, 2),
        (2 * TILE, 2 * FEWEST_SAMPLES, 2),
    ],
)
def test_threads_get_no_less_than_is_worth_it(
    n_features, n_samples, n_slices, monkeypatch
):
    slices = []

    class Watched(Team):
        def share(self, task, n, smallest=1):
            slices.append(len(self.slices(n, smallest)))
            return super().share(task, n, smallest)

    monkeypatch.setattr(products, "FEWEST_PRODUCTS", 50 * TILE)
    X = np.ones((n_samples, 1), np.float32).repeat(n_features, axis=1)
    with Watched(2) as team:
        correlate(Batch.of(X), np.ones((1, n_features), np.float32), team)
    assert slices == [n_slices]
