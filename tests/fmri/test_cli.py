"""`somf fmri learn` and `somf demo fmri`."""

import json
import signal
from pathlib import Path

import nibabel
import numpy as np
import pytest
from commands import somf
from nilearn.maskers import NiftiMapsMasker

from somf import SOMF, Interrupted
from somf.fmri import BrainDictionary, simulate
from somf.sources import NiftiSource

OPTIONS = ["--n-components", "4", "--n-epochs", "2", "--random-state", "0"]


@pytest.fixture(scope="module")
def brains():
    return simulate(n_subjects=2, n_volumes=30, n_maps=4, resolution=8)


@pytest.fixture
def files(brains, tmp_path):
    paths = []
    for name, image in zip("ab", brains.images, strict=True):
        paths.append(tmp_path / f"{name}.nii.gz")
        nibabel.save(image, paths[-1])
    nibabel.save(brains.mask_img, tmp_path / "mask.nii.gz")
    return paths


def test_learn_leaves_maps_report_and_model(files, tmp_path):
    output = tmp_path / "maps"
    options = ["--output", output, "--mask", tmp_path / "mask.nii.gz", *OPTIONS]
    result = somf("fmri", "learn", *files, *options, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["n_components"] == 4
    assert 0.3 < facts["covered"] <= 1
    names = {path.name for path in output.iterdir()}
    assert names == {
        *("maps.nii.gz", "maps.tsv", "mask.nii.gz"),
        *("model.safetensors", "report.html", "trace.csv"),
    }
    masker = NiftiMapsMasker(output / "maps.nii.gz", standardize=None).fit()
    assert masker.transform(files[0]).shape == (30, 4)
    assert SOMF.load(output / "model.safetensors").alpha == facts["alpha"]
    assert "iframe" in (output / "report.html").read_text()  # the viewer
    again = somf("fmri", "learn", *files, *options)
    assert again.exit_code == 2
    assert "holds a run already" in again.stderr
    assert somf("fmri", "learn", *files, *options, "--resume").exit_code == 2
    assert somf("report", output).exit_code == 0


def test_confounds_one_for_each_image(files, tmp_path):
    table = tmp_path / "confounds.tsv"
    rows = np.random.default_rng(0).standard_normal((30, 2))
    table.write_text("a\tb\n" + "\n".join(f"{a}\t{b}" for a, b in rows))
    result = somf(
        *("fmri", "learn", *files, "--output", tmp_path / "x", *OPTIONS),
        *("--mask", tmp_path / "mask.nii.gz", "--confounds", table),
    )
    assert result.exit_code == 1
    assert "confounds is a list of 1, and there are 2 images" in result.stderr


def test_a_run_that_was_stopped_goes_on(files, tmp_path, monkeypatch):
    mask = tmp_path / "mask.nii.gz"
    options = ["--mask", mask, "--alpha", "0.01", *OPTIONS]
    whole = somf("fmri", "learn", *files, "--output", tmp_path / "whole", *options)
    assert whole.exit_code == 0, whole.output
    monkeypatch.setattr(
        "somf.fmri.dictionary.BrainDictionary.save_atlas",
        lambda self, path: (_ for _ in ()).throw(OSError("disk full")),
    )
    stopped = ["fmri", "learn", *files, "--output", tmp_path / "stopped", *options]
    assert somf(*stopped).exit_code == 1
    monkeypatch.undo()
    assert "already" in somf(*stopped).stderr
    result = somf(*stopped, "--resume")
    assert result.exit_code == 0, result.output
    models = [
        SOMF.load(tmp_path / name / "model.safetensors").components_
        for name in ("whole", "stopped")
    ]
    np.testing.assert_array_equal(*models)


def test_wrong_parameters_are_wrong_usage(files, tmp_path):
    result = somf("fmri", "learn", *files, "--output", tmp_path / "x", "--coverage", 0)
    assert result.exit_code == 2
    assert "coverage=0.0 must be above 0" in result.stderr
    result = somf("fmri", "learn", *files, "--output", tmp_path / "x", "--space", "MNI")
    assert result.exit_code == 2
    assert "one folder of BIDS derivatives" in result.stderr


def test_a_run_that_is_interrupted_tells_the_command_to_go_on(
    files, tmp_path, monkeypatch
):
    def stop(self, source):
        raise Interrupted(signal.SIGINT, Path("checkpoint-1"))

    monkeypatch.setattr(SOMF, "fit", stop)
    options = ["--mask", tmp_path / "mask.nii.gz", "--alpha", "0.01", *OPTIONS]
    result = somf("fmri", "learn", *files, "--output", tmp_path / "x", *options)
    assert result.exit_code == 130
    assert f"--output {tmp_path / 'x'} --resume" in " ".join(result.stderr.split())
    with pytest.raises(Interrupted, match=r"fit\(imgs, resume=True\)") as caught:
        BrainDictionary(4, alpha=0.01, mask=tmp_path / "mask.nii.gz").fit(files)
    assert caught.value.signal == signal.SIGINT


def test_the_report_takes_confounds_out(brains, tmp_path):
    """A signal that is all confound: with it taken out, the maps explain the rest."""
    rng = np.random.default_rng(0)
    wave = rng.standard_normal(30)
    loud = [
        nibabel.Nifti1Image(image.get_fdata() + 50 * wave, image.affine)
        for image in brains.images
    ]
    tables = [wave[:, None]] * 2
    model = BrainDictionary(4, mask=brains.mask_img, n_epochs=2, random_state=0)
    model.fit(loud, confounds=tables)
    seen = []

    def watch(self, path=None, *, X=None, atoms=None):
        seen.append(X.read(np.arange(30)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SOMF, "report", watch)
        model.report(imgs=loud[:1], confounds=tables[:1])
        model.report(imgs=loud[:1])
    clean, loud_ = (np.abs(np.corrcoef(x.T, wave)[-1, :-1]).mean() for x in seen)
    assert clean < 0.01 < 0.9 < loud_


def test_demo(files, brains, tmp_path, monkeypatch):
    monkeypatch.setattr("somf.cli.demo_fmri.simulate", lambda **_: brains)
    output = tmp_path / "demo.html"
    result = somf("demo", "fmri", "--n-components", 3, "--output", output)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("of a record that was held out") == 2
    assert output.as_uri() in result.stdout.replace("\n", "")
    assert "iframe" in output.read_text()


def test_demo_with_images(brains, tmp_path):
    # As scanned: a mask is computed from the mean, which simulated images do not have.
    brain = 1000 * np.asarray(brains.mask_img.dataobj, np.float32)[..., None]
    image = brains.images[0]
    scanned = tmp_path / "scanned.nii.gz"
    nibabel.save(nibabel.Nifti1Image(image.get_fdata() + brain, image.affine), scanned)
    output = tmp_path / "demo.html"
    result = somf("demo", "fmri", scanned, "--n-components", 2, "--output", output)
    assert result.exit_code == 0, result.output
    assert "held out" not in result.stdout  # there is no other image
    assert "Simulating" not in result.stdout
    assert output.exists()


def test_other_images_are_masked_as_those_of_the_run(brains, tmp_path):
    """The mask of a run is that of its images: others would have another one."""
    shape = brains.mask_img.shape
    inside = np.zeros(shape)
    inside[2:-2, 2:-2, 2:-2] = 1000
    half = inside.copy()
    half[shape[0] // 2 :] = 0
    paths = []
    for name, brain in (("one", inside), ("half", half)):
        noise = np.random.default_rng(0).random((*shape, 30))
        image = nibabel.Nifti1Image(brain[..., None] + noise, brains.mask_img.affine)
        paths.append(tmp_path / f"{name}.nii.gz")
        nibabel.save(image, paths[-1])
    one, other = paths
    run = tmp_path / "run"
    settings = ["--output", run, "--alpha", "0.01", *OPTIONS]
    result = somf("fit", one, "--val", other, *settings)
    assert result.exit_code == 0, result.output
    assert np.count_nonzero(NiftiSource(other).masker.mask_img_.get_fdata()) < (
        0.7 * SOMF.load(run / "model.safetensors").n_features_in_
    )
    for model in (run, run / "model.safetensors"):
        codes = tmp_path / f"{model.name}.npy"
        result = somf("transform", model, other, "--output", codes)
        assert result.exit_code == 0, result.output
        assert np.load(codes).shape == (30, 4)
        assert somf("score", model, other).exit_code == 0
