"""Samples and settings of the runs that tests of reports are about."""

import numpy as np

SETTINGS = {
    "n_components": 8,
    "alpha": 0.1,
    "batch_size": 25,
    "n_threads": 1,
    "random_state": 0,
}


def make_samples(n_samples=300, n_features=120, n_atoms=8, noise=0.02):
    rng = np.random.default_rng(0)
    atoms = rng.standard_normal((n_atoms, n_features)) / np.sqrt(n_features)
    codes = rng.standard_normal((n_samples, n_atoms))
    codes *= rng.random((n_samples, n_atoms)) < 0.3
    return codes @ atoms + noise * rng.standard_normal((n_samples, n_features))


def make_brain(n_maps=3):
    """Return maps with a blob each, some of them negative, and a mask for them."""
    import nibabel

    shape, affine = (18, 21, 18), np.diag([10.0, 10, 10, 1])
    affine[:3, 3] = [-90, -120, -70]
    grid = np.stack(np.indices(shape), axis=-1)
    inside = np.linalg.norm((grid - [9, 11, 8]) / [6, 7, 6], axis=-1) < 1
    maps = np.zeros((*shape, n_maps), np.float32)
    for i in range(n_maps):
        distance = np.linalg.norm(grid - [6 + 3 * i, 11, 8], axis=-1)
        maps[..., i] = (-1) ** i * np.clip(2 - distance, 0, None) * inside
    mask = nibabel.Nifti1Image(inside.astype(np.uint8), affine)
    return nibabel.Nifti1Image(maps, affine), mask
