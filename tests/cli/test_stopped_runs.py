"""Runs that exist, fail or are stopped."""

import os
import shutil
import signal

import click
import numpy as np
import pytest
from commands import OPTIONS, PARAMETERS, check_error, components, somf, start

from somf import SOMF
from somf.checkpoints import find
from somf.cli.base import Command, Group


def test_what_failed_is_resumed(unfinished, run):
    assert find(unfinished / "checkpoints")
    assert not (unfinished / "model.safetensors").exists()
    result = somf("fit", "--output", unfinished, "--resume")
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(components(unfinished), components(run))
    assert not (unfinished / "checkpoints").exists()


def test_resume_takes_the_same_settings_and_no_others(unfinished, data, folder):
    resume = ["fit", "--output", unfinished, "--resume"]
    check_error(somf(*resume, "--alpha", 0.2), 2, "alpha is 0.1", "not 0.2")
    check_error(somf(*resume, folder / "first.npy"), 2, "data is", "first.npy")
    assert somf(*resume, data, *OPTIONS).exit_code == 0


def test_resume_starts_what_has_not_begun(data, run, tmp_path):
    result = somf("fit", data, "--output", tmp_path / "a", *OPTIONS, "--resume")
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(components(tmp_path / "a"), components(run))
    check_error(somf("fit", "--output", tmp_path / "b", "--resume"), 2, "DATA")


def test_resume_before_the_first_checkpoint(data, run, tmp_path):
    target = tmp_path / "run"
    target.mkdir()
    settings = (run / "settings.toml").read_text()
    (target / "settings.toml").write_text(settings)
    assert somf("fit", "--output", target, "--resume").exit_code == 0
    np.testing.assert_array_equal(components(target), components(run))


def test_resume_of_a_finished_run_does_nothing(run):
    before = (run / "model.safetensors").stat().st_mtime_ns
    assert somf("fit", "--output", run, "--resume").exit_code == 0
    assert (run / "model.safetensors").stat().st_mtime_ns == before


def test_an_existing_run_is_not_replaced(data, unfinished):
    again = ["fit", data, "--output", unfinished, *OPTIONS]
    check_error(somf(*again), 2, "unfinished run", "--resume", "--overwrite")
    (unfinished / "notes.txt").write_text("mine")
    result = somf(*again, "--overwrite", "--alpha", 0.5)
    assert result.exit_code == 0, result.output
    assert SOMF.load(unfinished / "model.safetensors").alpha == 0.5
    assert (unfinished / "notes.txt").read_text() == "mine"
    check_error(somf(*again), 2, "a finished run", "--overwrite")


def test_checkpoints_elsewhere(data, tmp_path, run):
    target, elsewhere = tmp_path / "run", tmp_path / "safe"
    options = [*OPTIONS, "--checkpoint", elsewhere]
    assert somf("fit", data, "--output", target, *options).exit_code == 0
    assert find(elsewhere)
    other = ["--output", tmp_path / "other"]
    check_error(somf("fit", data, *other, *options), 1, "checkpoints of another run")
    assert not (tmp_path / "other").exists()
    (target / "model.safetensors").unlink()
    assert somf("fit", "--output", target, "--resume").exit_code == 0
    np.testing.assert_array_equal(components(target), components(run))


def test_overwriting_begins_when_the_data_are_open(data, run, tmp_path):
    target = tmp_path / "run"
    shutil.copytree(run, target)
    before = (target / "model.safetensors").read_bytes()
    typo = ["fit", tmp_path / "typo.npy", "--output", target, "--overwrite", *OPTIONS]
    check_error(somf(*typo), 1, "typo.npy")
    assert (target / "model.safetensors").read_bytes() == before
    (target / "report.html").write_bytes(b"old")
    again = somf("fit", data, "--output", target, "--overwrite", *OPTIONS)
    assert again.exit_code == 0
    assert not (target / "report.html").exists()


def test_paths_of_a_config_are_relative_to_it(X, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    np.save(tmp_path / "here" / "X.npy", X)
    config = tmp_path / "here" / "my.toml"
    config.write_text('[inputs]\ndata = "X.npy"\n[parameters]\nn_components = 3\n')
    monkeypatch.chdir(tmp_path)
    arguments = ["fit", "--config", "here/my.toml", "--output", "run"]
    assert somf(*arguments).exit_code == 0
    settings = tmp_path / "run" / "settings.toml"
    assert str(tmp_path / "here" / "X.npy") in settings.read_text()
    assert somf(*arguments, "--resume").exit_code == 0
    short = "[inputs]\ndata = ['../here/X.npy']\n[parameters]\nn_components = 3\n"
    settings.write_text(short)  # by a person: the rest are defaults
    assert somf("fit", "--output", "run", "--resume", "--alpha", 1).exit_code == 0
    check_error(somf("fit", "--output", "run", "--resume", "--alpha", 2), 2, "alpha")


def test_what_fails_at_once_leaves_nothing(X, tmp_path):
    np.save(tmp_path / "bad.npy", np.where(np.arange(40) == 3, np.nan, X))
    fit_bad = ["fit", tmp_path / "bad.npy", "--output", tmp_path / "run", *OPTIONS]
    check_error(somf(*fit_bad), 1, "NaN")
    assert not (tmp_path / "run").exists()
    missing = ["fit", tmp_path / "missing.npy", "--output", tmp_path / "run"]
    check_error(somf(*missing), 1, "missing.npy")


signals = pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130)],
)
posix = pytest.mark.skipif(os.name == "nt", reason="signals are those of POSIX")


@pytest.mark.slow
@posix
@signals
def test_a_stopped_run_is_resumed_to_the_same_bits(X, data, tmp_path, number, code):
    run = tmp_path / "run"
    options = [*OPTIONS, "--n-epochs", 400, "--tol", 0]
    process = start("fit", data, "--output", run, *options)
    assert process.stderr.readline().startswith("fit: iteration ")
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert stdout == ""
    error = stderr.splitlines()[-1]
    assert error.startswith("Error: ")
    assert f"somf fit --output {run} --resume" in error
    assert "Traceback" not in stderr
    (checkpoint,) = find(run / "checkpoints")
    assert 0 < SOMF.load(checkpoint).n_steps_ < 1200
    assert somf("fit", "--output", run, "--resume").exit_code == 0
    whole = SOMF(**PARAMETERS | {"n_epochs": 400, "tol": 0}).fit(X)
    np.testing.assert_array_equal(components(run), whole.components_)


@posix
@signals
def test_signals_outside_of_a_fit(number, code):
    before = signal.getsignal(signal.SIGTERM)
    # Python leaves SIGINT ignored if it starts so, as in the background of a shell.
    keyboard = signal.signal(signal.SIGINT, signal.default_int_handler)

    @click.command(cls=Command)
    def wait():
        signal.raise_signal(number)

    result = somf("wait", group=Group(commands={"wait": wait}))
    signal.signal(signal.SIGINT, keyboard)
    check_error(result, code)
    assert signal.getsignal(signal.SIGTERM) is before
