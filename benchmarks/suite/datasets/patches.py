"""Patches of images, split so that test and training patches share no pixel."""

from __future__ import annotations

import numpy as np

from somf.sources import PatchSource


def split_patches(images, size, n_test_rows, n_train, n_test, seed, **options):
    """Return (X_train, X_test): test patches start in a band of rows of each image.

    The place of the band is the seed's. Options are those of `PatchSource`.
    """
    rng = np.random.default_rng(seed)
    train, test = [], []
    for image in images:
        last = image.shape[0] - size + 1
        start = int(rng.integers(last - n_test_rows + 1))
        bands = {
            (0, max(0, start - size + 1)): train,
            (start, start + n_test_rows): test,
            (min(last, start + n_test_rows + size - 1), last): train,
        }
        for rows, part in bands.items():
            if rows[0] < rows[1]:
                part.append(PatchSource(image, (size, size), rows=rows, **options))
    return draw(train, n_train, rng), draw(test, n_test, rng)


def draw(sources, n_wanted, rng):
    """Read patches at random from all sources, in random order."""
    sizes = [source.shape[0] for source in sources]
    total = sum(sizes)
    chosen = np.sort(rng.choice(total, min(n_wanted, total), replace=False))
    X = np.empty((len(chosen), sources[0].shape[1]), np.float32)
    done = first = 0
    for source, n_patches in zip(sources, sizes, strict=True):
        stop = int(np.searchsorted(chosen, first + n_patches))
        for start in range(done, stop, 512):
            rows = chosen[start : min(start + 512, stop)]
            X[start : start + len(rows)] = source.read(rows - first)
        done, first = stop, first + n_patches
    return X
