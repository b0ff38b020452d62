"""Resting-state data for everyone: subjects whose maps differ, and noise as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.signal import detrend, lfilter

from somf.sampling import as_generator
from somf.sources.checks import need

Array = NDArray[Any]


@dataclass(frozen=True)
class Simulation:
    """Volumes of several subjects, and the maps that they were made of."""

    images: list[Any]  # one 4-D image a subject
    mask_img: Any
    maps_img: Any  # 4-D, before subjects make them their own


def simulate(
    n_subjects: int = 6,
    n_volumes: int = 150,
    n_maps: int = 30,
    *,
    resolution: float = 5,
    noise: float = 0.6,
    random_state: Any = 0,
) -> Simulation:
    """Simulate resting-state runs on the grey matter of the MNI template.

    The maps are smooth, of one or more blobs, and of strengths with a long tail. Those
    of a subject are moved, stretched and rescaled. Their time courses are
    autocorrelated, and so is the noise, which is smooth in space.

    Parameters
    ----------
    n_subjects, n_volumes : int
        Number of images, and of the volumes of each.
    n_maps : int
    resolution : float
        Size of a voxel in millimetres: 3 makes 64 292 of them, 5 makes 14 602.
    noise : float
        Standard deviation of the noise, in that of the signal.
    random_state : int, RandomState instance, Generator or None

    Returns
    -------
    simulation : Simulation
        With `images`, `mask_img` and `maps_img`.

    Examples
    --------
    >>> from somf.fmri import simulate
    >>> brains = simulate(n_subjects=2, n_volumes=10, n_maps=5, resolution=8)
    >>> [image.shape[3] for image in brains.images]
    [10, 10]
    >>> brains.maps_img.shape[3]
    5
    """
    nibabel = need("nibabel", "fmri", "Simulating brains")
    mask, affine = grey_matter(resolution)
    rng = as_generator(random_state)
    lengths = [n_volumes] * n_subjects
    X, maps = simulate_volumes(mask, affine, lengths, n_maps, rng, noise)

    def image(rows: Array) -> Any:
        volumes = np.zeros((*mask.shape, len(rows)), np.float32)
        volumes[mask] = rows.T
        return nibabel.Nifti1Image(volumes, affine)

    return Simulation(
        images=[image(run) for run in np.split(X, n_subjects)],
        mask_img=nibabel.Nifti1Image(mask.astype(np.uint8), affine),
        maps_img=image(maps),
    )


def grey_matter(resolution: float) -> tuple[Array, Array]:
    """Return the mask of grey matter that nilearn carries, cropped, and its affine."""
    datasets = need("nilearn.datasets", "fmri", "Simulating brains")
    image = datasets.load_mni152_gm_mask(resolution=resolution)
    mask = np.asarray(image.dataobj) > 0
    inside = np.argwhere(mask)
    low, high = inside.min(axis=0), inside.max(axis=0) + 1
    affine = np.array(image.affine, float)
    affine[:3, 3] += affine[:3, :3] @ low
    return mask[tuple(map(slice, low, high))], affine


def simulate_volumes(
    mask: Array,
    affine: Array,
    lengths: Sequence[int],
    n_maps: int,
    rng: np.random.Generator,
    noise: float = 0.6,
) -> tuple[Array, Array]:
    """Return standardised volumes of runs, one after the other, and the maps."""
    points = (np.argwhere(mask) @ affine[:3, :3].T).astype(np.float32)
    blobs = _draw_blobs(points, n_maps, rng)
    strength = np.arange(1, n_maps + 1) ** -0.6  # the long tail
    X = np.empty((sum(lengths), len(points)), np.float32)
    for run in np.split(X, np.cumsum(lengths)[:-1]):
        own = strength * rng.lognormal(0, 0.3, n_maps)
        maps = _make_maps(points, _deform(blobs, rng), n_maps)
        maps *= own[:, None].astype(np.float32)
        np.matmul(_courses(len(run), n_maps, 0.7, rng), maps, out=run)
        _add_noise(run, mask, noise * run.std(), rng)
    standardize(X, lengths)
    return X, _make_maps(points, blobs, n_maps)


def standardize(X: Array, lengths: Sequence[int]) -> None:
    """Overwrite X: no trend, zero mean and unit variance for each voxel in each run."""
    for run in np.split(X, np.cumsum(lengths)[:-1]):
        for start in range(0, X.shape[1], 4096):
            part = run[:, start : start + 4096]
            part[:] = detrend(part, axis=0)
            part /= np.maximum(part.std(axis=0), 1e-6)


Blobs = tuple[Array, Array, Array, Array]  # map, centre, width in mm, height


def _draw_blobs(points: Array, n_maps: int, rng: np.random.Generator) -> Blobs:
    """Return the blobs of all maps: one for each, and as many more."""
    owner = np.concatenate([np.arange(n_maps), rng.integers(n_maps, size=n_maps)])
    centres = points[rng.integers(len(points), size=len(owner))]
    widths = rng.uniform(5, 11, len(owner))
    return owner, centres, widths, rng.uniform(0.5, 1, len(owner))


def _deform(blobs: Blobs, rng: np.random.Generator) -> Blobs:
    """Return the blobs of a subject: moved, stretched and rescaled."""
    owner, centres, widths, heights = blobs
    stretched = centres * rng.normal(1, 0.02, 3)
    centres = stretched + rng.normal(0, 2.5, centres.shape)
    return owner, centres, widths * rng.lognormal(0, 0.1, len(owner)), heights


def _make_maps(points: Array, blobs: Blobs, n_maps: int) -> Array:
    maps = np.zeros((n_maps, len(points)), np.float32)
    for j, centre, width, height in zip(*blobs, strict=True):
        near = np.flatnonzero(np.abs(points - centre).max(axis=1) < 3 * width)
        distance = ((points[near] - centre) ** 2).sum(axis=1)
        maps[j, near] += height * np.exp(-distance / (2 * width**2))
    return maps


def _courses(length: int, n: int, memory: float, rng: np.random.Generator) -> Array:
    """Return n AR(1) time courses of unit variance, (length, n)."""
    noise = rng.standard_normal((length + 50, n), dtype=np.float32)
    scale = np.sqrt(1 - memory**2)
    courses: Array = lfilter([scale], [1, -memory], noise, axis=0)
    return courses[50:].astype(np.float32)


def _add_noise(
    run: Array, mask: Array, size: float, rng: np.random.Generator, memory: float = 0.4
) -> None:
    """Add noise that is smooth in space and autocorrelated in time."""
    last = np.zeros(run.shape[1], np.float32)
    scale = np.sqrt(1 - memory**2)
    for row in run:
        white = rng.standard_normal(mask.shape, dtype=np.float32)
        fresh = gaussian_filter(white, 1.0, truncate=3)[mask]
        fresh /= fresh.std()
        last = memory * last + scale * fresh
        row += size * last
