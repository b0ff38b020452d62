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
        from somf.fmri.simulation import standardize

        files = [np.load(path) for path in self.files()]
        data = max(files, key=lambda file: file["run_lengths"].sum())
        self.mask, self.affine = data["mask"], data["affine"]
        lengths = data["run_lengths"]
        X = data["signals"].astype(np.float32)
        smooth(X, self.mask, self.affine, self.fwhm)
        standardize(X, lengths)
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
        from somf.fmri.simulation import grey_matter, simulate_volumes

        self.mask, self.affine = grey_matter(self.resolution)
        lengths = [self.n_volumes] * self.n_subjects
        shape = f"{self.n_subjects}x{self.n_volumes}x{self.resolution}mm"
        path = cache_folder() / f"fmri-simulated-{shape}.npy"
        if not path.exists():
            rng = np.random.default_rng(0)
            X, _ = simulate_volumes(self.mask, self.affine, lengths, N_MAPS, rng)
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


def smooth(X, mask, affine, fwhm):
    """Overwrite volumes, smoothed with no flow across the border of the mask."""
    size = np.linalg.norm(affine[:3, :3], axis=0)  # of a voxel, in mm
    width = fwhm / 2.355 / size
    weight = gaussian_filter(mask.astype(np.float32), width, truncate=3)[mask]
    volume = np.zeros(mask.shape, np.float32)
    for row in X:
        volume[mask] = row
        row[:] = gaussian_filter(volume, width, truncate=3)[mask] / weight
