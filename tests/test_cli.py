"""The command line."""

import inspect
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
import warnings
from pathlib import Path
from urllib.error import URLError

import click
import numpy as np
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from commands import somf
from hypothesis import given
from hypothesis import strategies as st

from somf import SOMF, __version__
from somf.checkpoints import find
from somf.cli import main
from somf.cli.base import Command, Group, plain
from somf.cli.fit import fit
from somf.cli.options import (
    documented_parameters,
    estimator_options,
    explicit_parameters,
)
from somf.cli.settings import Settings, toml
from somf.progress import CountProgress, observed_by
from somf.sources import MappedSource

COMMANDS = [
    *("fit", "transform", "score", "plan", "convert", "inspect", "report", "compare"),
    *("fmri", "image", "demo"),
]
PARAMETERS = {
    "n_components": 3,
    "alpha": 0.1,
    "reduction": 2.0,
    "batch_size": 20,
    "n_epochs": 3,
    "n_threads": 1,
    "random_state": 0,
}
OPTIONS = [
    word
    for name, value in PARAMETERS.items()
    for word in ("--" + name.replace("_", "-"), str(value))
]


def check_error(result, code, *words):
    """An error is one line, without a traceback, and has its code."""
    assert result.exit_code == code
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert "Traceback" not in result.stderr
    for word in words:
        assert str(word) in last


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.standard_normal((60, 3)) @ rng.standard_normal((3, 40))


@pytest.fixture(scope="module")
def folder(X, tmp_path_factory):
    """Data, and a finished run; tests do not change them."""
    folder = tmp_path_factory.mktemp("cli")
    np.save(folder / "X.npy", X)
    np.save(folder / "first.npy", X[:25])
    np.save(folder / "rest.npy", X[25:])
    result = somf("fit", folder / "X.npy", "--output", folder / "run", *OPTIONS)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="module")
def data(folder):
    return folder / "X.npy"


@pytest.fixture(scope="module")
def run(folder):
    return folder / "run"


def components(run):
    return SOMF.load(run / "model.safetensors").components_


def read_trace(path):
    """Return the columns of a trace; what is empty is NaN."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    numbers = [[float(cell or "nan") for cell in row] for row in rows[1:]]
    return dict(zip(rows[0], zip(*numbers, strict=True), strict=True))


# -- help ----------------------------------------------------------------------------


def test_help_and_version():
    result = somf("--help")
    assert result.exit_code == 0
    listed = re.findall(r"^  (\w+) +[A-Z]", result.stdout, re.M)
    assert listed == COMMANDS
    assert "143  stopped by SIGTERM" in result.stdout
    listing = result.stdout.split("Commands:")[1]
    assert "..." not in listing  # what a command does fits on its line
    assert re.search(r"\d+\.\d+", somf("--version").stdout)


@pytest.mark.parametrize(
    "command",
    [*COMMANDS[:-3], "fmri learn", "image learn", "image denoise", "demo", "demo fmri"],
)
def test_every_command_has_help(command):
    result = somf(*command.split(), "--help")
    assert result.exit_code == 0
    assert "--debug" in result.stdout
    assert ("--json" in result.stdout) == ("demo" not in command)


def test_help_does_not_wait_for_large_packages():
    code = """
import sys
from somf.cli import main
main(["--help"], standalone_mode=False)
large = {"numpy", "scipy", "sklearn", "numba", "rich", "zarr", "matplotlib"}
sys.exit(", ".join(large & set(sys.modules)))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
    assert "demo" in done.stdout


# -- options -------------------------------------------------------------------------


def test_every_parameter_is_an_option_with_its_default():
    options = {option.name: option for option in estimator_options()}
    parameters = SOMF().get_params()
    assert options.keys() == parameters.keys()
    for name, value in parameters.items():
        assert f"--{name.replace('_', '-')}" in options[name].opts
        assert options[name].default == value


def test_help_of_options_is_that_of_the_estimator():
    squeezed = re.sub(r"\W", "", SOMF.__doc__)
    for option in estimator_options():
        assert len(option.help) > 5
        assert "`" not in option.help
        text = re.sub(r"\W", "", option.help)
        # Only the role of a reference is left out.
        assert text in squeezed or text in re.sub("func|meth", "", squeezed)


def test_documented_parameters_of_any_class():
    class Documented:
        r"""Short.

        Parameters
        ----------
        a, b : int, \
                default=1
            First line of :func:`f`,
            and ``second``.

        c : {"x", "y"}
            Third.

        Returns
        -------
        d : int
        """

    text = "First line of f, and second."
    assert documented_parameters(Documented) == {
        "a": ("int, default=1", text),
        "b": ("int, default=1", text),
        "c": ('{"x", "y"}', "Third."),
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--reduction auto", {"reduction": "auto"}),
        ("--reduction 3", {"reduction": 3.0}),
        ("--batch-size 7", {"batch_size": 7}),
        ("--n-components none", {"n_components": None}),
        ("--positive-code", {"positive_code": True}),
        ("--no-shuffle", {"shuffle": False}),
        ("--progress no", {"progress": False}),
        ("--progress auto", {"progress": "auto"}),
        ("--mask bernoulli", {"mask": "bernoulli"}),
        ("--dict-init random", {"dict_init": "random"}),
        ("--dict-init D.npy", {"dict_init": "D.npy"}),
        ("--random-state 4 --tol 1e-5", {"random_state": 4, "tol": 1e-5}),
        ("", {}),
    ],
)
def test_options_become_parameters(words, expected):
    arguments = ["X.npy", "--output", "run", *words.split()]
    context = fit.make_context("fit", arguments)
    assert explicit_parameters(context) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--batch-size many", "many"),
        ("--batch-size 2.5", "2.5"),
        ("--alpha none", "none"),
        ("--mask square", "square"),
        ("--alpha -1", "alpha=-1.0 must be a number >= 0"),
        ("--reduction 0.5", "reduction=0.5"),
        ("--dict-init noise", "noise"),
        ("--colour red", "--colour"),
        ("--resume --overwrite", "--overwrite"),
        ("--config missing.toml", "missing.toml"),
    ],
)
def test_wrong_usage_of_fit(data, tmp_path, words, message):
    result = somf("fit", data, "--output", tmp_path / "run", *words.split())
    check_error(result, 2, message)
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


# -- fit -----------------------------------------------------------------------------


def test_fit_leaves_a_folder(X, run, data):
    model = SOMF(**PARAMETERS).fit(X)
    written = SOMF.load(run / "model.safetensors")
    np.testing.assert_array_equal(written.components_, model.components_)
    assert written.checkpoint is None
    assert sorted(path.name for path in run.iterdir()) == [
        "model.safetensors",
        "settings.toml",
        "trace.csv",
    ]
    trace = read_trace(run / "trace.csv")
    assert trace.keys() == written.trace_.keys()
    for name, column in written.trace_.items():
        np.testing.assert_array_equal(trace[name], column)
    settings = tomllib.loads((run / "settings.toml").read_text())
    assert settings["inputs"] == {"data": [str(data)], "val": []}
    assert list(settings["parameters"]) == list(inspect.signature(SOMF).parameters)
    assert settings["parameters"].items() >= PARAMETERS.items()
    assert settings["somf"] == __version__


def test_result_for_people_and_for_machines(data, run, tmp_path):
    result = somf("fit", data, "--output", tmp_path / "new", *OPTIONS)
    assert re.search(r"Objective [\d.e-]+ after 3 epochs, 9 iterations", result.stdout)
    assert str(tmp_path / "new" / "model.safetensors") in result.stdout
    result = somf("fit", "--output", run, "--resume", "--json")
    facts = json.loads(result.stdout)
    model = SOMF.load(run / "model.safetensors")
    assert facts["objective"] == model.objective_
    assert facts["n_steps"] == 9
    assert facts["stop_reason"] == model.stop_reason_


def test_config_repeats_a_run_bit_for_bit(data, tmp_path):
    options = ["--n-components", 3, "--n-epochs", 2, "--batch-size", 20]
    first, second, third = (tmp_path / name for name in "abc")
    somf("fit", data, "--val", data, "--output", first, *options)
    seed = Settings.read(first / "settings.toml").parameters["random_state"]
    assert isinstance(seed, int)  # drawn, since it was not given
    result = somf("fit", "--config", first / "settings.toml", "--output", second)
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(components(first), components(second))
    texts = [(run / "settings.toml").read_text() for run in (first, second)]
    assert texts[0] == texts[1]
    traces = [read_trace(run / "trace.csv") for run in (first, second)]
    for name in ("objective", "validation_objective"):
        np.testing.assert_array_equal(traces[0][name], traces[1][name])
    assert np.isfinite(traces[0]["validation_objective"]).any()
    somf("fit", data, "--output", third, *options)
    assert not np.array_equal(components(first), components(third))  # another seed


def test_options_win_over_the_configuration(run, folder, tmp_path):
    config = ["--config", run / "settings.toml", "--output", tmp_path / "new"]
    somf("fit", folder / "first.npy", *config, "--alpha", 0.5, "--no-shuffle")
    before = Settings.read(run / "settings.toml")
    after = Settings.read(tmp_path / "new" / "settings.toml")
    assert after.data == [str(folder / "first.npy")]
    changes = {"alpha": 0.5, "shuffle": False}
    assert after.parameters == before.parameters | changes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[parameters]\ncolour = 1", "'colour'"),
        ("[inputs]\ntest = 'X.npy'", "'test'"),
        ("[extra]", "'extra'"),
        ("[inputs]\ndata = 3", "data = 3"),
        ("[parameters]\nalpha = 'low'", "alpha='low'"),
        ("[parameters", "not readable TOML"),
    ],
)
def test_bad_configuration(data, tmp_path, text, words):
    config = tmp_path / "settings.toml"
    config.write_text(text)
    result = somf("fit", data, "--config", config, "--output", tmp_path / "run")
    check_error(result, 2, words)


def test_configuration_by_hand(data, tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text(
        f"[inputs]\ndata = '{data}'\n[parameters]\nn_components = 2\nn_epochs = 1\n"
    )
    result = somf("fit", "--config", config, "--output", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert components(tmp_path / "run").shape == (2, 40)


def test_preset(folder, tmp_path):
    np.save(tmp_path / "positive.npy", abs(np.load(folder / "X.npy")))
    target = tmp_path / "run"
    data = tmp_path / "positive.npy"
    somf("fit", data, "--output", target, "--preset", "nmf", *OPTIONS)
    model = SOMF.load(target / "model.safetensors")
    assert model.positive_code
    assert model.positive_dict
    assert components(target).min() >= 0
    config = ["--config", target / "settings.toml"]
    result = somf("fit", *config, "--output", tmp_path / "b", "--preset", "nmf")
    check_error(result, 2, "--preset and --config")


def test_dict_init_from_a_file(X, data, tmp_path):
    np.save(tmp_path / "D.npy", X[:3])
    init = ["--dict-init", tmp_path / "D.npy"]
    somf("fit", data, "--output", tmp_path / "run", *OPTIONS, *init)
    model = SOMF(**PARAMETERS, dict_init=X[:3]).fit(X)
    np.testing.assert_array_equal(components(tmp_path / "run"), model.components_)
    parameters = Settings.read(tmp_path / "run" / "settings.toml").parameters
    assert parameters["dict_init"] == str(tmp_path / "D.npy")
    (tmp_path / "D.npy").write_bytes(b"no array")
    result = somf("fit", data, "--output", tmp_path / "b", *OPTIONS, *init)
    check_error(result, 1, "D.npy")


def test_several_inputs_are_stacked(folder, run, tmp_path):
    parts = [folder / "first.npy", folder / "rest.npy"]
    somf("fit", *parts, "--output", tmp_path / "run", *OPTIONS)
    np.testing.assert_array_equal(components(tmp_path / "run"), components(run))


def test_data_are_needed(tmp_path):
    check_error(somf("fit", "--output", tmp_path / "run"), 2, "DATA")


# -- runs that exist, fail or are stopped --------------------------------------------


@pytest.fixture
def unfinished(data, tmp_path, monkeypatch):
    """A run that failed after some iterations, for a reason that is gone."""
    read, calls = MappedSource.batch, iter(range(100))

    def fail(self, *arguments):
        if next(calls) == 5:
            raise OSError("the disk is gone")
        return read(self, *arguments)

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(MappedSource, "batch", fail)
        options = ["--checkpoint-steps", 1]
        result = somf("fit", data, "--output", run, *OPTIONS, *options)
    check_error(result, 1, "the disk is gone", f"somf fit --output {run} --resume")
    return run


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


def start(*arguments):
    """Start a command in a process of its own, which tells of progress at once."""
    code = (
        "import somf.progress; somf.progress.ProgressBar.DELAY = 0;"
        "from somf.cli import main; main(prog_name='somf')"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


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


# -- errors and warnings -------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("alpha is\nwrong."), "Error: alpha is wrong."),
        (FileNotFoundError("no X.npy"), "Error: no X.npy"),
        (KeyError("lost"), "Error: KeyError: 'lost'. Use --debug"),
        (ValueError(), "Error: ValueError. Use --debug"),
    ],
)
def test_errors_are_one_line_and_debug_shows_more(error, message):
    @click.command(cls=Command)
    def fail():
        raise error

    group = Group(commands={"fail": fail})
    result = somf("fail", group=group)
    check_error(result, 1)
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1
    result = somf("fail", "--debug", group=group)
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "raise error" in result.stderr
    assert message in result.stderr


def test_debug_shows_what_is_behind_an_error_of_a_command(data, tmp_path):
    bad = ["fit", data, "--output", tmp_path / "run", "--alpha", -1]
    assert "Traceback" not in somf(*bad).stderr
    assert "check_number" in somf(*bad, "--debug").stderr


@pytest.mark.parametrize("arguments", [["--colour"], ["paint"], ["score"]])
def test_wrong_usage_is_one_line(arguments):
    result = somf(*arguments)
    check_error(result, 2, "--help")
    assert result.stderr.count("\n") == 1


def test_warnings_are_one_line():
    @click.command(cls=Command)
    def warn():
        warnings.warn("the disk\nis full", RuntimeWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = somf("warn", group=Group(commands={"warn": warn}))
    assert result.exit_code == 0
    assert result.stderr == "Warning: the disk is full\n"


# -- progress ------------------------------------------------------------------------


def test_plain_progress_without_a_terminal(data, tmp_path, monkeypatch):
    monkeypatch.setattr("somf.progress.ProgressBar.DELAY", 0)
    result = somf("fit", data, "--output", tmp_path / "a", *OPTIONS)
    lines = result.stderr.splitlines()
    assert re.fullmatch(
        r"fit: iteration 1 of 9 \(11 %\), objective [\d.e-]+, 0 s", lines[0]
    )
    assert lines[-1].startswith("fit: iteration 9 of 9 (100 %)")
    assert len(lines) == 2  # no more than one in a few seconds, and the last
    monkeypatch.setattr("somf.progress.Lines.EVERY", 0.0)
    result = somf("fit", data, "--output", tmp_path / "b", *OPTIONS)
    assert len(result.stderr.splitlines()) == 9
    result = somf("fit", data, "--output", tmp_path / "c", *OPTIONS, "--progress", "no")
    assert result.exit_code == 0
    assert result.stderr == ""


def test_progress_of_other_commands(data, run, tmp_path):
    result = somf("transform", run, data, "--output", tmp_path / "codes.npy")
    assert "transform: 60 of 60 samples (100 %)" in result.stderr
    pytest.importorskip("zarr")
    result = somf("convert", data, tmp_path / "X.zarr")
    assert "convert: 60 of 60 samples (100 %)" in result.stderr


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with CountProgress("convert") as progress:
        progress(30, 60)
    written = capsys.readouterr().err
    assert "30/60" in written
    assert "of 60 samples" not in written  # no plain line


# -- transform, score, inspect, plan, report -----------------------------------------


@pytest.mark.parametrize("suffix", [".npy", ".zarr"])
@pytest.mark.parametrize("whole_run", [True, False])
def test_transform_writes_what_the_model_returns(
    X, folder, run, tmp_path, suffix, whole_run, monkeypatch
):
    monkeypatch.setattr("somf.solver.evaluation.CHUNK", 17)  # more than one part
    zarr = pytest.importorskip("zarr") if suffix == ".zarr" else None
    output = tmp_path / f"codes{suffix}"
    model = run if whole_run else run / "model.safetensors"
    parts = [folder / "first.npy", folder / "rest.npy"]
    result = somf("transform", model, *parts, "--output", output)
    assert result.exit_code == 0, result.output
    codes = np.load(output) if zarr is None else zarr.open(str(output), mode="r")[:]
    expected = SOMF.load(run / "model.safetensors").transform(X)
    np.testing.assert_array_equal(codes, expected)
    assert codes.dtype == expected.dtype
    assert os.listdir(tmp_path) == [output.name]
    check_error(somf("transform", model, *parts, "--output", output), 2, "--overwrite")
    again = somf("transform", model, *parts, "--output", output, "--overwrite")
    assert again.exit_code == 0


def test_transform_streams(folder, run, tmp_path, monkeypatch):
    """Codes are never all in memory: `transform`, which returns them, is not used."""
    monkeypatch.delattr(SOMF, "transform")
    output = ["--output", tmp_path / "codes.npy"]
    assert somf("transform", run, folder / "X.npy", *output).exit_code == 0


@pytest.mark.parametrize("suffix", [".npy", ".zarr"])
def test_a_transform_that_fails_leaves_nothing(X, run, tmp_path, suffix):
    if suffix == ".zarr":
        pytest.importorskip("zarr")
    data = tmp_path / "bad.npy"
    np.save(data, np.where(np.arange(600)[:, None] < 550, X[0], np.nan))
    output = tmp_path / f"codes{suffix}"
    check_error(somf("transform", run, data, "--output", output), 1, "NaN")
    assert os.listdir(tmp_path) == ["bad.npy"]


def test_transform_refuses_bad_outputs(data, run, tmp_path):
    result = somf("transform", run, data, "--output", tmp_path / "codes.csv")
    check_error(result, 2, "codes.csv must end with .npy or .zarr")
    result = somf("transform", run, data, "--output", tmp_path / "no" / "codes.npy")
    check_error(result, 2, tmp_path / "no")
    result = somf("transform", run, data, "--output", data, "--overwrite")
    check_error(result, 2, "is an input")


@pytest.mark.parametrize("suffix", [".npy", ".zarr"])
def test_transform_never_replaces_a_folder_of_others(data, run, tmp_path, suffix):
    output = tmp_path / f"thesis{suffix}"
    output.mkdir()
    (output / "thesis.tex").write_text("42")
    result = somf("transform", run, data, "--output", output, "--overwrite")
    check_error(result, 2, output, "no codes")
    assert (output / "thesis.tex").read_text() == "42"


def test_score(X, data, run):
    expected = SOMF.load(run / "model.safetensors").score(X)
    facts = json.loads(somf("score", run, data, "--json").stdout)
    assert facts == {"score": expected, "objective": -expected, "n_samples": 60}
    assert f"Score {expected:.6g}" in somf("score", run, data).stdout


def test_models_that_are_none(data, tmp_path, unfinished):
    score = ["score", tmp_path / "missing.safetensors", data]
    check_error(somf(*score), 1, "missing.safetensors")
    check_error(somf("score", data, data), 1, "X.npy")
    check_error(somf("score", tmp_path, data), 1, "no model.safetensors")
    check_error(somf("score", unfinished, data), 1, "--resume")


@pytest.mark.parametrize("kind", ["run", "model"])
def test_inspect_a_model(run, kind):
    path = run if kind == "run" else run / "model.safetensors"
    facts = json.loads(somf("inspect", path, "--json").stdout)
    assert facts["kind"] == kind
    assert (facts["n_components"], facts["n_features"]) == (3, 40)
    assert (facts["n_iter"], facts["n_steps"]) == (3, 9)
    assert facts["parameters"].items() >= PARAMETERS.items()
    assert facts["stop_reason"]
    result = somf("inspect", path)
    assert "alpha = 0.1" in result.stdout
    assert facts["stop_reason"] in result.stdout


def test_inspect_what_is_not_finished(unfinished):
    for path in (unfinished, unfinished / "checkpoints"):
        facts = json.loads(somf("inspect", path, "--json").stdout)
        assert facts["n_steps"] < 9
        assert facts["stop_reason"] is None
        assert "not finished" in somf("inspect", path).stdout
    for checkpoint in find(unfinished / "checkpoints"):
        checkpoint.unlink()
    assert "without a checkpoint" in somf("inspect", unfinished).stdout


def test_inspect_data(data, tmp_path):
    facts = json.loads(somf("inspect", data, "--json").stdout)
    assert (facts["n_samples"], facts["n_features"]) == (60, 40)
    assert facts["dtype"] == "float64"
    assert facts["chunk_samples"] is None
    assert "60 samples of 40 features" in somf("inspect", data).stdout
    check_error(somf("inspect", tmp_path / "no.npy"), 1, "no.npy")
    check_error(somf("inspect", tmp_path), 1, tmp_path)


def test_convert(X, folder, tmp_path):
    pytest.importorskip("zarr")
    target = tmp_path / "X.zarr"
    parts = [folder / "first.npy", folder / "rest.npy"]
    options = ["--chunk-samples", 20, "--chunk-features", 10, "--shuffle-features"]
    result = somf("convert", *parts, target, *options, "--random-state", 0, "--json")
    facts = json.loads(result.stdout)
    assert (facts["n_samples"], facts["n_features"]) == (60, 40)
    assert (facts["chunk_samples"], facts["chunk_features"]) == (20, 10)
    assert facts["shuffled_features"]
    assert "shuffled" in somf("inspect", target).stdout
    check_error(somf("convert", *parts, target), 2, "complete conversion already")
    result = somf("convert", *parts, target, "--overwrite", "--dtype", "float32")
    assert "float32" in result.stdout
    check_error(somf("convert", folder / "X.npy", tmp_path / "X.npy"), 1, ".zarr")


@pytest.mark.slow
def test_plan(data):
    result = somf("plan", data, "--n-components", 3, "--json")
    facts = json.loads(result.stdout)
    assert (facts["n_samples"], facts["n_components"]) == (60, 3)
    assert "60 samples of 40 features" in somf("plan", data).stdout
    check_error(somf("plan", data, "--alpha", -1), 2, "alpha")
    check_error(somf("plan", "missing.npy"), 1, "missing.npy")


def test_report(run, data, tmp_path):
    pytest.importorskip("jinja2")
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    result = somf("report", copy, "--json")
    target = Path(json.loads(result.stdout)["report"])
    page = target.read_text()
    assert target == copy / "report.html"
    assert '<span class="status finished">' in page
    assert 'id="examples"' in page  # the data are still there
    assert str(target) in somf("report", copy).stdout
    settings = (copy / "settings.toml").read_text()
    (copy / "settings.toml").write_text(settings.replace(str(data), "/gone.npy"))
    result = somf("report", copy)
    assert result.exit_code == 0
    assert "No reconstructions, /gone.npy is of no use" in result.stderr
    assert 'id="examples"' not in target.read_text()
    check_error(somf("report", tmp_path), 1, "no model.safetensors")


def test_report_when_the_data_have_changed(X, folder, tmp_path):
    pytest.importorskip("jinja2")
    data, target = tmp_path / "X.npy", tmp_path / "run"
    shutil.copytree(folder / "run", target)
    settings = (target / "settings.toml").read_text()
    (target / "settings.toml").write_text(
        settings.replace(str(folder / "X.npy"), str(data))
    )
    np.save(data, X[:, :20])
    result = somf("report", target)
    assert result.exit_code == 0, result.output
    assert "No reconstructions" in result.stderr
    assert "20 features" in result.stderr
    assert 'id="examples"' not in (target / "report.html").read_text()


def test_report_of_an_image_dictionary_shows_patches(tmp_path):
    pytest.importorskip("jinja2")
    from somf.image import PatchDictionary

    image = np.random.default_rng(0).random((12, 12, 5))
    patches = PatchDictionary(4, patch_size=(3, 3), n_epochs=1, random_state=0)
    (tmp_path / "run").mkdir()
    patches.fit(image).save(tmp_path / "run" / "model.safetensors")
    assert somf("report", tmp_path / "run").exit_code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Atoms as patches" in page
    assert page.count('class="pixels"') == 4
    target = tmp_path / "both.html"
    both = ["compare", tmp_path / "run", tmp_path / "run", "--output", target]
    assert somf(*both).exit_code == 0
    assert target.read_text().count('class="pixels"') == 8


@pytest.fixture
def brain_run(tmp_path):
    """A folder as `somf fmri learn` leaves it."""
    pytest.importorskip("jinja2")
    masking = pytest.importorskip("nilearn.masking")
    from reported import make_brain

    maps, mask = make_brain()
    run = tmp_path / "brain"
    run.mkdir()
    raw = -masking.apply_mask(maps, mask)  # maps have the signs that people expect
    SOMF(3, dict_init=raw, n_threads=1, random_state=0).partial_fit(raw).save(
        run / "model.safetensors"
    )
    maps.to_filename(run / "maps.nii.gz")
    mask.to_filename(run / "mask.nii.gz")
    return run


def test_brain_maps_are_drawn_as_they_were_written(brain_run, monkeypatch, tmp_path):
    import nibabel

    from somf.report import BrainMaps

    drawn = []

    def atom(maps, number):
        drawn.append(maps.components_img)
        return ""

    monkeypatch.setattr(BrainMaps, "atom", atom)
    monkeypatch.setattr(BrainMaps, "html", lambda maps, order: atom(maps, 0))
    assert somf("report", brain_run).exit_code == 0
    both = ["compare", brain_run, brain_run, "--output", tmp_path / "both.html"]
    assert somf(*both).exit_code == 0
    maps = nibabel.load(brain_run / "maps.nii.gz").get_fdata()
    assert len(drawn) == 1 + 2 * 3
    for image in drawn:
        np.testing.assert_array_equal(image.get_fdata(), maps)
    other = tmp_path / "flipped"  # the signs of cosines are those of the maps
    shutil.copytree(brain_run, other)
    flipped = nibabel.Nifti1Image(-maps, nibabel.load(other / "maps.nii.gz").affine)
    flipped.to_filename(other / "maps.nii.gz")
    assert somf("compare", brain_run, other, *both[3:], "--overwrite").exit_code == 0
    assert (tmp_path / "both.html").read_text().count("cosine -1.000") == 3


def test_a_stopped_run_of_another_command_is_continued_by_it(unfinished):
    pytest.importorskip("jinja2")
    (unfinished / "settings.toml").unlink()
    assert somf("report", unfinished).exit_code == 0
    page = (unfinished / "report.html").read_text()
    assert '<span class="status stopped">' in page
    assert "somf fit" not in page
    assert f"somf fmri learn ... --output {unfinished} --resume" in page


def test_report_names_the_extra(run, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("somf.report")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    check_error(somf("report", run), 1, "somf[report]")


def test_compare(run, data, tmp_path):
    pytest.importorskip("jinja2")
    other, target = tmp_path / "run", tmp_path / "both.html"
    config = ["--config", run / "settings.toml", "--output", other]
    assert somf("fit", *config, "--alpha", 0.5).exit_code == 0
    result = somf("compare", run, other, "--output", target, "--json")
    assert json.loads(result.stdout) == {"output": str(target)}
    page = target.read_text()
    assert str(run) in page  # both are called run, so paths tell them apart
    assert str(other) in page
    again = ["compare", run, other, "--output", target]
    check_error(somf(*again), 2, "--overwrite")
    assert somf(*again, "--overwrite").exit_code == 0
    check_error(somf("compare", run, "--output", target), 2, "two runs or more")
    check_error(somf("compare", run, tmp_path / "no"), 1, "holds no model")


# -- a run that is going -------------------------------------------------------------


@pytest.fixture
def always_live(monkeypatch):
    """The page is written after each iteration."""
    pytest.importorskip("jinja2")
    monkeypatch.setattr("somf.cli.live.EVERY", 0.0)
    monkeypatch.setattr("somf.cli.live.SHARE", 1e9)


FEW_STEPS = [*OPTIONS, "--batch-size", 60]  # one for each of 3 epochs


def test_the_page_of_a_run_while_it_is_going(always_live, X, data, tmp_path):
    """It is there with the trace, refreshes itself, and becomes the report."""
    target, seen = tmp_path / "run", []
    page = target / "report.html"

    def look(model, report):  # before the page of this iteration is written
        if page.exists():
            seen.append((page.read_text(), read_trace(target / "trace.csv")))

    with observed_by(look):
        result = somf("fit", data, "--output", target, *FEW_STEPS)
    assert result.exit_code == 0, result.output
    assert [len(trace["step"]) for _, trace in seen] == [1, 2]
    assert all('data-refresh="5"' in text for text, _ in seen)
    assert "data-refresh" not in page.read_text()
    assert '<span class="status finished">' in page.read_text()
    model = SOMF(**PARAMETERS | {"batch_size": 60}).fit(X)
    np.testing.assert_array_equal(components(target), model.components_)


def test_the_page_of_a_run_that_was_stopped(always_live, data, tmp_path):
    target = tmp_path / "run"

    def stop(model, report):
        if report.step == 2:
            signal.raise_signal(signal.SIGTERM)

    with observed_by(stop):
        result = somf("fit", data, "--output", target, *FEW_STEPS)
    check_error(result, 143, "--resume")
    page = (target / "report.html").read_text()
    assert '<span class="status stopped">' in page
    assert f"somf fit --output {target} --resume" in page
    assert len(read_trace(target / "trace.csv")["step"]) == 2
    assert somf("report", target).exit_code == 0  # from the checkpoint
    assert "data-refresh" not in (target / "report.html").read_text()
    assert somf("fit", "--output", target, "--resume").exit_code == 0
    assert '<span class="status finished">' in (target / "report.html").read_text()


@pytest.mark.filterwarnings("default")
def test_a_page_that_fails_does_not_end_the_run(
    always_live, data, tmp_path, monkeypatch
):
    tried = []

    def fail(*_, **__):
        tried.append(True)
        raise OSError("No space left on device")

    monkeypatch.setattr("somf.report.make_report", fail)
    result = somf("fit", data, "--output", tmp_path / "run", *FEW_STEPS)
    assert result.exit_code == 0
    told = [line for line in result.stderr.splitlines() if "page of the run" in line]
    assert len(told) == 1
    assert "No space left" in told[0]
    assert len(tried) == 1  # and not again after each iteration


def test_a_short_run_has_no_page(run):
    assert not (run / "report.html").exists()


def test_watching_a_run(always_live, data, tmp_path, monkeypatch):
    """The page is served on loopback from the start until the run has ended."""
    from somf.report.watch import Watch

    monkeypatch.setattr("somf.report.watch.PATIENCE", 0.0)
    monkeypatch.setattr("somf.cli.live.EVERY", 1e9)  # but the first one comes at once
    addresses, pages, events = [], [], []
    begin, end = Watch.__enter__, Watch.__exit__

    def enter(watch):
        addresses.append(watch.address)
        return begin(watch)

    def look(model, report):
        with urllib.request.urlopen(addresses[0], timeout=10) as answer:
            pages.append(answer.read().decode())

    def leave(watch, *error):  # which may wait for somebody who looks on
        events.append("left")
        end(watch, *error)

    monkeypatch.setattr(Watch, "__enter__", enter)
    monkeypatch.setattr(Watch, "__exit__", leave)
    module = sys.modules["somf.cli.fit"]
    monkeypatch.setattr(module, "show", lambda *_: events.append("shown"))
    with observed_by(look):
        result = somf("fit", data, "--output", tmp_path / "run", *FEW_STEPS, "--watch")
    assert result.exit_code == 0, result.output
    assert f"Watch the run: {addresses[0]}" in result.stderr
    assert addresses[0].startswith("http://127.0.0.1:")
    assert "has not made its first iteration" in pages[0]
    assert '<span class="status running">' in pages[1]
    assert events == ["shown", "left"]
    with pytest.raises(URLError):
        urllib.request.urlopen(addresses[0], timeout=10)


def test_the_mask_of_images_is_kept(tmp_path):
    """So that the atoms of a run on brain images are shown as maps."""
    nibabel = pytest.importorskip("nibabel")
    rng = np.random.default_rng(0)
    volumes = np.zeros((16, 18, 15, 30), np.float32)
    volumes[3:-3, 3:-3, 3:-3] = 1000 + rng.standard_normal((10, 12, 9, 30))
    image = nibabel.Nifti1Image(volumes, np.diag([4.0, 4.0, 4.0, 1.0]))
    image.to_filename(tmp_path / "image.nii.gz")
    target = tmp_path / "run"
    result = somf("fit", tmp_path / "image.nii.gz", "--output", target, *FEW_STEPS)
    assert result.exit_code == 0, result.output
    mask = nibabel.load(target / "mask.nii.gz").get_fdata()
    assert mask.sum() == components(target).shape[1]
    pytest.importorskip("jinja2")
    result = somf("report", target)
    assert result.exit_code == 0, result.output
    assert 'class="viewer"' in (target / "report.html").read_text()


# -- notation ------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
)


@given(scalars | st.lists(st.text()))
def test_toml_reads_what_was_written(value):
    read = tomllib.loads(f"value = {toml(value)}\n")["value"]
    assert read == ("none" if value is None else value)
    assert type(read) is type("none" if value is None else value)


def test_json_has_no_infinity():
    facts = {"a": np.float64("nan"), "b": [np.inf, np.int64(3)], 4: Path("x")}
    assert json.dumps(plain(facts)) == '{"a": null, "b": [null, 3], "4": "x"}'


# -- completion ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "incomplete", "expected"),
    [
        ([], "", COMMANDS),
        ([], "in", ["inspect"]),
        (["fit"], "--code-e", ["--code-estimator"]),
        (["fit"], "--positive-c", ["--positive-code"]),
        (["plan"], "--n-comp", ["--n-components"]),
        (["fit", "--mask"], "", ["cycle", "bernoulli"]),
        (["fit", "--reduction"], "a", ["auto"]),
        (["fit", "--dict-init"], "r", ["random", "r"]),  # a word, or a file
        (["fit", "--preset"], "n", ["nmf"]),
        (["convert", "--dtype"], "", ["float32", "float64"]),
        (["inspect"], "da", ["da"]),  # a file: the shell looks for it
    ],
)
def test_completion(arguments, incomplete, expected):
    complete = ShellComplete(main, {}, "somf", "_SOMF_COMPLETE")
    found = complete.get_completions(arguments, incomplete)
    assert [item.value for item in found] == expected
    if arguments == ["inspect"]:
        assert found[0].type == "file"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_of_completion(shell, monkeypatch):
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)(main, {}, "somf", "_SOMF_COMPLETE").source()
    assert f"_SOMF_COMPLETE={shell}_complete" in script


# -- documentation -------------------------------------------------------------------

DOCUMENT = Path(__file__).parents[1] / "docs" / "command-line.md"


@pytest.mark.slow
@pytest.mark.skipif(not DOCUMENT.exists(), reason="the documentation is not at hand")
def test_examples_of_the_documentation(tmp_path, monkeypatch):
    pytest.importorskip("zarr")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(python|sh)\n(.*?)```", DOCUMENT.read_text(), re.S)
    n_commands = 0
    for language, text in blocks:
        if language == "python":
            exec(text, {})
            continue
        for line in text.splitlines():
            result = somf(*shlex.split(line)[1:])
            assert result.exit_code == 0, line + result.output
            n_commands += 1
    assert n_commands >= 12
    table = DOCUMENT.read_text().split("## Exit codes")[1]
    for code, meaning in re.findall(r"\| (\d+) \| (\w+)", table):
        assert re.search(rf"{code} +{meaning}", somf("--help").stdout)


# -- demo ----------------------------------------------------------------------------


@pytest.mark.slow
def test_demo_writes_a_picture(tmp_path):
    pytest.importorskip("tensorly", reason="the image of the demo comes with it")
    pytest.importorskip("matplotlib", reason="it draws the picture")
    target = tmp_path / "demo.png"
    arguments = ["demo", "--seconds", "1", "--output", str(target)]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    assert str(target) in result.output.replace("\n", "")
    objectives = re.findall(r"objective (\d\.\d+) on held-out", result.output)
    assert len(objectives) == 2
    assert all(0 < float(value) < 0.5 for value in objectives)  # 0.5: all codes zero


def test_demo_names_the_extra_when_the_image_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorly.datasets", None)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert "somf[demo]" in result.output


def test_demo_refuses_a_bad_time():
    result = CliRunner().invoke(main, ["demo", "--seconds", "0"])
    assert result.exit_code == 2
    assert "0" in result.output
