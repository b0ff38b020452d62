"""Small scenes and small dictionaries of their patches."""

import numpy as np

from somf.image import PatchDictionary


def make_image(shape=(40, 36, 5), seed=0, n_sources=4, smooth=4):
    """Abundances of a few positive spectra, smooth over so many pixels."""
    rng = np.random.default_rng(seed)
    maps = rng.standard_normal((*shape[:2], n_sources))
    for axis in (0, 1):
        maps = sum(np.roll(maps, i, axis) for i in range(smooth))
    spectra = rng.random((n_sources, shape[2]))
    maps = np.maximum(4 * maps / smooth + 1, 0)
    return (maps @ spectra + 0.1).astype(np.float32)


def small(n_components=12, **parameters):
    settings = dict(patch_size=(5, 4), n_epochs=3, n_threads=1, random_state=0)
    return PatchDictionary(n_components, **(settings | parameters))
