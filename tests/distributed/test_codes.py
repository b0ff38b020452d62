"""Codes and scores by the workers of a cluster: real processes, on loopback."""

import os

import numpy as np
import pytest

from somf import SOMF
from somf.sources import DaskSource, StackedSource, as_source

da = pytest.importorskip("dask.array", reason="the extra `dask`")
distributed = pytest.importorskip("distributed", reason="the extra `dask`")
zarr = pytest.importorskip("zarr", reason="the extra `chunked`")

N, P, K = 1536, 60, 6  # samples of three batches of an evaluation
CHUNKS = (512, P)  # blocks that are such batches: codes have the same bits as here


@pytest.fixture(scope="module")
def client():
    """A client that is active in no test that does not ask for it."""
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=2,  # so that tasks meet on a worker
            processes=True,
            dashboard_address=":0",
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def active(client):
    with client.as_current():
        yield client


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((N, K)) * (rng.random((N, K)) < 0.4)
    return codes @ rng.standard_normal((K, P))


@pytest.fixture(scope="module")
def model(X):
    model = SOMF(K, alpha=0.1, n_epochs=1, n_threads=1, random_state=0)
    return model.fit(X[:600])


def test_codes_are_a_dask_array_with_the_bits_of_here(model, X, active):
    codes = model.transform(da.from_array(X, CHUNKS))
    assert isinstance(codes, da.Array)
    assert codes.shape == (N, K)
    assert codes.chunks == ((512, 512, 512), (K,))
    assert codes.dtype == model.components_.dtype
    np.testing.assert_array_equal(codes.compute(), model.transform(X))
