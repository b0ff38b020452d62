"""What patches become in `denoise` and `inpaint`: functions from patches to patches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.image.coding import Coder
from somf.image.noise import MeanSpectra
from somf.image.patches import Preparation
from somf.sources.patches import PatchSource

Array = NDArray[Any]
Change = Callable[[Array], Array]

N_MEANS = 4000  # mean spectra from which their subspace is found
N_NOISY = 300  # patches on which the penalty for noise is chosen
# What is known has no noise to leave out: the penalty only chooses among the atoms.
PART_OF_ALPHA = 0.01


def denoiser(
    coder: Coder, center: bool, source: PatchSource, n_bands: int, sigma: float
) -> Change:
    """Return the function that takes noise of size `sigma` off patches.

    `source` has the patches of the image as they are. Mean spectra are brought into
    the subspace that has more than noise; the rest is coded with a penalty for noise.
    """
    how = Preparation(center, scale=False)
    rng = np.random.default_rng(0)  # the same image gives the same result
    rows = rng.choice(source.shape[0], min(N_MEANS, source.shape[0]), replace=False)
    parts = np.array_split(rows, -(-len(rows) // N_NOISY))
    some = _read(source, parts[0])
    # Less than rounding is not there; the codes would only take longer.
    size = float(np.sqrt(np.mean(np.square(some, dtype=np.float64))))
    sigma = max(sigma, float(np.finfo(np.float32).eps) * size)
    prepared, means, _ = how.split(some, n_bands)
    alpha = coder.alpha_for_noise(prepared, sigma)
    spectra = None
    if center:
        others = [how.split(_read(source, part), n_bands)[1] for part in parts[1:]]
        variance = sigma**2 * n_bands / source.shape[1]  # of the mean over the pixels
        means = np.concatenate([means, *others])
        n_apart = source.n_pixels * n_bands / source.shape[1]
        spectra = MeanSpectra(means, variance, n_apart)

    def change(patches: Array) -> Array:
        check_finite(patches)
        prepared, means, norms = how.split(patches, n_bands)
        if spectra is not None:
            means = spectra.project(means)
        clean = coder.reconstruct(coder.codes(prepared, alpha))
        return how.join(clean, means, norms)

    return change


def filler(coder: Coder, how: Preparation, n_bands: int, alpha: float) -> Change:
    """Return the function that puts values where patches have NaN.

    Patches that are whole, and those of which nothing is known, become NaN: they have
    nothing to say about gaps.
    """

    def change(patches: Array) -> Array:
        missing = np.isnan(patches)
        useful = missing.any(axis=1) & ~missing.all(axis=1)
        filled = np.full_like(patches, np.nan)
        if useful.any():
            prepared, means, norms = how.split(patches[useful], n_bands)
            codes = coder.codes(prepared, PART_OF_ALPHA * alpha, missing[useful])
            filled[useful] = how.join(coder.reconstruct(codes), means, norms)
        return filled

    return change


class Gapped:
    """An image whose rows are read with NaN for what is not known."""

    def __init__(self, image: Array, known: Array | None) -> None:
        self.image = image
        self.known = known
        self.shape = image.shape

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, rows: slice) -> Array:
        values = np.asarray(self.image[rows], np.float32)
        if self.known is None:
            return values
        return np.where(self.known[rows], values, np.float32(np.nan))

    def check(self) -> None:
        """Raise if what is known holds infinity."""
        for row in range(len(self)):
            if np.isinf(self[slice(row, row + 1)]).any():
                raise ValueError(
                    "The image holds infinity where it is known; put NaN there, or "
                    "False in the mask."
                )


def copy_rows(image: Array, out: Array) -> None:
    """Copy an image of finite values to `out`, row by row."""
    for row, values in enumerate(image):
        check_finite(values)
        out[row] = values.astype(np.float32)


def check_finite(values: Array) -> None:
    """Raise for an image with values that are no numbers."""
    if not np.isfinite(values.sum(dtype=np.float64)):
        raise ValueError(
            "The image holds NaN or infinity; fill the gaps first, with inpaint(image) "
            "for NaN."
        )


def _read(source: PatchSource, rows: NDArray[np.intp]) -> Array:
    patches = source.read(np.sort(rows))
    check_finite(patches)
    return patches
