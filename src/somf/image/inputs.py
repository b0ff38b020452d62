"""Checks of what `PatchDictionary` is given, before anything is computed."""

from __future__ import annotations

from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from somf.image.files import select_bands

Array = NDArray[Any]


def as_list(X: Any) -> list[Any]:
    """Return the images of a list or tuple, or a list of the only one."""
    if not isinstance(X, list | tuple):
        return [X]
    if not X:
        raise ValueError("The list of images is empty; give at least one.")
    for x in X:
        if isinstance(x, list | tuple | Number):
            raise TypeError(
                f"X is a list of {type(x).__name__}; a list holds images, as arrays "
                "or paths. Make an array of nested lists of numbers: np.asarray(X)."
            )
    return list(X)


def check_bands(images: list[Array]) -> None:
    """Raise unless all images have as many bands."""
    counts = [image.shape[2] for image in images]
    if len(set(counts)) > 1:
        raise ValueError(
            f"The images have {counts} bands; a dictionary is learned from images of "
            "one sensor, with the same bands."
        )


def has_gaps(image: Array) -> bool:
    """Whether an image has NaN; infinity, or NaN alone, is an error. Read by rows."""
    if image.dtype.kind != "f":
        return False
    gaps, known = False, False
    for row in image:
        if np.isfinite(row.sum(dtype=np.float64)):
            known = True
            continue
        missing = np.isnan(row)
        if np.isinf(row).any():
            raise ValueError(
                "The image holds infinity; repair it, or put NaN where values are "
                "not known."
            )
        gaps = gaps or bool(missing.any())
        known = known or not missing.all()
    if not known:
        raise ValueError(
            "The image holds nothing but NaN; there is nothing to learn from. Is it "
            "the right file, and the right value for pixels that are not known?"
        )
    return gaps


def known_pixels(
    mask: ArrayLike | None, cube: Array, bands: slice | ArrayLike | None
) -> Array | None:
    """Return where an image is known, with as many axes as it has."""
    if mask is None:
        return None
    known = np.asarray(mask)
    if known.dtype.kind != "b" or known.shape[:2] != cube.shape[:2]:
        raise ValueError(
            f"mask has shape {known.shape} and type {known.dtype}; it must be "
            f"boolean, (height, width) = {cube.shape[:2]} or with bands too, and "
            "True where the image is known."
        )
    if known.ndim == 2:
        return known[:, :, None]
    known = select_bands(known, bands)
    if known.shape != cube.shape:
        raise ValueError(
            f"mask has {known.shape[2]} bands, but the image {cube.shape[2]}; give "
            "one for each band, or (height, width) for all of them."
        )
    return known


def output(out: Array | None, shape: tuple[int, ...]) -> Array:
    """Return where a result of this shape goes, which is new if nobody gave it."""
    if out is None:
        return np.empty(shape, np.float32)
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; it must be {shape}.")
    if out.dtype.kind != "f":
        raise TypeError(
            f"out holds {out.dtype}, which would cut results off; it must hold floats, "
            "such as np.float32."
        )
    return out
