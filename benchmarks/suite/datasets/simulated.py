"""Simulated mixtures of known atoms, and counts.

Random samples, which everybody starts from, are far from the atoms. Seeds of 1000 and
above were used to choose when batches are taken in pieces.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter

from benchmarks.suite.datasets.base import Dataset

N_TEST = 400


class Simulated(Dataset):
    """Samples codes @ atoms and noise; the seed draws all of them."""

    budget = 4.0
    n_train = 4000
    noise = 0.5  # norm, where an atom has norm 1

    def load(self, seed):
        rng = np.random.default_rng(seed)
        n = N_TEST + (self.n_train // 4 if self.small else self.n_train)
        X = self.codes(n, rng) @ self.atoms(rng)
        deviation = self.noise / np.sqrt(X.shape[1])
        X += deviation * rng.standard_normal(X.shape, np.float32)
        return X[N_TEST:], X[:N_TEST]


class SparseMixtures(Simulated):
    """100 atoms of independent features, a tenth of them in a sample."""

    name = "mixtures"
    k = 100
    alpha = 0.1
    n_features = 20_000

    def atoms(self, rng):
        D = rng.standard_normal((self.k, self.n_features), np.float32)
        return D / np.linalg.norm(D, axis=1, keepdims=True)

    def codes(self, n, rng):
        used = rng.random((n, self.k)) < 0.1
        return rng.standard_normal((n, self.k), np.float32) * used


class SmoothMixtures(Simulated):
    """64 smooth images of 100 x 100 pixels, a fifth of them in a sample."""

    name = "mixtures-smooth"
    k = 64
    alpha = 0.05
    n_train = 8000

    def atoms(self, rng):
        images = rng.standard_normal((self.k, 100, 100))
        D = np.array([gaussian_filter(image, 3).ravel() for image in images])
        return (D / np.linalg.norm(D, axis=1, keepdims=True)).astype(np.float32)

    def codes(self, n, rng):
        used = rng.random((n, self.k)) < 0.2
        return (rng.laplace(size=(n, self.k)) * used).astype(np.float32)


class Counts(Dataset):
    """Square roots of word counts: 50 topics of 6000 words, 200 words in a text."""

    name = "counts"
    k = 50
    alpha = 0.02
    budget = 2.0
    positive_code = True
    positive_dict = True
    n_train, n_words = 10_000, 6000

    def load(self, seed):
        rng = np.random.default_rng(seed)
        n = N_TEST + (self.n_train // 4 if self.small else self.n_train)
        topics = rng.dirichlet(np.full(self.n_words, 0.02), self.k)
        shares = rng.dirichlet(np.full(self.k, 0.1), n)
        X = np.sqrt(rng.poisson(200 * (shares @ topics))).astype(np.float32)
        X /= np.sqrt(np.mean(np.einsum("ij,ij->i", X, X)))
        return X[N_TEST:], X[:N_TEST]
