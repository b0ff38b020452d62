"""A client that dies: its checkpoint goes on, on as many workers or others."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from dask_workers import SETTINGS, assert_same_bits, samples, started, until

from somf import SOMF, Interrupted
from somf.checkpoints import find
from somf.distributed.run import FEWEST
from somf.progress import observed_by

CLIENT = Path(__file__).parents[1] / "killed_client.py"
LONG = SETTINGS | {"n_epochs": 8, "checkpoint_steps": 1, "max_staleness": 0}
CASES = {
    "observed": {"dict_update": "observed"},
    "all": {"dict_update": "all"},
    "masked": {"aggregation": "masked"},
    "averaged": {"code_estimator": "averaged"},
    "gram": {"code_estimator": "gram"},
}


@pytest.fixture(scope="module")
def clients():
    with started(1) as one, started(2) as two:
        yield {1: one, 2: two, 0: False}


@pytest.fixture(scope="module")
def X():
    return samples(240, 90)


class StoppedError(Exception):
    pass


def stop(folder):
    """Stop a fit after its second checkpoint, as if it were killed."""

    def observer(model, report):
        if len(find(folder)) == 2:
            raise StoppedError

    return observed_by(observer)


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_on_as_many_workers(clients, X, tmp_path, name):
    X = da.from_array(X, chunks=(60, 90))
    settings = LONG | CASES[name] | {"n_epochs": 4}
    whole = SOMF(**settings).fit(X, client=clients[2])
    model = SOMF(**settings, checkpoint=tmp_path / "run")
    with pytest.raises(StoppedError), stop(tmp_path / "run"):
        model.fit(X, client=clients[2])
    resumed = SOMF.resume(tmp_path / "run", X, client=clients[2])
    assert 0 < model.n_steps_ < resumed.n_steps_
    assert_same_bits(resumed, whole)


@pytest.mark.parametrize("n_saved", [2, 40])
def test_the_same_bits_during_a_head_start_and_after(
    clients, head_start, X, tmp_path, n_saved
):
    X = da.from_array(X, chunks=(60, 90))
    settings = LONG | head_start
    whole = SOMF(**settings).fit(X, client=clients[2])
    model = SOMF(**settings, checkpoint=tmp_path / "run")
    stopped = observed_by(lambda model, report: stop_at(model.n_steps_, n_saved))
    with pytest.raises(StoppedError), stopped:
        model.fit(X, client=clients[2])
    saved = SOMF.load(find(tmp_path / "run")[-1]).state_
    is_over = saved.n_steps >= FEWEST and saved.pace.has_settled(saved.n_steps)
    assert is_over == (n_saved > 20)
    resumed = SOMF.resume(tmp_path / "run", X, client=clients[2])
    assert_same_bits(resumed, whole)


def stop_at(n_steps, last):
    if n_steps > last:
        raise StoppedError


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 0), (0, 2)])
def test_on_other_workers(clients, X, tmp_path, before, after):
    X = da.from_array(X, chunks=(60, 90))
    settings = LONG | {"dict_update": "observed"}
    whole = SOMF(**settings).fit(X, client=clients[before])
    model = SOMF(**settings, checkpoint=tmp_path / "run")
    with pytest.raises(StoppedError), stop(tmp_path / "run"):
        model.fit(X, client=clients[before])
    resumed = SOMF.resume(tmp_path / "run", X, client=clients[after])
    assert resumed.n_steps_ == whole.n_steps_
    assert resumed.objective_ == pytest.approx(whole.objective_, rel=0.05)


def test_chunks_of_files_stay_together_without_workers(clients, X, tmp_path):
    """Who goes on alone reads chunks as a whole, as workers did."""
    zarr = pytest.importorskip("zarr")
    stored = zarr.open_array(
        str(tmp_path / "X.zarr"), mode="w", shape=X.shape, chunks=(16, 90), dtype="f8"
    )
    stored[:] = X
    path = str(tmp_path / "X.zarr")
    model = SOMF(**LONG, checkpoint=tmp_path / "run")
    with pytest.raises(StoppedError), stop(tmp_path / "run"):
        model.fit(path, client=clients[2])
    order = SOMF.load(find(tmp_path / "run")[0]).state_.sampler.order
    here = SOMF(**SETTINGS).fit(path).state_.sampler.order
    np.testing.assert_array_equal(order.chunks, here.chunks)
    assert order.mix == here.mix


def test_a_client_that_is_killed(clients, tmp_path):
    """Its workers are free again, and its run goes on to the same bits."""
    X = da.random.RandomState(0).normal(size=(240, 90), chunks=(60, 90))
    settings = SETTINGS | {"n_epochs": 15, "dict_update": "observed"}
    settings |= {"checkpoint": str(tmp_path / "run"), "max_staleness": 0}
    client = clients[2]
    child = subprocess.Popen(
        [sys.executable, CLIENT, client.scheduler.address, json.dumps(settings)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        until(lambda: len(find(tmp_path / "run")) == 2 or child.poll() is not None)
        child.send_signal(signal.SIGKILL)
    finally:
        child.wait(timeout=60)
    assert child.returncode == -signal.SIGKILL
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    whole = SOMF(**settings | {"checkpoint": None}).fit(X, client=client)
    resumed = SOMF.resume(tmp_path / "run", X, client=client)
    assert_same_bits(resumed, whole)
    alone = SOMF.resume(tmp_path / "other", X, client=clients[1])
    assert alone.objective_ == pytest.approx(whole.objective_, rel=0.05)

    def n_lanes(dask_worker):
        return len(dask_worker.state.actors)

    until(lambda: sum(client.run(n_lanes).values()) == 0)


@pytest.mark.parametrize(("soon", "step"), [(0.0, 5), (1e9, 12)])
def test_a_signal_waits_for_a_hand_over_that_is_near(
    clients, X, tmp_path, monkeypatch, soon, step
):
    monkeypatch.setattr("somf.distributed.run.SOON", soon)
    settings = SETTINGS | {"dict_update": "observed", "max_staleness": 0}

    def interrupt(model, report):
        if report.step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    X = da.from_array(X, chunks=(60, 90))
    model = SOMF(**settings, checkpoint=tmp_path / "run")
    with pytest.raises(Interrupted), observed_by(interrupt):
        model.fit(X, client=clients[2])
    assert SOMF.load(find(tmp_path / "run")[0]).n_steps_ == step
    resumed = SOMF.resume(tmp_path / "run", X, client=clients[2])
    whole = SOMF(**settings).fit(X, client=clients[2])
    np.testing.assert_allclose(resumed.state_.D, whole.state_.D, rtol=1e-6, atol=1e-9)


def test_a_callback_that_stops_leaves_a_complete_checkpoint(clients, X, tmp_path):
    pytest.importorskip("sklearn.callback", reason="new in scikit-learn 1.9")

    class Stop:
        def setup(self, estimator, context):
            pass

        def teardown(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context):
            pass

        def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
            return fitted_estimator is not None

    # 12 iterations in an epoch, and workers hand over after 20.
    settings = SETTINGS | {"reduction": 5, "dict_update": "observed"}
    model = SOMF(**settings, checkpoint=tmp_path / "run").set_callbacks(Stop())
    model.fit(da.from_array(X, chunks=(60, 90)), client=clients[2])
    assert model.stop_reason_ == "a callback asked to stop"
    saved = SOMF.load(find(tmp_path / "run")[0])
    assert saved.n_steps_ == model.n_steps_ == 12
    np.testing.assert_array_equal(saved.state_.B, model.state_.B)
    assert np.abs(saved.state_.B).sum(axis=0).min() > 0
