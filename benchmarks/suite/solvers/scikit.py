"""scikit-learn: MiniBatchDictionaryLearning, MiniBatchNMF, MiniBatchSparsePCA.

Their atoms lie in the Euclidean ball of radius 1, ours in that of radius √2. With
d = √2·e and a = c/√2, the product is the same and alpha·|a|₁ = (alpha/√2)·|c|₁.
n_jobs stays 1: two processes were slower than one at every size we tried. BLAS has all
threads of the race.
"""

from __future__ import annotations

import warnings

import numpy as np

from benchmarks.suite.solvers.base import (
    Solver,
    has_sparse_maps,
    is_dictionary_learning,
)

ROOT = np.float32(np.sqrt(2))


class DictionaryLearning(Solver):
    """MiniBatchDictionaryLearning by partial_fit."""

    def __init__(self, fit_algorithm="cd", budget_factor=8.0):
        self.name = "scikit-learn" + ("" if fit_algorithm == "cd" else " lars")
        self.fit_algorithm = fit_algorithm
        self.budget_factor = budget_factor

    def supports(self, dataset):
        if not is_dictionary_learning(dataset):
            return "it has l1 codes and a Euclidean ball only"
        if dataset.positive_code and self.fit_algorithm == "lars":
            return "its lars has no positive codes"
        return None

    def prepare(self, init, seed):
        from sklearn.decomposition import MiniBatchDictionaryLearning

        self.model = MiniBatchDictionaryLearning(
            self.dataset.k,
            alpha=self.dataset.alpha / float(ROOT),
            fit_algorithm=self.fit_algorithm,
            batch_size=self.batch_size,
            dict_init=init / ROOT,
            positive_code=self.dataset.positive_code,
            positive_dict=self.dataset.positive_dict,
            random_state=seed,
        )
        self.first = init

    def step(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # codes that did not converge
            self.model.partial_fit(self.next_batch())

    def dictionary(self):
        return getattr(self.model, "components_", self.first / ROOT) * ROOT


class MiniBatchNMFSolver(Solver):
    """MiniBatchNMF by partial_fit: without a ball, and so without a penalty.

    Its atoms are scaled to the border of our ball before they are judged; codes are
    ours. A penalty of its own would act on the scale that the ball fixes.
    """

    name = "scikit-learn NMF"

    def __init__(self, budget_factor=8.0):
        self.budget_factor = budget_factor

    def supports(self, dataset):
        if not (dataset.positive_code and dataset.positive_dict):
            return "it makes non-negative factors only"
        return None

    def prepare(self, init, seed):
        from sklearn.decomposition import MiniBatchNMF

        self.model = MiniBatchNMF(
            self.dataset.k,
            init="custom",
            batch_size=self.batch_size,
            random_state=seed,
        )
        # A zero stays zero under multiplicative updates.
        self.first = np.maximum(init, init.max() * np.float32(1e-6))

    def step(self):
        X = self.next_batch()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if hasattr(self.model, "components_"):
                self.model.partial_fit(X)
            else:
                W = np.full((len(X), len(self.first)), X.mean(), X.dtype)
                self.model.partial_fit(X, W=W, H=self.first.copy())

    def dictionary(self):
        D = getattr(self.model, "components_", self.first)
        return self.dataset.problem.constraint.rescale(np.asarray(D))


class SparsePCA(Solver):
    """MiniBatchSparsePCA, whole fits with more and more epochs.

    Its mini-batches are of features, and it penalises maps instead of bounding them:
    what is judged are its maps, scaled into our ball. Its alpha asks that a voxel
    correlates with a time course by 0.2 or more.
    """

    name = "scikit-learn sparse PCA"
    whole = True

    def __init__(self, correlation=0.2, budget_factor=8.0):
        self.correlation = correlation
        self.budget_factor = budget_factor

    def supports(self, dataset):
        return None if has_sparse_maps(dataset) else "its atoms are sparse"

    def prepare(self, init, seed):
        self.D = init
        self.seed = seed
        self.n_epochs = 1

    def step(self):
        from sklearn.decomposition import MiniBatchSparsePCA

        model = MiniBatchSparsePCA(
            self.dataset.k,
            alpha=self.correlation * np.sqrt(len(self.X)),
            max_iter=self.n_epochs,  # of the features
            batch_size=self.batch_size,
            method="cd",
            tol=0.0,
            max_no_improvement=None,
            random_state=self.seed,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.D = model.fit(self.X).components_
        self.n_seen = len(self.X)
        self.n_epochs *= 2

    def dictionary(self):
        return self.dataset.problem.constraint.rescale(self.D)
