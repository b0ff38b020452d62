"""How much of the variance of images maps explain."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.sources.base import Source

Array = NDArray[Any]

CHUNK = 100  # volumes that are read at a time


def explained_variance(source: Source, maps: Array, per_map: bool) -> Any:
    """Return 1 − |residual|² / |signals|² of least squares on maps of unit norm.

    Together, a number; or by each of them alone, (n_maps,).
    """
    inverse = np.linalg.pinv((maps @ maps.T).astype(np.float64), hermitian=True)
    explained = np.zeros(len(maps)) if per_map else np.zeros(())
    total = 0.0
    for start in range(0, source.shape[0], CHUNK):
        rows = np.arange(start, min(start + CHUNK, source.shape[0]))
        X = source.read(rows)
        beta = (X @ maps.T).astype(np.float64)
        total += float(np.vdot(X, X))
        if per_map:
            explained += np.sum(beta**2, axis=0)
        else:
            explained += np.vdot(beta, beta @ inverse)
    part = explained / max(total, 1e-300)
    return part if per_map else float(part)
