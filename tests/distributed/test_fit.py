"""A fit on workers is the fit here: to the bit on one, to rounding on several."""

import dask.array as da
import numpy as np
import pytest
from dask_workers import assert_same_bits, started

from somf import SOMF

SETTINGS = {
    "n_components": 6,
    "alpha": 0.2,
    "batch_size": 20,
    "n_epochs": 3,
    "tol": 0,
    "reduction": 3,
    "n_threads": 1,
    "random_state": 0,
}


@pytest.fixture(scope="module")
def one():
    with started(1) as client:
        yield client


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((110, 6)) * (rng.random((110, 6)) < 0.4)
    return codes @ rng.standard_normal((6, 90)) + 0.05 * rng.standard_normal((110, 90))


def with_gaps(X):
    X = X.copy()
    X[np.random.default_rng(1).random(X.shape) < 0.05] = np.nan
    return X


CASES = {
    "default": {},
    "everything in view": {"reduction": 1},
    "observed": {"dict_update": "observed"},
    "masked": {"aggregation": "masked"},
    "full": {"aggregation": "full", "dict_update": "observed"},
    "averaged": {"code_estimator": "averaged"},
    "gram": {"code_estimator": "gram"},
    "exact": {"code_estimator": "exact"},
    "sparse atoms": {"code_l1_ratio": 0, "dict_l1_ratio": 0.5, "alpha": 0.01},
    "nmf": {"positive_code": True, "positive_dict": True},
    "gaps": {"missing": "mask", "dict_update": "observed"},
    "idle atoms": {"n_components": 20, "alpha": 1.0, "dict_update": "observed"},
    "idle atoms, all": {"n_components": 20, "alpha": 1.0, "dict_update": "all"},
    "idle atoms, gram": {"n_components": 20, "alpha": 1.0, "code_estimator": "gram"},
    "float32": {"dict_update": "observed", "reduction_schedule": "decreasing"},
}


@pytest.mark.parametrize("name", CASES)
def test_one_worker_gives_the_same_bits(one, X, name):
    settings = SETTINGS | CASES[name]
    X = {"nmf": np.abs(X), "gaps": with_gaps(X), "float32": X.astype("f4")}.get(name, X)
    here = SOMF(**settings).fit(X)
    there = SOMF(**settings).fit(da.from_array(X, chunks=(110, 45)), client=one)
    assert_same_bits(there, here)
    assert there.stop_reason_ == here.stop_reason_
    assert (here.trace_["replaced_atoms"][-1] > 0) == ("idle" in name)
