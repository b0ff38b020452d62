"""Colour patches of the two photographs that scikit-learn carries."""

from __future__ import annotations

import importlib.util

import numpy as np

from benchmarks.suite.datasets.base import Dataset, stretch
from benchmarks.suite.datasets.patches import split_patches


class Photos(Dataset):
    """Dictionary learning: 24 x 24 x 3 patches, centred and scaled."""

    name = "photos"
    k = 128
    alpha = 0.2  # about 5 % of the codes are not zero
    size = 24
    n_train, n_test = 50_000, 2000
    budget = 2.0

    def __init__(self, small=False):
        super().__init__(small)
        if small:
            self.size, self.n_train, self.n_test = 12, 5000, 500

    def why_not(self):
        if importlib.util.find_spec("PIL") is None:
            return "the package pillow, which reads the photographs, is not installed"
        return None

    def load(self, seed):
        from sklearn.datasets import load_sample_images

        photos = [np.asarray(photo) for photo in load_sample_images().images]
        return split_patches(
            photos,
            self.size,
            40,
            self.n_train,
            self.n_test,
            seed,
            center=True,
            scale=True,
        )

    def picture(self, atom):
        return stretch(atom.reshape(self.size, self.size, 3))
