"""How much noise an image has, and the subspace of its mean spectra."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BLOCK = 2**26  # bytes of the image that are looked at, at most
NORMAL_MEDIAN = 0.6745  # of the absolute value of a standard normal variable


def estimate_sigma(image: Array) -> float:
    """Return the standard deviation of the noise of a (height, width, bands) image.

    For each band, from the median absolute value of diagonal differences of four
    neighbours, which smooth parts and straight edges leave small; then the root mean
    square over the bands. A large image is judged by rows spread over all of it.
    """
    height, width, n_bands = image.shape
    if height < 2 or width < 2:
        raise ValueError(
            f"The image has {height} x {width} pixels; noise is estimated from at "
            "least 2 x 2. Give sigma yourself."
        )
    n_pairs = max(1, min(height // 2, BLOCK // (8 * width * n_bands)))
    tops = np.unique(np.linspace(0, height - 2, n_pairs).astype(int))
    differences = np.concatenate([_differences(image[t : t + 2]) for t in tops])
    medians = np.nanmedian(np.abs(differences), axis=0)
    return float(np.sqrt(np.mean((medians / NORMAL_MEDIAN) ** 2)))


def _differences(rows: Array) -> Array:
    """(a − b − c + d)/2 of blocks of 2 x 2 pixels: noise keeps its size."""
    upper, lower = np.asarray(rows, np.float32)
    n = upper.shape[0] // 2 * 2
    across = (upper - lower)[:n]
    return np.asarray((across[0::2] - across[1::2]) / 2)


class MeanSpectra:
    """The subspace that the mean spectra of patches lie in, but for their noise.

    Averaging a patch leaves noise of variance `variance` in its mean spectrum. Of the
    principal axes of many such spectra, those with more variance than noise alone would
    give (the edge of the Marchenko-Pastur law) are kept. `n_apart` is how many patches
    side by side the image holds: those that overlap share their noise.
    """

    def __init__(self, means: Array, variance: float, n_apart: float) -> None:
        n_bands = means.shape[1]
        n = min(len(means), n_apart)
        self.centre = means.mean(axis=0)
        covariance = np.cov(means.T.astype(np.float64)).reshape(n_bands, n_bands)
        values, axes = np.linalg.eigh(covariance)
        edge = variance * (1 + np.sqrt(n_bands / n)) ** 2
        self.axes = axes[:, values > edge].astype(means.dtype)

    def project(self, means: Array) -> Array:
        """Return mean spectra without what is noise alone."""
        inside = (means - self.centre) @ self.axes
        return np.asarray(inside @ self.axes.T + self.centre)
