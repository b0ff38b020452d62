"""`somf fit`: what it writes, and its configuration."""

import inspect
import json
import re
import tomllib

import numpy as np
import pytest
from commands import (
    OPTIONS,
    PARAMETERS,
    check_error,
    components,
    read_trace,
    somf,
)

from somf import SOMF, __version__
from somf.cli.settings import Settings


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
