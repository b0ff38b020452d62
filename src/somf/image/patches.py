"""Patches on their way into a dictionary, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Preparation:
    """What is done to a patch before it is coded.

    center   the mean of each band is subtracted
    scale    patches get unit norm
    """

    center: bool
    scale: bool

    def split(self, patches: Array, n_bands: int) -> tuple[Array, Array, Array]:
        """Return prepared patches (n, p), mean spectra (n, n_bands) and norms (n,).

        NaN stays where it is; means and norms are those of the other values, norms as
        if the patch were whole. A band without any value has NaN as its mean.
        """
        pixels = patches.reshape(len(patches), -1, n_bands)
        known = ~np.isnan(pixels)
        means = np.zeros((len(patches), n_bands), patches.dtype)
        if self.center:
            n_known = known.sum(axis=1)
            sums = np.where(known, pixels, 0).sum(axis=1, dtype=np.float64)
            with np.errstate(invalid="ignore"):
                means[:] = sums / n_known
            pixels = pixels - means[:, None]
        norms = np.ones(len(patches), patches.dtype)
        if self.scale:
            square = np.square(np.where(np.isnan(pixels), 0, pixels)).sum(
                axis=(1, 2), dtype=np.float64
            )
            share = known.mean(axis=(1, 2))
            norms[:] = np.sqrt(square / np.maximum(share, 1 / pixels[0].size))
            norms[norms == 0] = 1
            pixels = pixels / norms[:, None, None]
        return pixels.reshape(patches.shape), means, norms

    def join(self, patches: Array, means: Array, norms: Array) -> Array:
        """Return prepared patches as they were: the inverse of `split`."""
        pixels = patches.reshape(len(patches), -1, means.shape[1])
        joined = pixels * norms[:, None, None] + means[:, None]
        return np.asarray(joined.reshape(patches.shape))


def fill_gaps(patches: Array, n_bands: int) -> Array:
    """Return patches with every NaN at the mean of its band, or at zero without one."""
    prepared, means, _ = Preparation(True, False).split(patches, n_bands)
    filled = np.nan_to_num(prepared, nan=0.0).reshape(len(patches), -1, n_bands)
    return np.asarray((filled + np.nan_to_num(means)[:, None]).reshape(patches.shape))
