"""A cluster of two processes, shared by the tests of a module."""

import pytest

distributed = pytest.importorskip("distributed")

from dask_workers import started  # noqa: E402

import somf.choices  # noqa: E402
import somf.estimator  # noqa: E402
from somf.solver import schedule  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    """A scheduler with two workers of one thread each, in processes of their own."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    with distributed.Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture
def head_start(monkeypatch):
    """Settings of fits that exchange all features at first, 1 in 3 afterwards."""
    for module in (somf.choices, somf.estimator):
        monkeypatch.setattr(module, "auto_reduction", lambda *args: 3.0)
    monkeypatch.setattr(schedule, "SETTLED_FALL", 0.3)  # few samples, much noise
    monkeypatch.setattr(schedule, "MOVING_FALL", 0.9)
    return {"reduction": "auto", "n_epochs": 6}


@pytest.fixture(scope="module")
def two():
    """A client of two workers that tests leave alive."""
    with started(2) as client:
        yield client
