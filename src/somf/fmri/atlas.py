"""Maps as an atlas: files that other programs read."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.sources.checks import need

Array = NDArray[Any]

ENDINGS = (".nii.gz", ".nii", ".gii")


def write_atlas(path: Path, maps_img: Any, maps: Array) -> None:
    """Write an image of maps, and a table of them beside it."""
    surface = hasattr(maps_img, "mesh")
    ending = next((end for end in ENDINGS if path.name.endswith(end)), "")
    bare = path.with_name(path.name.removesuffix(ending))
    if surface:
        maps_img.data.to_filename(bare.with_name(f"{bare.name}.gii"))
        places: list[dict[str, int]] = [{} for _ in maps]
    else:
        if ending not in (".nii.gz", ".nii"):
            raise ValueError(
                f"{path.name} must end in .nii.gz or .nii: an atlas is a NIfTI image."
            )
        maps_img.to_filename(path)
        places = _peaks(maps_img)
    sizes = np.count_nonzero(maps, axis=1).tolist()
    rows = [
        {"index": j, "name": f"map {j + 1:02d}", **place, "n_voxels": size}
        for j, (place, size) in enumerate(zip(places, sizes, strict=True))
    ]
    table = bare.with_name(f"{bare.name}.tsv")
    with open(table, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _peaks(maps_img: Any) -> list[dict[str, int]]:
    """Return the coordinates in millimetres of the largest value of each map."""
    nibabel = need("nibabel", "fmri", "Writing an atlas")
    volumes = np.asanyarray(maps_img.dataobj)
    flat = volumes.reshape(-1, volumes.shape[3])
    where = np.unravel_index(np.abs(flat).argmax(axis=0), volumes.shape[:3])
    points = nibabel.affines.apply_affine(maps_img.affine, np.column_stack(where))
    names = ("x", "y", "z")
    return [dict(zip(names, np.rint(p).astype(int), strict=True)) for p in points]
