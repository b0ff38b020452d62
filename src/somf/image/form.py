"""What patches a dictionary is made of: their size, bands and preparation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from somf.image.files import as_image, open_image, select_bands
from somf.image.patches import Preparation
from somf.sources.patches import PatchSource

Array = NDArray[Any]


class Opened(NamedTuple):
    """An image that was opened.

    cube    (height, width, bands), with the bands in use
    stack   height of the patches of a stack, None for an image
    flat    whether the image came without an axis for its bands
    """

    cube: Array
    stack: int | None
    flat: bool

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape of an image that is made of this one."""
        return self.cube.shape[:2] if self.flat else self.cube.shape


@dataclass(frozen=True, eq=False)
class PatchForm:
    """How images become samples; a fitted dictionary keeps the one it learned with."""

    patch_size: tuple[int, int]
    setting: str
    bands: slice | ArrayLike | None
    code_l1_ratio: float

    @property
    def positive(self) -> bool:
        """Whether atoms and codes are at least zero."""
        return self.setting == "non-negative"

    @property
    def preparation(self) -> Preparation:
        """What is done to a patch before it is coded."""
        signed = not self.positive
        # Nothing would be left of a pixel without its mean.
        return Preparation(signed and self.patch_size != (1, 1), signed)

    def open(self, X: Any) -> Opened:
        """Open an image, or a stack of patches.

        A stack of patches is an image in which they stand one under the other.
        """
        if isinstance(X, list | tuple):
            raise TypeError(
                f"The image is a {type(X).__name__}; an image is an array or a path. "
                "Only fit takes a list of images; make an array of nested lists of "
                "numbers: np.asarray(X)."
            )
        shape = tuple(getattr(X, "shape", ()))
        if len(shape) == 4 and shape[1:3] == self.patch_size:
            column = as_image(np.asanyarray(X).reshape(-1, *shape[2:]))
            return Opened(select_bands(column, self.bands), shape[1], False)
        if len(shape) == 2 and self.patch_size == (1, 1):
            spectra = as_image(np.asanyarray(X)[:, None])
            return Opened(select_bands(spectra, self.bands), 1, False)
        image = open_image(X)
        self._check_not_grey_patches(image)
        cube = select_bands(as_image(image), self.bands)
        return Opened(cube, None, image.ndim == 2)

    def _check_not_grey_patches(self, image: Array) -> None:
        if image.shape[1:] == self.patch_size != (1, 1):
            raise ValueError(
                f"X has shape {image.shape}, and patch_size={self.patch_size}: these "
                "seem to be patches without an axis for their bands, not one image. "
                "Give X[..., None] for patches of one band, and other patches for an "
                "image that really is so narrow."
            )

    def check_size(self, image: Any) -> None:
        """Raise for an image that is smaller than a patch."""
        if any(n < size for n, size in zip(image.shape, self.patch_size, strict=False)):
            raise ValueError(
                f"The image has {image.shape[0]} x {image.shape[1]} pixels, less than "
                f"a patch of {self.patch_size}; give a larger image, or learn smaller "
                "patches."
            )

    def count(self, image: Array, step: int) -> int:
        """Return how many patches an image has."""
        numbers = (
            len(range(0, n - size + 1, step))
            for n, size in zip(image.shape, self.patch_size, strict=False)
        )
        return int(np.prod(list(numbers)))

    def source(
        self,
        image: Array,
        step: int,
        *,
        missing: bool = False,
        prepared: bool = True,
        n_threads: int | None = None,
    ) -> PatchSource:
        """Return the patches of an image as samples."""
        how = self.preparation
        return PatchSource(
            image,
            self.patch_size,
            center=how.center and prepared,
            scale=how.scale and prepared,
            step=step,
            missing=missing,
            n_threads=n_threads,
        )


def plain_bands(bands: slice | ArrayLike | None) -> Any:
    """Return the parameter `bands` as JSON can say it."""
    if isinstance(bands, slice):
        return {"slice": [bands.start, bands.stop, bands.step]}
    return None if bands is None else np.ravel(bands).tolist()


def bands_of(plain: Any) -> Any:
    """Return what `plain_bands` was given."""
    return slice(*plain["slice"]) if isinstance(plain, dict) else plain
