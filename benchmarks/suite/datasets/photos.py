"""Patches of the two photographs that scikit-learn carries."""

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
            self.size = min(self.size, 12)
            self.n_train, self.n_test = 5000, 500

    def why_not(self):
        if importlib.util.find_spec("PIL") is None:
            return "the package pillow, which reads the photographs, is not installed"
        return None

    def images(self):
        from sklearn.datasets import load_sample_images

        return [np.asarray(photo) for photo in load_sample_images().images]

    def load(self, seed):
        return split_patches(
            self.images(),
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


class GreyPatches(Photos):
    """Few features: grey patches of 16 x 16 pixels, as many atoms as pixels."""

    name = "patches-16"
    k = 256
    size = 16
    budget = 1.5

    def images(self):
        return [photo.mean(axis=2, dtype=np.float32) for photo in super().images()]

    def picture(self, atom):
        return np.repeat(stretch(atom.reshape(self.size, self.size, 1)), 3, axis=2)


class SmallGreyPatches(GreyPatches):
    """Fewer still: 8 x 8 pixels, more atoms than pixels."""

    name = "patches-8"
    k = 100
    alpha = 0.25
    size = 8
    n_train = 100_000
