"""16 x 16 patches over all bands of the AVIRIS Indian Pines cube (from tensorly)."""

from __future__ import annotations

import importlib.util

import numpy as np

from benchmarks.suite.datasets.base import Dataset, stretch
from benchmarks.suite.datasets.patches import split_patches

SIZE = 16
COLOURS = (50, 27, 17)  # a false-colour view: near infrared, red, green


class Hyperspectral(Dataset):
    """Dictionary learning: patches centred and scaled, 51 200 features."""

    name = "hyperspectral"
    k = 128
    alpha = 0.25  # about 5 % of the codes are not zero
    n_train, n_test = 6000, 400
    n_bands = 200
    budget = 3.0
    prepare = {"center": True, "scale": True}

    def __init__(self, small=False):
        super().__init__(small)
        if small:
            self.n_train, self.n_test, self.n_bands = 1500, 200, 25

    def why_not(self):
        if importlib.util.find_spec("tensorly") is None:
            return "the package tensorly, which carries the image, is not installed"
        return None

    def load(self, seed):
        return split_patches(
            [self.image()], SIZE, 8, self.n_train, self.n_test, seed, **self.prepare
        )

    def image(self):
        from tensorly.datasets import load_indian_pines

        cube = np.asarray(load_indian_pines().tensor, dtype=np.float32)
        return cube[:, :, :: cube.shape[2] // self.n_bands]

    def picture(self, atom):
        step = 200 // self.n_bands
        channels = [band // step for band in COLOURS]
        return stretch(atom.reshape(SIZE, SIZE, -1)[:, :, channels])


class HyperspectralNMF(Hyperspectral):
    """Non-negative factors: patches as they are, divided by their mean norm."""

    name = "hyperspectral-nmf"
    alpha = 1e-3
    budget = 6.0
    positive_code = True
    positive_dict = True
    prepare = {"center": False, "scale": False}

    def load(self, seed):
        X, X_test = super().load(seed)
        scale = np.float32(np.mean(np.sqrt(np.einsum("ij,ij->i", X, X))))
        X /= scale
        X_test /= scale
        return X, X_test


class SpectraNMF(HyperspectralNMF):
    """Few features, explained almost completely: non-negative spectra of pixels."""

    name = "spectra-nmf"
    k = 30
    alpha = 1e-4
    budget = 3.0
    n_test = 1000

    def load(self, seed):
        pixels = self.image()
        X = pixels.reshape(-1, pixels.shape[2])
        X = X[np.random.default_rng(seed).permutation(len(X))]
        X /= np.float32(np.mean(np.sqrt(np.einsum("ij,ij->i", X, X))))
        return X[self.n_test :], X[: self.n_test]

    def picture(self, atom):
        return None


class Hyperspectral256(Hyperspectral):
    """The same with twice the atoms."""

    name = "hyperspectral-256"
    k = 256
    budget = 4.0


class HyperspectralNMF256(HyperspectralNMF):
    """The same with twice the atoms."""

    name = "hyperspectral-nmf-256"
    k = 256
