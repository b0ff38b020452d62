"""`somf transform --dask` and `somf score --dask`, with workers that are processes."""

import json
from contextlib import contextmanager

import numpy as np
import pytest
from commands import somf

from somf import SOMF
from somf.solver.evaluation import Evaluation

dask = pytest.importorskip("dask", reason="the extra `dask`")
distributed = pytest.importorskip("distributed", reason="the extra `dask`")
zarr = pytest.importorskip("zarr", reason="the extra `chunked`")

N, P, K = 700, 30, 4
SUFFIXES = (".npy", ".zarr")


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).standard_normal((N, P))


@pytest.fixture(scope="module")
def model(X):
    settings = {"n_epochs": 1, "n_threads": 1, "random_state": 0}
    return SOMF(K, alpha=0.1, **settings).fit(X)


@pytest.fixture
def files(model, X, tmp_path):
    model.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "a.npy", X[:600])
    np.save(tmp_path / "b.npy", X[600:])
    return [tmp_path / name for name in ("model.safetensors", "a.npy", "b.npy")]


def codes_in(path):
    return np.load(path) if path.suffix == ".npy" else zarr.open(str(path), mode="r")[:]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_workers_compute_what_is_written(
    cluster, model, X, files, tmp_path, suffix, monkeypatch
):
    expected = model.transform(X)
    monkeypatch.setattr(Evaluation, "stream", None)  # of this process only
    monkeypatch.setattr("somf.distributed.codes.TASK_BYTES", 1)  # two tasks
    output = tmp_path / f"codes{suffix}"
    address = ("--dask", cluster.scheduler_address)
    result = somf("transform", *files, "--output", output, *address)
    assert result.exit_code == 0, result.stderr
    assert "Codes of 700 samples, 4 each" in result.stdout
    np.testing.assert_allclose(codes_in(output), expected, rtol=1e-10, atol=1e-10)


def test_score(cluster, model, X, files, monkeypatch):
    expected = model.score(X)
    monkeypatch.setattr(Evaluation, "objective", None)  # of this process only
    result = somf("score", *files, "--dask", cluster.scheduler_address, "--json")
    assert json.loads(result.stdout)["score"] == pytest.approx(expected, rel=1e-10)


def test_local_starts_workers(cluster, model, X, files, tmp_path, monkeypatch):
    started = []

    @contextmanager
    def local_client(n_workers):
        started.append(n_workers)
        with distributed.Client(cluster, set_as_default=False) as client:
            yield client

    monkeypatch.setattr("somf.cli.running.local_client", local_client)
    output = tmp_path / "codes.npy"
    result = somf("transform", *files, "--output", output, "--dask", "local")
    assert result.exit_code == 0, result.stderr
    assert len(started) == 1
    np.testing.assert_allclose(np.load(output), model.transform(X), rtol=1e-10)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_bad_samples_leave_no_output(cluster, X, files, tmp_path, suffix):
    bad = X[600:].copy()
    bad[7, 1] = np.nan
    np.save(files[-1], bad)
    output = tmp_path / f"codes{suffix}"
    address = ("--dask", cluster.scheduler_address)
    result = somf("transform", *files, "--output", output, *address)
    assert result.exit_code == 1
    assert "rows 0 to 699 of X: Samples [607]" in result.stderr
    assert not output.exists()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense"])
def test_an_address_where_nobody_is(files, tmp_path, address):
    output = ("--output", tmp_path / "codes.npy")
    with dask.config.set({"distributed.comm.timeouts.connect": "0.2s"}):
        result = somf("transform", *files, *output, "--dask", address)
    assert result.exit_code == 1
    assert f"--dask {address}: there is no Dask scheduler" in result.stderr
    assert len(result.stderr.splitlines()) == 1
