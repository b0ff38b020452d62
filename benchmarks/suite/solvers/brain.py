"""nilearn's DictLearning, whole fits on images with more and more epochs."""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from pathlib import Path

import numpy as np

from benchmarks.suite.solvers.base import Solver, has_sparse_maps

VOLUMES = 500  # of one image


class NilearnDictLearning(Solver):
    """DictLearning at its defaults; its maps, scaled into our ball, are judged."""

    name = "nilearn"
    whole = True

    def __init__(self, budget_factor=8.0):
        self.budget_factor = budget_factor

    def supports(self, dataset):
        if importlib.util.find_spec("nilearn") is None:
            return "nilearn is not installed"
        if not has_sparse_maps(dataset) or not hasattr(dataset, "mask"):
            return "it is for brain images"
        if dataset.small and dataset.name == "fmri-real":
            return "the small variant has voxels that form no image"
        return None

    def prepare(self, init, seed):
        self.D = init
        self.seed = seed
        self.n_epochs = 1
        self.folder = tempfile.TemporaryDirectory()
        self.mask = self.image(self.dataset.mask.astype(np.int8))
        self.paths = [self.write(start) for start in range(0, len(self.X), VOLUMES)]

    def image(self, data):
        import nibabel

        return nibabel.Nifti1Image(data, self.dataset.affine)

    def write(self, start):
        """Write some volumes as an image, as nilearn reads them."""
        rows = self.X[start : start + VOLUMES]
        volumes = np.zeros((*self.dataset.mask.shape, len(rows)), np.float32)
        volumes[self.dataset.mask] = rows.T
        path = Path(self.folder.name) / f"{start}.nii"
        self.image(volumes).to_filename(path)
        return str(path)

    def step(self):
        from nilearn.decomposition import DictLearning

        model = DictLearning(
            self.dataset.k,
            n_epochs=self.n_epochs,
            mask=self.mask,
            smoothing_fwhm=None,
            standardize=False,
            detrend=False,
            random_state=self.seed,
            n_jobs=self.n_threads,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.D = model.fit(self.paths).components_
        self.n_seen += len(self.X) * self.n_epochs
        self.n_epochs *= 3

    def dictionary(self):
        return self.dataset.problem.constraint.rescale(np.asarray(self.D, self.X.dtype))
