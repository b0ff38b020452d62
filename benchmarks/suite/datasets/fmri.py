"""fMRI: runs of real subjects from a folder, and a simulator for everyone.

Ridge codes and sparse maps, k = 70. A tenth of each run, in one piece, is held out; its
place is the seed's.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter
from scipy.signal import detrend, lfilter

from benchmarks.suite.datasets.base import Dataset, cache_folder

N_MAPS = 150  # of the simulator: more than k, with a long tail


class FMRI(Dataset):
    """Volumes of several runs inside a mask, every voxel standardised per run."""

    k = 70
    alpha = 2.5e-4  # maps cover about 5 % of 60 000 voxels
    small_alpha = 1e-3  # and of the smaller number
    code_l1_ratio = 0.0
    dict_l1_ratio = 1.0
    mask = None  # boolean array and affine of the voxels, known after `load`
    affine = None

    def __init__(self, small=False):
        super().__init__(small)
        if small:
            self.alpha = self.small_alpha

    def why_not(self):
        if importlib.util.find_spec("nilearn") is None:
            return "the package nilearn is not installed"
        return None

    def volumes(self):
        """Return all volumes (n, p) and the lengths of the runs."""
        raise NotImplementedError

    def load(self, seed):
        X, lengths = self.volumes()
        held_out = hold_out(lengths, np.random.default_rng(seed))
        return X[~held_out], X[held_out]


class RealFMRI(FMRI):
    """The subject with most volumes among the npz files of $SOMF_BENCH_DATA.

    A file holds `signals` (volumes, voxels), `mask`, `affine` and `run_lengths`.
    """

    name = "fmri-real"
    alpha = 1e-4
    budget = 3.0
    fwhm = 6.0

    def files(self):
        folder = os.environ.get("SOMF_BENCH_DATA", "")
        return sorted(Path(folder).glob("fmri*.npz")) if folder else []

    def why_not(self):
        if not self.files():
            return "no fmri*.npz in the folder that SOMF_BENCH_DATA names"
        return super().why_not()

    def volumes(self):
        files = [np.load(path) for path in self.files()]
        data = max(files, key=lambda file: file["run_lengths"].sum())
        self.mask, self.affine = data["mask"], data["affine"]
        lengths = data["run_lengths"]
        X = data["signals"].astype(np.float32)
        smooth(X, self.mask, self.affine, self.fwhm)
        standardise(X, lengths)
        if self.small:
            X = np.ascontiguousarray(X[:, ::4])
        return X, lengths


class SimulatedFMRI(FMRI):
    """Resting state: 10 subjects whose maps differ, 5600 volumes, 64 292 voxels."""

    name = "fmri-simulated"
    n_subjects, n_volumes = 10, 560
    resolution = 3  # mm

    def __init__(self, small=False):
        super().__init__(small)
        if small:
            self.n_subjects, self.n_volumes, self.resolution = 4, 300, 5

    def volumes(self):
        from nilearn.datasets import load_mni152_gm_mask

        image = load_mni152_gm_mask(resolution=self.resolution)
        self.mask, self.affine = crop(np.asarray(image.dataobj) > 0, image.affine)
        lengths = [self.n_volumes] * self.n_subjects
        shape = f"{self.n_subjects}x{self.n_volumes}x{self.resolution}mm"
        path = cache_folder() / f"fmri-simulated-{shape}.npy"
        if not path.exists():
            X = simulate(self.mask, self.affine, lengths)
            unfinished = path.with_suffix(".part.npy")
            np.save(unfinished, X)
            unfinished.rename(path)
        return np.load(path, mmap_mode="r"), lengths


def hold_out(lengths, rng, part=0.1):
    """Mark one stretch of each run, a tenth of it."""
    marks = []
    for length in lengths:
        size = max(1, round(part * length))
        start = rng.integers(length - size + 1)
        marks.append(np.isin(np.arange(length), np.arange(start, start + size)))
    return np.concatenate(marks)


def standardise(X, lengths):
    """Overwrite X: no trend, zero mean and unit variance for each voxel in each run."""
    for run in np.split(X, np.cumsum(lengths)[:-1]):
        for start in range(0, X.shape[1], 4096):
            part = run[:, start : start + 4096]
            part[:] = detrend(part, axis=0)
            part /= np.maximum(part.std(axis=0), 1e-6)


def smooth(X, mask, affine, fwhm):
    """Overwrite volumes, smoothed with no flow across the border of the mask."""
    size = np.linalg.norm(affine[:3, :3], axis=0)  # of a voxel, in mm
    width = fwhm / 2.355 / size
    weight = gaussian_filter(mask.astype(np.float32), width, truncate=3)[mask]
    volume = np.zeros(mask.shape, np.float32)
    for row in X:
        volume[mask] = row
        row[:] = gaussian_filter(volume, width, truncate=3)[mask] / weight


def crop(mask, affine):
    """Cut the empty border off a mask."""
    inside = np.argwhere(mask)
    low, high = inside.min(axis=0), inside.max(axis=0) + 1
    moved = np.array(affine, float)
    moved[:3, 3] += moved[:3, :3] @ low
    return mask[tuple(map(slice, low, high))], moved


def simulate(mask, affine, lengths, seed=0):
    """Return standardised volumes: AR(1) courses of smooth maps, and smooth noise."""
    rng = np.random.default_rng(seed)
    points = (np.argwhere(mask) @ affine[:3, :3].T).astype(np.float32)
    blobs = draw_blobs(points, rng)
    strength = np.arange(1, N_MAPS + 1) ** -0.6  # the long tail
    X = np.empty((sum(lengths), len(points)), np.float32)
    for run in np.split(X, np.cumsum(lengths)[:-1]):
        own = strength * rng.lognormal(0, 0.3, N_MAPS)
        maps = draw_maps(points, blobs, rng) * own[:, None].astype(np.float32)
        np.matmul(courses(len(run), N_MAPS, 0.7, rng), maps, out=run)
        add_noise(run, mask, 0.6 * run.std(), rng)
    standardise(X, lengths)
    return X


def draw_blobs(points, rng):
    """Return (map, centre, width in mm, height) of the blobs of all maps."""
    owner = np.concatenate([np.arange(N_MAPS), rng.integers(N_MAPS, size=N_MAPS)])
    centres = points[rng.integers(len(points), size=len(owner))]
    widths = rng.uniform(5, 11, len(owner))
    return owner, centres, widths, rng.uniform(0.5, 1, len(owner))


def draw_maps(points, blobs, rng):
    """Return the maps (N_MAPS, p) of a subject: blobs moved, stretched and rescaled."""
    owner, centres, widths, heights = blobs
    stretched = centres * rng.normal(1, 0.02, 3)
    centres = stretched + rng.normal(0, 2.5, centres.shape)
    maps = np.zeros((N_MAPS, len(points)), np.float32)
    for j, centre, width, height in zip(owner, centres, widths, heights, strict=True):
        width = width * rng.lognormal(0, 0.1)
        near = np.flatnonzero(np.abs(points - centre).max(axis=1) < 3 * width)
        distance = ((points[near] - centre) ** 2).sum(axis=1)
        maps[j, near] += height * np.exp(-distance / (2 * width**2))
    return maps


def courses(length, n, memory, rng):
    """Return n AR(1) time courses of unit variance, (length, n)."""
    noise = rng.standard_normal((length + 50, n), dtype=np.float32)
    scale = np.sqrt(1 - memory**2)
    return lfilter([scale], [1, -memory], noise, axis=0)[50:].astype(np.float32)


def add_noise(run, mask, size, rng, memory=0.4):
    """Add noise that is smooth in space and autocorrelated in time."""
    last = 0.0
    scale = np.sqrt(1 - memory**2)
    for row in run:
        white = rng.standard_normal(mask.shape, dtype=np.float32)
        fresh = gaussian_filter(white, 1.0, truncate=3)[mask]
        fresh /= fresh.std()
        last = memory * last + scale * fresh
        row += size * last
