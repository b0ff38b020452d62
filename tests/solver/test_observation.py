"""What an iteration sees of a batch: products over its observed features."""

import numpy as np
import pytest

from somf.sampling import Mask
from somf.solver.observation import Observation
from somf.solver.products import SAMPLES
from somf.solver.workspace import Workspace
from somf.sources.base import ArraySource, Batch, ObservedBatch, Requirements
from somf.threads import Team

N_FEATURES = 40


class Case:
    """A batch that takes more than one turn of every thread, out of order."""

    def __init__(self, n_samples, n_features=N_FEATURES, n_observed=13):
        rng = np.random.default_rng(0)
        self.X = rng.standard_normal((2 * n_samples, n_features))
        self.D = rng.standard_normal((5, n_features))
        self.rows = np.sort(rng.choice(len(self.X), n_samples, replace=False))
        self.features = np.sort(rng.choice(n_features, n_observed, replace=False))
        self.mask = Mask(self.features, n_features, n_features / n_observed)
        self.seen = self.X[np.ix_(self.rows, self.features)]

    def observation(self, team, keeps, missing=None):
        batch = Batch(self.X, self.rows, self.rows, missing)
        return Observation(batch, self.mask, self.D, team, Workspace(), keeps)


@pytest.mark.parametrize("n_samples", [1, SAMPLES, 4 * SAMPLES + 3])
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_products_are_over_the_observed_features(n_threads, keeps, n_samples):
    case = Case(n_samples)
    with Team(n_threads) as team:
        seen = case.observation(team, keeps)
        beta = case.seen @ case.D[:, case.features].T
        np.testing.assert_allclose(seen.beta, beta, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(seen.energy, (case.seen**2).sum(axis=1))
        np.testing.assert_array_equal(seen.X, case.seen)
    assert seen.seconds_gathering > 0


def test_a_batch_that_nobody_asks_for_is_not_kept():
    case = Case(4 * SAMPLES)
    with Team(1) as team:
        seen = case.observation(team, keeps=False)
        assert seen.beta.any()
        buffers = seen.workspace._buffers.values()
    assert max(buffer.size for buffer in buffers) == SAMPLES * len(case.features)


def test_samples_read_through_the_mask_give_the_same_bits():
    case = Case(2 * SAMPLES + 1)
    with Team(2) as team:
        whole = case.observation(team, keeps=True)
        wanted = Requirements()
        batch = ObservedBatch(case.seen, case.rows, ArraySource(case.X), wanted)
        read = Observation(batch, case.mask, case.D, team, Workspace())
        np.testing.assert_array_equal(read.beta, whole.beta)
        np.testing.assert_array_equal(read.energy, whole.energy)
        np.testing.assert_array_equal(read.X, whole.X)


@pytest.mark.parametrize("keeps", [False, True])
def test_imputed_entries_are_seen_by_what_comes_after_the_codes(keeps):
    case = Case(20)
    case.X = case.X[case.rows]
    case.rows = np.arange(20)
    missing = np.random.default_rng(1).random(case.X.shape) < 0.3
    case.X[missing] = 0
    codes = np.random.default_rng(2).standard_normal((20, 5))
    expected = np.where(missing, codes @ case.D, case.X)[:, case.features]
    with Team(1) as team:
        seen = case.observation(team, keeps, missing)
        before = seen.beta.copy()
        seen.impute(codes, case.D)
        np.testing.assert_allclose(seen.X, expected)
        np.testing.assert_array_equal(seen.beta, before)
