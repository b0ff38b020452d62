"""`somf transform`, `score`, `inspect`, `convert` and `plan`."""

import json
import os

import numpy as np
import pytest
from commands import PARAMETERS, check_error, somf

from somf import SOMF
from somf.checkpoints import find


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
