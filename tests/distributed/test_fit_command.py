"""`somf fit --dask`: the same command, on the workers of a cluster."""

import os
import signal
import subprocess
import sys
import threading
import tomllib
from functools import partial

import distributed
import numpy as np
import pytest
import scipy.sparse
from commands import somf

from somf import SOMF
from somf.checkpoints import find
from somf.distributed.cluster import Cluster

OPTIONS = "--n-components 4 --alpha 0.1 --n-epochs 2 --batch-size 40 --reduction 2"
OPTIONS += " --random-state 0 --n-threads 1 --max-staleness 0"
OPTIONS = OPTIONS.split()


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return (rng.standard_normal((200, 8)) @ rng.standard_normal((8, 120))).astype("f4")


@pytest.fixture
def data(X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    return tmp_path / "X.npy"


@pytest.fixture
def placed(monkeypatch):
    """Which rows were given to which worker."""
    placed = []
    place = Cluster.place

    def placing(self, seat, *args):
        place(self, seat, *args)
        placed.append((seat.address, seat.setup.first_row, seat.setup.n_rows))

    monkeypatch.setattr(Cluster, "place", placing)
    return placed


def write_npy(X, folder):
    np.save(folder / "X.npy", X)
    return [folder / "X.npy"]


def write_two(X, folder):
    np.save(folder / "A.npy", X[:130])
    np.save(folder / "B.npy", X[130:])
    return [folder / "A.npy", folder / "B.npy"]


def write_sparse(X, folder):
    scipy.sparse.save_npz(folder / "X.npz", scipy.sparse.csr_matrix(X * (X > 1)))
    return [folder / "X.npz"]


def write_hdf5(X, folder):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "X.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(25, 120))
        file.create_dataset("Y", data=X[:5])
    return [f"{folder / 'X.h5'}::X"]


def write_zarr(X, folder):
    pytest.importorskip("zarr")
    np.save(folder / "X.npy", X)
    convert = ["convert", folder / "X.npy", folder / "X.zarr", "--chunk-samples", 50]
    assert somf(*convert).exit_code == 0
    return [folder / "X.zarr"]


def write_nifti(X, folder):
    nibabel = pytest.importorskip("nibabel")
    pytest.importorskip("nilearn")
    rng = np.random.default_rng(0)
    paths = [folder / "a.nii.gz", folder / "b.nii.gz"]
    for path in paths:
        volumes = np.zeros((12, 13, 11, 100), np.float32)
        volumes[3:-3, 3:-3, 3:-3] = 1000 + rng.standard_normal((6, 7, 5, 100))
        nibabel.Nifti1Image(volumes, np.diag([4.0, 4, 4, 1])).to_filename(path)
    return paths


@pytest.mark.parametrize(
    "write", [write_npy, write_two, write_sparse, write_hdf5, write_zarr, write_nifti]
)
def test_every_kind_of_input(cluster, placed, X, tmp_path, write):
    paths, run = write(X, tmp_path), tmp_path / "run"
    address = cluster.scheduler_address
    result = somf("fit", *paths, "--output", run, *OPTIONS, "--dask", address)
    assert result.exit_code == 0, result.stderr
    first, second = sorted(placed, key=lambda seat: seat[1])
    assert first[0] != second[0]
    assert first[1:] == (0, second[1])
    assert sum(second[1:]) == 200
    assert f"2 workers at {address}. Dask's dashboard: http://" in result.stderr
    model = SOMF.load(run / "model.safetensors")
    assert np.isfinite(model.components_).all()
    assert model.n_steps_ >= 10
    assert (run / "trace.csv").exists()
    assert not (run / "checkpoints").exists()


def test_parameters_of_a_distributed_fit_are_settings(cluster, placed, data, tmp_path):
    more = ["--local-steps", 2, "--max-staleness", 7]
    at = ["--dask", cluster.scheduler_address]
    result = somf("fit", data, "--output", tmp_path / "run", *OPTIONS, *more, *at)
    assert result.exit_code == 0, result.stderr
    settings = tomllib.loads((tmp_path / "run" / "settings.toml").read_text())
    assert settings["parameters"]["local_steps"] == 2
    assert settings["parameters"]["max_staleness"] == 7
    assert "dask" not in str(settings)  # where it ran is no part of what it computed
    assert len(placed) == 2


@pytest.fixture
def any_port(monkeypatch):
    """For the dashboard: another scheduler may have the usual one."""
    local = partial(distributed.LocalCluster, dashboard_address=":0")
    monkeypatch.setattr(distributed, "LocalCluster", local)


@pytest.mark.usefixtures("any_port")
def test_one_local_worker_gives_the_bits_of_a_fit_here(placed, data, tmp_path):
    local = ["--dask", "local", "--workers", 1]
    result = somf("fit", data, "--output", tmp_path / "run", *OPTIONS, *local)
    assert result.exit_code == 0, result.stderr
    assert [seat[1:] for seat in placed] == [(0, 200)]
    assert "1 worker at tcp://127.0.0.1" in result.stderr
    assert somf("fit", data, "--output", tmp_path / "here", *OPTIONS).exit_code == 0
    assert len(placed) == 1
    here, there = (
        SOMF.load(tmp_path / name / "model.safetensors").components_
        for name in ("here", "run")
    )
    np.testing.assert_array_equal(here, there)


START = """
import somf.progress
from somf.cli import main
if __name__ == "__main__":
    somf.progress.ProgressBar.DELAY = somf.progress.Lines.EVERY = 0
    main(prog_name="somf")
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals are those of POSIX")
def test_ctrl_c_is_resumed_on_another_cluster(cluster, placed, data, tmp_path):
    """It goes to the whole group of processes, the local workers among them."""
    run, code = tmp_path / "run", tmp_path / "start.py"
    code.write_text(START)
    # Python leaves SIGINT ignored if it starts so, as in the background of a shell.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, code, "fit", data, "--output", run, *OPTIONS]
    command += ["--n-epochs", 40, "--tol", 0, "--dask", "local", "--workers", 1]
    process = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    signal.signal(signal.SIGINT, before)
    line = ""
    while not line.startswith("fit: iteration"):
        line = process.stderr.readline()
        assert line, "it ended"
    assert "1 worker" in line
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "lost" not in stderr
    again = f"somf fit --output {run} --resume --dask local"
    assert stderr.splitlines()[-1].endswith(again)
    done = SOMF.load(find(run / "checkpoints")[0]).n_steps_
    assert 0 < done < 200
    at = ["--dask", cluster.scheduler_address]
    result = somf("fit", "--output", run, "--resume", *at)
    assert result.exit_code == 0, result.stderr
    assert len(placed) == 2
    assert SOMF.load(run / "model.safetensors").n_steps_ == 200


def test_a_scheduler_that_does_not_answer(data, tmp_path, monkeypatch):
    monkeypatch.setattr("somf.cli.running.ANSWER", 0.3)
    run, address = tmp_path / "run", "tcp://127.0.0.1:9"
    result = somf("fit", data, "--output", run, *OPTIONS, "--dask", address)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    none = f"--dask {address}: there is no Dask scheduler"
    for words in (none, "`dask scheduler`", f"`dask worker {address}`"):
        assert words in result.stderr
    assert not run.exists()


def test_what_is_no_address(data, tmp_path):
    for address in ("nonsense", "ftp://host:1", "tcp://host:port"):
        result = somf("fit", data, "--output", tmp_path / "run", "--dask", address)
        assert result.exit_code == 1
        assert result.stderr.count("\n") == 1
        assert f"--dask {address}" in result.stderr
        assert "tcp://host:8786" in result.stderr


def test_without_distributed_the_extra_is_named(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = somf("fit", data, "--output", tmp_path / "run", "--dask", "local")
    assert result.exit_code == 1
    assert "somf[dask]" in result.stderr
    assert not (tmp_path / "run").exists()


def test_workers_are_those_of_a_cluster(data, tmp_path):
    result = somf("fit", data, "--output", tmp_path / "run", "--workers", 2)
    assert result.exit_code == 2
    assert "the workers of --dask" in result.stderr


def test_workers_are_waited_for(data, tmp_path, placed):
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=":0"
    ) as cluster:
        later = threading.Timer(1.0, cluster.scale, [2])
        later.start()
        at = ["--dask", cluster.scheduler_address, "--workers", 2]
        result = somf("fit", data, "--output", tmp_path / "run", *OPTIONS, *at)
        later.join()
    assert result.exit_code == 0, result.stderr
    assert "1 of 2 workers are there; waiting." in result.stderr
    assert len(placed) == 2
