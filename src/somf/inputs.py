"""Any input as a source of samples, checked as far as that needs no reading."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.utils.validation import check_non_negative, validate_data

from somf.sources.base import (
    ArraySource,
    Indices,
    Requirements,
    SampleSource,
    Source,
)
from somf.sources.opening import as_source
from somf.sources.reordered import align_features
from somf.sources.sparse import SparseSource


def requirements(estimator: Any) -> Requirements:
    """Return what the samples of an estimator must be."""
    return Requirements(
        finite=estimator.missing != "mask",
        nonnegative=bool(estimator.positive_code and estimator.positive_dict),
    )


def check_samples(
    estimator: Any, X: Any, *, reset: bool = False, feature_order: Indices | None = None
) -> Source:
    """Return X as a source; raise if it cannot be factorized.

    Arrays are checked as a whole here, as scikit-learn does; sources when they are
    read. `reset` learns the features of X, else they must be those learned before, and
    are brought into `feature_order`.
    """
    if isinstance(X, ArraySource):  # it leaves the checks of its array to others
        X = X.X
    if is_source(X):
        source = as_source(X)
        _check_shape(estimator, source, reset)
    else:
        source = _array(estimator, X, reset)
    if reset:
        estimator._feature_key = source.feature_key
    return source if reset else align_features(source, feature_order)


def is_source(X: Any) -> bool:
    """Whether X is read by us, and not first turned into an array by scikit-learn."""
    if isinstance(X, list | tuple):
        return len(X) > 0 and all(
            isinstance(x, str | os.PathLike) or _is_own_source(x) for x in X
        )
    if isinstance(X, np.memmap):
        return X.ndim == 2 and X.dtype.kind in "fiub"
    if isinstance(X, str | os.PathLike):
        return True
    if type(X).__module__.split(".")[0] in ("h5py", "zarr", "dask"):
        return type(X).__name__ in ("Array", "Dataset", "Group")
    return _is_own_source(X)


def _is_own_source(X: Any) -> bool:
    return isinstance(X, SampleSource) and not hasattr(X, "__array__")


def _array(estimator: Any, X: Any, reset: bool) -> Source:
    X = validate_data(
        estimator,
        X,
        reset=reset,
        accept_sparse="csr",
        dtype="numeric",
        ensure_min_samples=1,
        ensure_all_finite=True if estimator.missing != "mask" else "allow-nan",
    )
    wanted = requirements(estimator)
    if wanted.nonnegative and wanted.finite:
        check_non_negative(X, "SOMF with positive codes and atoms (NMF)")
    elif wanted.nonnegative and not scipy.sparse.issparse(X):
        wanted.check(X, np.arange(X.shape[0]))
    return SparseSource(X) if scipy.sparse.issparse(X) else ArraySource(X)


def _check_shape(estimator: Any, source: Source, reset: bool) -> None:
    if source.shape[0] < 1 or source.shape[1] < 1:
        raise ValueError(f"X has shape {source.shape}; it has nothing to learn from.")
    if reset:
        estimator.n_features_in_ = source.shape[1]
        estimator.__dict__.pop("feature_names_in_", None)
    elif source.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"X has {source.shape[1]} features, but {type(estimator).__name__} is "
            f"expecting {estimator.n_features_in_} features as input."
        )
    known = None if reset else getattr(estimator, "_feature_key", None)
    if None not in (known, source.feature_key) and known != source.feature_key:
        raise ValueError(
            "X has other features than those that the model knows: voxels of another "
            "mask. Give all images the same: NiftiSource(images, mask_img=mask)."
        )
