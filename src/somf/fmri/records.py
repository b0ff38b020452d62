"""What people call their images: one, a list, a pattern, or a BIDS folder."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse

from somf.sources.checks import need


def as_records(images: Any, confounds: Any = None) -> tuple[list[Any], Any]:
    """Return a list of images, and the confounds of each or None.

    A folder is taken for BIDS derivatives, see `load_bids`.
    """
    numbers = isinstance(images, np.ndarray) and images.dtype.kind not in "OU"
    if numbers or issparse(images):
        raise TypeError(
            f"imgs is a {type(images).__name__}; it must be an image, a path or a list "
            "of them. somf.SOMF factorizes arrays and sparse matrices."
        )
    if isinstance(images, str | os.PathLike):
        if Path(images).is_dir() and confounds is None:
            return load_bids(images)
        if Path(images).is_dir():
            return _find_images(images), confounds
        name = os.fspath(images)
        if glob.has_magic(name):
            found = sorted(glob.glob(name, recursive=True))
            if not found:
                raise FileNotFoundError(f"No file has a name like {name}.")
            return list(found), confounds
    elif hasattr(images, "__iter__"):
        images = list(images)
        if not images:
            raise ValueError(
                "Need one or more Niimg-like or SurfaceImage objects as input, "
                "an empty list was given."
            )
        return images, confounds
    alone = confounds is not None and not isinstance(confounds, list | tuple)
    return [images], [confounds] if alone else confounds


def load_bids(
    folder: str | os.PathLike[str],
    *,
    task: str | None = None,
    space: str | None = None,
    strategy: str | None = "simple",
) -> tuple[list[str], list[Any] | None]:
    """Find preprocessed runs in a folder of BIDS derivatives, with their confounds.

    Parameters
    ----------
    folder : path
        What fMRIPrep wrote: ``sub-*/func/*_desc-preproc_bold.nii.gz``, also in
        sessions.
    task, space : str or None
        Which runs; None takes all tasks, and the only space there is.
    strategy : {"simple", "scrubbing", "compcor", "ica_aroma"} or None
        `denoise_strategy` of nilearn's `load_confounds_strategy`; None loads none.
        Volumes that scrubbing would drop are kept, so it is as good as "simple".

    Returns
    -------
    images : list of paths
    confounds : list of tables, or None
        To be given to `fit` together.
    """
    images = _find_images(folder, task, space)
    if strategy is None:
        return images, None
    fmriprep = need("nilearn.interfaces.fmriprep", "fmri", "Reading BIDS derivatives")
    try:
        confounds, _ = fmriprep.load_confounds_strategy(
            images, denoise_strategy=strategy
        )
    except (ValueError, FileNotFoundError) as error:
        raise ValueError(
            f"The confounds of {os.fspath(folder)} cannot be read ({error}). To do "
            "without: images, _ = load_bids(folder, strategy=None)."
        ) from error
    if not isinstance(confounds, list):
        confounds = [confounds]
    return images, confounds


def _find_images(
    folder: str | os.PathLike[str], task: str | None = None, space: str | None = None
) -> list[str]:
    bids = need("nilearn.interfaces.bids", "fmri", "Reading BIDS derivatives")
    asked_for = {"desc": "preproc", "task": task, "space": space}
    filters = [(label, value) for label, value in asked_for.items() if value]
    images = bids.get_bids_files(
        os.fspath(folder),
        file_tag="bold",
        file_type="nii*",
        modality_folder="func",
        filters=filters,
    )
    asked = ", ".join(f"{label}-{value}" for label, value in filters)
    if not images:
        raise FileNotFoundError(
            f"{os.fspath(folder)} holds no runs sub-*/func/*_bold.nii.gz with {asked}; "
            "name a folder of BIDS derivatives, or give a list of images."
        )
    parsed = [bids.parse_bids_filename(image)["entities"] for image in images]
    spaces = {entities.get("space", "none") for entities in parsed}
    if len(spaces) > 1:
        raise ValueError(
            f"{os.fspath(folder)} holds runs in several spaces, {sorted(spaces)}: "
            "choose one with load_bids(folder, space=...), or --space on the command "
            "line."
        )
    return [str(image) for image in images]
