"""Checkpoints: in time, whole, two of them, and good to the last bit."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas
import pytest

import somf.solver.storage as storage
from somf import SOMF, Interrupted
from somf.checkpoints import Checkpoints, catch_signals, find, read_newest

SETTINGS = {"n_components": 5, "alpha": 0.5, "batch_size": 20, "random_state": 0}


@pytest.fixture
def X():
    rng = np.random.default_rng(0)
    return rng.standard_normal((100, 5)) @ rng.standard_normal((5, 60))


def write_text(path):
    path.write_text("x")


def test_due_after_steps_or_minutes(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    checkpoints = Checkpoints(tmp_path, minutes=2, steps=3)
    assert [checkpoints.due(step) for step in (7, 8, 9)] == [False, False, True]
    checkpoints.write(9, write_text)
    assert not checkpoints.due(10)
    now[0] += 119
    assert not checkpoints.due(11)
    now[0] += 2
    assert checkpoints.due(11)


def test_the_last_two_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path, minutes=1)
    paths = [checkpoints.write(step, write_text) for step in (5, 20, 100, 1_000_000)]
    assert find(tmp_path) == [paths[3], paths[2]]
    assert sorted(tmp_path.iterdir()) == sorted(paths[2:])


def test_rests_of_killed_processes_are_swept(tmp_path, X):
    model = SOMF(**SETTINGS, checkpoint=tmp_path, n_epochs=2, tol=0).fit(X)
    rests = [tmp_path / f".{find(tmp_path)[0].name}.0123abcd", tmp_path / ".tmpWqTb41"]
    for rest in rests:
        rest.write_text("half")
    other = tmp_path / ".keep"
    other.write_text("not ours")
    SOMF.resume(tmp_path, X)
    assert not any(rest.exists() for rest in rests)
    assert other.exists()
    assert model.n_iter_ == 2


def test_a_fresh_fit_does_not_overwrite_another_run(tmp_path, X):
    SOMF(**SETTINGS, checkpoint=tmp_path).fit(X)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    model = SOMF(**SETTINGS, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="holds checkpoints of another run"):
        model.fit(X)
    assert not hasattr(model, "state_")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"reduction": 3, "aggregation": "masked", "mask": "bernoulli"},
        {
            "reduction": 3,
            "code_estimator": "averaged",
            "reduction_schedule": "constant",
        },
        {"reduction": 3, "reduction_schedule": "decreasing"},
        {"shuffle": False, "positive_code": True},
    ],
)
@pytest.mark.parametrize("stop", [1, 7, 12])
def test_resumed_is_never_stopped(tmp_path, X, parameters, stop):
    settings = SETTINGS | {"n_epochs": 3, "tol": 0} | parameters
    whole = SOMF(**settings).fit(X, X_val=X[:10])
    stop_after(stop, SOMF(**settings, checkpoint=tmp_path), X, X_val=X[:10])
    resumed = SOMF.resume(tmp_path, X, X_val=X[:10])
    assert_same(resumed, whole)


def signal_in(n_steps, model):
    """Let a signal come in during iteration `n_steps`."""
    seen = iter(range(1, 10**6))

    class Stopping(SOMF):
        @property
        def n_steps_(self):
            steps = super().n_steps_
            if steps == n_steps and next(seen) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)
            return steps

    model.__class__ = Stopping
    return model


def stop_after(n_steps, model, X, **more):
    """Stop the fit by a signal in iteration `n_steps`."""
    with pytest.raises(Interrupted) as caught:
        signal_in(n_steps, model).fit(X, **more)
    assert caught.value.signal == signal.SIGTERM
    return caught.value


def assert_same(one, two):
    for name in ("D", "B", "C", "norms"):
        np.testing.assert_array_equal(
            getattr(one.state_, name), getattr(two.state_, name)
        )
    assert one.n_steps_ == two.n_steps_
    assert one.n_iter_ == two.n_iter_
    assert one.objective_ == two.objective_
    assert one.stop_reason_ == two.stop_reason_
    for name in ("step", "epoch", "objective", "validation_objective"):
        np.testing.assert_array_equal(one.trace_[name], two.trace_[name])


def test_interrupted_says_how_to_go_on(tmp_path, X):
    model = SOMF(**SETTINGS, checkpoint=tmp_path, n_epochs=3)
    error = stop_after(4, model, X)
    assert error.path in find(tmp_path)
    assert "SIGTERM" in str(error)
    assert f"SOMF.resume({str(error.path)!r}, X)" in str(error)
    assert isinstance(error, KeyboardInterrupt)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_patience_goes_on_where_it_was(tmp_path, X):
    settings = SETTINGS | {"n_epochs": 30, "tol": 0.05, "patience": 2}
    whole = SOMF(**settings).fit(X)
    assert "patience" in whole.stop_reason_
    n_batches = 5
    last_epoch = (whole.n_iter_ - 1) * n_batches + 1
    stop_after(last_epoch, SOMF(**settings, checkpoint=tmp_path), X)
    assert_same(SOMF.resume(tmp_path, X), whole)


@pytest.mark.parametrize("stop", [{"n_epochs": 2, "tol": 0}, {"tol": 0.5}])
def test_resuming_what_has_ended_changes_nothing(tmp_path, X, stop):
    model = SOMF(**(SETTINGS | stop), checkpoint=tmp_path).fit(X)
    assert model.n_iter_ < 10
    assert_same(SOMF.resume(tmp_path, X), model)


def test_a_signal_in_the_last_iteration_comes_too_late(tmp_path, X):
    model = SOMF(**SETTINGS, checkpoint=tmp_path, n_epochs=2, tol=0)
    signal_in(10, model).fit(X)
    assert model.stop_reason_ == "n_epochs=2 epochs are done"


def test_resume_wants_the_same_data(tmp_path, X):
    SOMF(**SETTINGS, checkpoint=tmp_path, n_epochs=2).fit(X)
    with pytest.raises(ValueError, match=r"X has 99 samples, but .* 100"):
        SOMF.resume(tmp_path, X[:99])
    with pytest.raises(ValueError, match="59 features"):
        SOMF.resume(tmp_path, X[:, :59])


def test_resume_knows_the_data_again(tmp_path, X):
    SOMF(**SETTINGS, checkpoint=tmp_path, n_epochs=2).fit(X)
    with pytest.raises(ValueError, match="other samples than those"):
        SOMF.resume(tmp_path, X[::-1])
    with pytest.raises(ValueError, match="had no X_val"):
        SOMF.resume(tmp_path, X, X_val=X[:5])
    SOMF(**SETTINGS, checkpoint=tmp_path / "b", n_epochs=2).fit(X, X_val=X[:5])
    with pytest.raises(ValueError, match="had X_val"):
        SOMF.resume(tmp_path / "b", X)


@pytest.mark.parametrize(
    "parameters",
    [
        {"dict_init": pandas.DataFrame(np.eye(5, 60))},
        {"dict_init": np.eye(5, 60).tolist()},
        {"random_state": np.random.SeedSequence(3)},
        {"random_state": np.random.default_rng(3)},
    ],
    ids=lambda p: type(next(iter(p.values()))).__name__,
)
def test_any_parameter_can_be_written(tmp_path, X, parameters):
    settings = SETTINGS | {"n_epochs": 2, "tol": 0} | parameters
    model = SOMF(**settings, checkpoint=tmp_path).fit(X)
    assert_same(SOMF.resume(tmp_path, X), model)


def test_a_folder_is_a_folder(tmp_path, X):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; it must be a folder"):
        SOMF(**SETTINGS, checkpoint=tmp_path / "file").fit(X)
    SOMF(**SETTINGS, checkpoint=tmp_path, n_epochs=2, tol=0).fit(X).save(
        tmp_path / "checkpoint-final.safetensors"
    )
    assert SOMF.resume(tmp_path, X).n_iter_ == 2


def test_progress_of_a_resumed_run_starts_anew(tmp_path, X, capsys, monkeypatch):
    monkeypatch.setattr("somf.progress.ProgressBar.DELAY", 0)
    monkeypatch.setattr("somf.progress.Lines.EVERY", 0)
    settings = SETTINGS | {"n_epochs": 12, "tol": 0, "progress": True}
    stop_after(50, SOMF(**settings, checkpoint=tmp_path), X)
    capsys.readouterr()
    model = SOMF.resume(tmp_path, X)
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].startswith("fit: iteration 51 of 60 (85 %)")
    first = float(shown[0].split("objective ")[1].split(",")[0])
    np.testing.assert_allclose(first, model.trace_["objective"][50], rtol=1e-3)


def test_bad_held_out_samples_are_named(X, tmp_path):
    bad = X.copy()
    bad[3, 4] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    with pytest.raises(ValueError, match=r"X_val cannot be used. Samples \[3\]"):
        SOMF(**SETTINGS).fit(X, X_val=tmp_path / "bad.npy")


def test_a_model_is_no_checkpoint(tmp_path, X):
    SOMF(**SETTINGS).fit(X).save(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="not a checkpoint"):
        SOMF.resume(tmp_path / "model.safetensors", X)
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        SOMF.resume(tmp_path / "..", X)


def test_a_checkpoint_is_a_model(tmp_path, X):
    model = SOMF(**SETTINGS, checkpoint=tmp_path, n_epochs=2, tol=0).fit(X)
    loaded = SOMF.load(find(tmp_path)[0])
    np.testing.assert_array_equal(loaded.components_, model.components_)
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))


def test_a_damaged_checkpoint_is_passed_over(tmp_path, X):
    settings = SETTINGS | {"n_epochs": 3, "tol": 0}
    whole = SOMF(**settings).fit(X)
    SOMF(**settings, checkpoint=tmp_path, checkpoint_steps=5).fit(X)
    newest, older = find(tmp_path)
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.warns(
        RuntimeWarning, match=f"{newest.name}.*Going on from .*{older.name}"
    ):
        resumed = SOMF.resume(tmp_path, X)
    assert_same(resumed, whole)
    for path in find(tmp_path):
        path.write_bytes(b"")
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(ValueError, match="not a readable"),
    ):
        SOMF.resume(tmp_path, X)


def test_newest_first(tmp_path):
    for step in (3, 20, 100):
        (tmp_path / f"checkpoint-{step:09d}.safetensors").write_text(str(step))
    assert read_newest(tmp_path, lambda path: int(path.read_text())) == 100


def test_a_full_disk_does_not_end_the_run(tmp_path, X, monkeypatch):
    settings = SETTINGS | {"n_epochs": 2, "tol": 0}
    whole = SOMF(**settings).fit(X)
    write_file, calls = storage.write_file, []

    def fill(path, tensors, metadata):
        calls.append(path)
        if len(calls) in (3, 4, 5):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_file(path, tensors, metadata)

    monkeypatch.setattr(storage, "write_file", fill)
    model = SOMF(**settings, checkpoint=tmp_path, checkpoint_steps=1)
    with pytest.warns(RuntimeWarning, match="could not be written.*No space"):
        model.fit(X)
    assert_same(model, whole)
    assert len(find(tmp_path)) == 2
    assert len(calls) == 10


LIMITED = """
import resource, signal, sys, warnings
import numpy as np
from somf import SOMF
from somf.checkpoints import find
X = np.random.default_rng(0).standard_normal((100, 2000))
settings = dict(n_components=5, alpha=1, batch_size=20, n_epochs=2, tol=0)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = sys.argv[1]
class Filling(SOMF):
    @property
    def n_steps_(self):
        steps = super().n_steps_
        if steps == 4:  # from here on a file may be no longer than 50 kB
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        return steps
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    Filling(**settings, checkpoint=folder, checkpoint_steps=1).fit(X)
said = {str(w.message) for w in caught if "could not be written" in str(w.message)}
loaded = SOMF.load(find(folder)[0])
print(len(said), loaded.n_steps_, len(find(folder)))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_file_that_cannot_be_completed_leaves_the_one_before(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    n_warnings, step, n_left = map(int, result.stdout.split())
    assert n_warnings >= 6
    assert step == 3
    assert n_left == 2


def test_signals_are_noted_in_the_main_thread_only():
    default = signal.getsignal(signal.SIGTERM)
    with catch_signals(True) as signals:
        assert signals.received is None
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert signals.received == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == default
    handlers = []

    def elsewhere():
        with catch_signals(True):
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert handlers == [default]


def test_the_second_interrupt_is_at_once():
    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

    with catch_signals(True) as signals:
        interrupt()
        assert signals.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_without_checkpoints_signals_do_what_they_did(X):
    with catch_signals(False):
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


KILLED = Path(__file__).with_name("killed.py")
RUNS = {
    "default": {"n_components": 5, "alpha": 0.5, "batch_size": 20, "n_threads": 2},
    "averaged": {
        "n_components": 5,
        "alpha": 0.5,
        "batch_size": 20,
        "reduction": 3,
        "code_estimator": "averaged",
        "n_threads": 2,
    },
}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
@pytest.mark.parametrize("name", RUNS)
def test_killed_at_any_moment(tmp_path, name):
    settings = RUNS[name] | {"n_epochs": 12, "tol": 0, "random_state": 0}
    command = [sys.executable, str(KILLED), str(tmp_path), "20", "0"]
    result = subprocess.run(
        [*command, json.dumps(settings)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["killed"] == 20
    assert told["finished"] >= 1
    # Nothing but the last two, although processes died while they wrote.
    assert len(told["left"]) == 2, told["left"]
