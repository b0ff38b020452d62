"""Atoms side by side, to look at."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

CONTRAST = (1, 99)  # percentiles of an atom that become black and white


def default_bands(n_bands: int) -> list[int]:
    """Return three bands spread over all, the longest wave as red; or the first."""
    if n_bands < 3:
        return [0]
    if n_bands == 3:  # a photo
        return [0, 1, 2]
    return [5 * n_bands // 6, n_bands // 2, n_bands // 6]


def draw_grid(atoms: Array, n_columns: int | None = None) -> Array:
    """Return atoms (k, height, width, 1 or 3) in rows, with white lines between."""
    k, height, width, n_colours = atoms.shape
    n_columns = n_columns or int(np.ceil(np.sqrt(k)))
    n_rows = -(-k // n_columns)
    shape = (n_rows * (height + 1) + 1, n_columns * (width + 1) + 1, n_colours)
    picture = np.ones(shape, np.float32)
    # Bands differ in size; a colour that is large everywhere would be all one sees.
    size = np.sqrt(np.mean(np.square(atoms, dtype=np.float64), axis=(0, 1, 2)))
    atoms = atoms / np.maximum(size, 1e-12)
    low, high = np.percentile(atoms, CONTRAST, axis=(1, 2, 3), keepdims=True)
    stretched = np.clip((atoms - low) / np.maximum(high - low, 1e-12), 0, 1)
    for i, atom in enumerate(stretched):
        top = 1 + (i // n_columns) * (height + 1)
        left = 1 + (i % n_columns) * (width + 1)
        picture[top : top + height, left : left + width] = atom
    return picture if n_colours == 3 else picture[:, :, 0]
