"""Patches of an image as samples: a view, never an array of all patches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.kernels.patches import prepare_patches, read_patches
from somf.threads import Team, resolve_n_threads

Array = NDArray[Any]


class PatchSource:
    """Patches of a (height, width) or (height, width, channels) image, all channels.

    A sample is a flattened patch (patch_height, patch_width, channels); n_samples
    patches of n_features cost only the image, and those of a memory map only what is
    read of it.

    Parameters
    ----------
    image : array or memory map of shape (height, width) or (height, width, channels)
    patch_size : (int, int)
    center : bool
        Whether the mean of each channel of a patch is subtracted from it.
    scale : bool
        Whether every patch is scaled to unit Euclidean norm; one that centring has left
        constant to rounding becomes zero.
    step : int
        Distance between neighbouring patches.
    cover : bool
        Whether the last row and column of patches are taken even where `step` would
        leave them out, so that patches cover the image if `step` is not larger than
        they are.
    rows : (int, int) or None
        The band of image rows that patches may start in, to split an image in two.
    dtype : float32 or float64
    missing : bool
        Whether NaN stands for values that are not known: it stays, and the means and
        the norm are those of the others, the norm as if the patch were whole.
    n_threads : int or None
        Threads that read; None takes all cores.

    Examples
    --------
    >>> import numpy as np
    >>> from somf.sources import PatchSource
    >>> patches = PatchSource(np.arange(30.0).reshape(5, 6), (2, 2))
    >>> patches.shape
    (20, 4)
    >>> patches.read(np.array([0, 19]))
    array([[ 0.,  1.,  6.,  7.],
           [22., 23., 28., 29.]], dtype=float32)
    """

    def __init__(
        self,
        image: Array,
        patch_size: tuple[int, int],
        *,
        center: bool = False,
        scale: bool = False,
        step: int = 1,
        cover: bool = False,
        rows: tuple[int, int] | None = None,
        dtype: Any = np.float32,
        missing: bool = False,
        n_threads: int | None = None,
    ) -> None:
        image = image if isinstance(image, np.ndarray) else np.asarray(image)
        if image.ndim == 2:
            image = image[:, :, None]
        if image.ndim != 3:
            raise ValueError(
                f"image has {image.ndim} dimensions; it must have 2 (height, width) or "
                "3 (height, width, channels). Take one image of a stack at a time."
            )
        height, width = patch_size
        if not (1 <= height <= image.shape[0] and 1 <= width <= image.shape[1]):
            raise ValueError(
                f"patch_size={patch_size} must be between (1, 1) and the image's "
                f"{image.shape[:2]}; choose smaller patches."
            )
        first, last = rows or (0, image.shape[0])
        if step < 1 or not 0 <= first <= last:
            raise ValueError(
                f"step={step} must be at least 1, and rows={rows} a range of image "
                f"rows from 0 to {image.shape[0]}; leave rows out for all of them."
            )
        last = min(last, image.shape[0] - height + 1)
        self._tops = np.arange(first, last, step)
        self._lefts = np.arange(0, image.shape[1] - width + 1, step)
        if cover:
            self._tops = first + covering(last - first + height - 1, height, step)
            self._lefts = covering(image.shape[1], width, step)
        self.patch_shape = (height, width, image.shape[2])
        self.n_pixels = image.shape[0] * image.shape[1]
        self.n_threads = n_threads
        self.center = center
        self.scale = scale
        self.missing = missing
        self.shape = (
            len(self._tops) * len(self._lefts),
            height * width * image.shape[2],
        )
        self.dtype = np.dtype(dtype)
        # Centring leaves this much of the norm of a constant patch, by rounding.
        n_pixels = height * width
        self._rounding = n_pixels * float(np.finfo(self.dtype).eps) if center else 0.0
        suits = image.dtype == self.dtype and image.flags.c_contiguous
        # A map of another type or order is converted patch by patch, never as a whole.
        self._mapped = isinstance(image, np.memmap) and not suits
        self._image = (
            np.asarray(image)
            if self._mapped
            else np.ascontiguousarray(image, self.dtype)
        )

    def read(self, rows: NDArray[np.intp]) -> Array:
        """Return the patches `rows`, one a row, as a new array."""
        tops, lefts = self.corners(rows)
        patches = np.empty((len(rows), self.shape[1]), self.dtype)
        height, width, _ = self.patch_shape

        def read(start: int, stop: int) -> None:
            if self._mapped:
                for i in range(start, stop):
                    top, left = tops[i], lefts[i]
                    patch = self._image[top : top + height, left : left + width]
                    patches[i].reshape(self.patch_shape)[:] = patch
            else:
                read_patches(
                    self._image, tops, lefts, height, width, patches, start, stop
                )
            if self.center or self.scale:
                self._prepare(patches, start, stop)

        with Team(resolve_n_threads(self.n_threads)) as team:
            team.share(read, len(rows))
        return patches

    def corners(
        self, rows: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the upper and the left edges of the patches `rows` in the image."""
        vertical, horizontal = np.divmod(rows, len(self._lefts))
        return self._tops[vertical], self._lefts[horizontal]

    def _prepare(self, patches: Array, start: int, stop: int) -> None:
        """Overwrite patches with centred and scaled ones."""
        incomplete: list[int] = []
        if self.missing:
            incomplete = [i for i in range(start, stop) if np.isnan(patches[i]).any()]
        kept = [patches[i].copy() for i in incomplete]
        for i in incomplete:
            patches[i] = 0  # kernels are not made for NaN
        n_channels = self.patch_shape[2]
        prepare_patches(
            patches, n_channels, self.center, self.scale, self._rounding, start, stop
        )
        for i, patch in zip(incomplete, kept, strict=True):
            patches[i] = self._prepare_known(patch)

    def _prepare_known(self, patch: Array) -> Array:
        """Return a patch with its known values centred and scaled."""
        patch = patch.reshape(-1, self.patch_shape[2])
        known = ~np.isnan(patch)
        floor = self._rounding * _known_norm(patch, known)
        if self.center:
            sums = np.where(known, patch, 0).sum(axis=0, dtype=np.float64)
            patch = patch - (sums / np.maximum(known.sum(axis=0), 1)).astype(self.dtype)
        if self.scale:
            length = _known_norm(patch, known)
            patch = patch * self.dtype.type(1 / length if length > floor else 0)
        return patch.ravel()


def covering(length: int, size: int, step: int) -> NDArray[np.intp]:
    """Return where pieces of `size` begin, `step` apart, the last at the end."""
    last = length - size
    return np.unique(np.append(np.arange(0, last, step), last)).astype(np.intp)


def _known_norm(patch: Array, known: NDArray[np.bool_]) -> float:
    """Return the norm that a patch would have if all of it were like what is known."""
    square = np.square(patch, where=known, out=np.zeros(patch.shape)).sum()
    return float(np.sqrt(square * patch.size / max(1, known.sum())))
