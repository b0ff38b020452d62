"""Where a run on brain images starts: a sample of volumes, first maps, and alpha."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from sklearn.base import clone
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning

from somf.estimator import SOMF
from somf.sources.base import Source
from somf.threads import Team

Array = NDArray[Any]
LOGGER = logging.getLogger("somf")

VOLUMES = 1000  # of the sample: with many more, the first maps get hardly better
MOST_BYTES = 1 << 29  # of the sample
VOXELS = 10_000  # that are enough to find directions, and alpha
FIRST_ALPHA = 10.0  # divided by the number of voxels, of the first trial
SLOPE = -0.8  # of log coverage against log alpha, as first guess
TRIALS = 8  # of alpha at most
CLOSE = 1.15  # factor between the coverage that is asked for and that of a trial


def draw_volumes(source: Source, rng: np.random.Generator) -> Array:
    """Return volumes of all records, drawn at random."""
    n_samples, n_features = source.shape
    most = max(2, MOST_BYTES // (n_features * source.dtype.itemsize))
    n = min(n_samples, most, VOLUMES)
    X = source.read(np.sort(rng.choice(n_samples, n, replace=False)))
    if not X.any():
        raise ValueError(
            f"The {n_features} voxels of the mask are zero in all of {n} volumes: "
            "there is nothing to learn. Look at the images, and at the mask."
        )
    return X


def independent_maps(X: Array, n_components: int, rng: np.random.Generator) -> Array:
    """Return sparse maps (n_components, n_features) by spatial ICA of volumes.

    Principal components are rotated until they are least Gaussian, and only the largest
    entries stay, one for each voxel on average. Where there are fewer components than
    maps, noise fills up.
    """
    products = X @ X.T
    some = rng.permutation(X.shape[1])[:VOXELS]
    ica = FastICA(
        whiten="arbitrary-variance",
        fun="cube",
        random_state=int(rng.integers(2**31)),
        tol=1e-3,
    )
    # In small problems the threads of BLAS would only wait on each other.
    with Team(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a start need not be exact
        n = min(n_components, len(X))
        values, vectors = eigh(products, subset_by_index=[len(X) - n, len(X) - 1])
        kept = values > 1e-6 * values[-1]
        basis = (vectors[:, kept].T @ X) / np.sqrt(values[kept])[:, None]
        ica.fit(basis[:, some].T.astype(np.float64))
    maps = (ica.components_ @ basis).astype(X.dtype)
    maps /= np.maximum(maps.std(axis=1, keepdims=True), 1e-12)
    sizes = np.abs(maps)
    maps[sizes < np.quantile(sizes, 1 - 1 / n_components)] = 0
    more = rng.standard_normal((n_components - len(maps), X.shape[1]), dtype=X.dtype)
    return np.concatenate([maps, more])


def choose_alpha(
    model: SOMF, X: Array, coverage: float, rng: np.random.Generator
) -> float:
    """Return the alpha for `model` with which a voxel is in `coverage` maps on average.

    Found by trial on some voxels of a sample of volumes. The more is asked of the
    codes, the fewer voxels a map keeps. With the l1 ball, atoms on q voxels instead of
    p are p/q times as large there, and so is the alpha with the same effect.
    """
    some = np.sort(rng.permutation(X.shape[1])[:VOXELS])
    part = len(some) / X.shape[1]
    X = np.ascontiguousarray(X[:, some])
    trial = clone(model).set_params(
        reduction=1,
        n_epochs=5,
        tol=0,
        checkpoint=None,
        progress=False,
        random_state=int(rng.integers(2**31)),
    )
    if not isinstance(model.dict_init, str):
        trial.dict_init = np.asarray(model.dict_init)[:, some]
    goal = np.log(min(coverage, trial.n_components / 2))
    alpha = FIRST_ALPHA / X.shape[1]
    tried: list[tuple[float, float]] = []  # log alpha, log coverage; the best first
    for _ in range(TRIALS):
        trial.set_params(alpha=alpha).fit(X)
        found = np.count_nonzero(trial.components_) / X.shape[1]
        tried.append((np.log(alpha), np.log(max(found, 1e-3))))
        tried.sort(key=lambda trial: abs(trial[1] - goal))
        if abs(tried[0][1] - goal) < np.log(CLOSE):
            break
        alpha = _next_alpha(tried[:2], goal)
    alpha, found = np.exp(tried[0])
    LOGGER.info("alpha %.3g: a voxel is in %.2f maps of a sample", part * alpha, found)
    return float(part * alpha)


def _next_alpha(best: list[tuple[float, float]], goal: float) -> float:
    """Return where coverage would be `goal` if it went on as in the two best trials."""
    slope = SLOPE
    if len(best) == 2 and best[0][0] != best[1][0]:
        measured = (best[1][1] - best[0][1]) / (best[1][0] - best[0][0])
        slope = float(np.clip(measured, 4 * SLOPE, SLOPE / 4))
    step = np.clip((goal - best[0][1]) / slope, -2.5, 2.5)
    return float(np.exp(best[0][0] + step))
