"""What a data set is: samples, and the problem that they are factorized for."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from somf.problem import AtomConstraint, CodePenalty, Problem


class Dataset:
    """Training and test samples; subclasses say where they come from."""

    name = ""
    k = 0
    alpha = 1.0
    code_l1_ratio = 1.0
    dict_l1_ratio = 0.0
    positive_code = False
    positive_dict = False
    budget = 5.0  # seconds of a solver, unless an experiment says otherwise
    small_budget = 1.5

    def __init__(self, small=False):
        self.small = small
        if small:
            self.k = min(self.k, 32)
            self.budget = self.small_budget

    def why_not(self):
        """Return why the data cannot be had here, or None."""
        return None

    def load(self, seed):
        """Return (X_train, X_test), float32 and C-ordered; the split is the seed's."""
        raise NotImplementedError

    @property
    def settings(self):
        """The problem, as keywords of `SOMF`."""
        return {
            "n_components": self.k,
            "alpha": self.alpha,
            "code_l1_ratio": self.code_l1_ratio,
            "dict_l1_ratio": self.dict_l1_ratio,
            "positive_code": self.positive_code,
            "positive_dict": self.positive_dict,
        }

    @property
    def problem(self):
        return Problem(
            CodePenalty(self.alpha, self.code_l1_ratio, self.positive_code),
            AtomConstraint(self.dict_l1_ratio, self.positive_dict),
        )

    def init(self, X, seed):
        """Return the dictionary that every solver starts from: random samples."""
        usable = np.flatnonzero(X.any(axis=1))
        rows = np.random.default_rng(seed).choice(usable, self.k, replace=False)
        return self.problem.constraint.rescale(X[np.sort(rows)])

    def picture(self, atom):
        """Return an atom as an (height, width, 3) image in [0, 1], or None."""
        return None


def cache_folder():
    """Where data that take long to make are kept."""
    default = Path.home() / ".cache" / "somf-bench"
    folder = Path(os.environ.get("SOMF_BENCH_CACHE", default))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def stretch(patch):
    """Scale a picture to [0, 1], a few bright pixels left out."""
    low, high = np.percentile(patch, (1, 99))
    return np.clip((patch - low) / max(high - low, 1e-12), 0, 1)
