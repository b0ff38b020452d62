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
    patches of n_features cost only the image.

    Parameters
    ----------
    image : array of shape (height, width) or (height, width, channels)
    patch_size : (int, int)
    center : bool
        Whether the mean of each channel of a patch is subtracted from it.
    scale : bool
        Whether every patch is scaled to unit Euclidean norm; one that centring has left
        constant to rounding becomes zero.
    step : int
        Distance between neighbouring patches.
    rows : (int, int) or None
        The band of image rows that patches may start in, to split an image in two.
    dtype : float32 or float64
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
        rows: tuple[int, int] | None = None,
        dtype: Any = np.float32,
        n_threads: int | None = None,
    ) -> None:
        image = np.asarray(image)
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
        self.patch_shape = (height, width, image.shape[2])
        self.n_threads = n_threads
        self.center = center
        self.scale = scale
        self.shape = (
            len(self._tops) * len(self._lefts),
            height * width * image.shape[2],
        )
        self.dtype = np.dtype(dtype)
        # Centring leaves this much of the norm of a constant patch, by rounding.
        n_pixels = height * width
        self._rounding = n_pixels * float(np.finfo(self.dtype).eps) if center else 0.0
        self._image = np.ascontiguousarray(image, self.dtype)

    def read(self, rows: NDArray[np.intp]) -> Array:
        """Return the patches `rows`, one a row, as a new array."""
        vertical, horizontal = np.divmod(rows, len(self._lefts))
        patches = np.empty((len(rows), self.shape[1]), self.dtype)
        height, width, n_channels = self.patch_shape
        tops, lefts = self._tops[vertical], self._lefts[horizontal]

        def read(start: int, stop: int) -> None:
            read_patches(self._image, tops, lefts, height, width, patches, start, stop)
            if self.center or self.scale:
                prepare_patches(
                    patches,
                    n_channels,
                    self.center,
                    self.scale,
                    self._rounding,
                    start,
                    stop,
                )

        with Team(resolve_n_threads(self.n_threads)) as team:
            team.share(read, len(rows))
        return patches
