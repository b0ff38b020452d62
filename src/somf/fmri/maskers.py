"""Maskers of nilearn: one that makes signals of images, one that makes series of maps.

Volumes and surfaces have their own, with the same methods.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np
from nilearn import maskers
from nilearn.maskers.masker_validation import check_embedded_masker
from nilearn.surface import SurfaceImage
from numpy.typing import NDArray

Array = NDArray[Any]


def fit_masker(estimator: Any, images: list[Any]) -> Any:
    """Return the masker that the parameters of `estimator` describe, fitted.

    It keeps nothing in `memory`: masked records have their own place there.
    """
    masker = check_embedded_masker(estimator, _kind(estimator.mask, images))
    masker.memory, masker.memory_level = joblib.Memory(None), 0
    if masker.dtype not in (None, "auto") and np.dtype(masker.dtype).kind != "f":
        masker.dtype = None  # integers are for what `transform` returns
    return masker.fit(images) if masker.mask_img is None else masker.fit()


def _kind(mask: Any, images: list[Any]) -> str:
    """Return nilearn's name of the kind of masker."""
    multi = (maskers.MultiNiftiMasker, maskers.MultiSurfaceMasker)
    single = isinstance(mask, maskers.NiftiMasker | maskers.SurfaceMasker)
    surface = isinstance(mask, SurfaceImage | maskers.SurfaceMasker)
    if mask is None:
        surface = any(isinstance(image, SurfaceImage) for image in images)
    kind = "surface" if surface else "nii"
    return kind if single and not isinstance(mask, multi) else f"multi_{kind}"


def fit_maps_masker(estimator: Any, masker: Any, maps: Any) -> Any:
    """Return the masker that regresses images on maps, fitted."""
    common = {
        "standardize": None,
        "dtype": estimator.dtype,
        "memory": estimator.memory if estimator.memory_level > 0 else None,
        "memory_level": estimator.memory_level,
    }
    if isinstance(masker, maskers.SurfaceMasker):
        return maskers.SurfaceMapsMasker(maps, masker.mask_img_, **common).fit()
    return maskers.NiftiMapsMasker(
        maps, masker.mask_img_, resampling_target="maps", **common
    ).fit()


def mask_maps(masker: Any, maps: Any) -> Array:
    """Return given maps inside the mask of a masker, and nothing done to them."""
    plain = type(masker)(mask_img=masker.mask_img_, standardize=None).fit()
    return np.atleast_2d(np.asarray(plain.transform(maps)))


def signals_folder(memory: Any) -> Path | None:
    """Return where masked records are kept under what nilearn calls memory."""
    location = memory.location if isinstance(memory, joblib.Memory) else memory
    return None if location is None else Path(location) / "somf"
