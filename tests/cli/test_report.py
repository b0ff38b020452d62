"""`somf report` and `somf compare`."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, somf

from somf import SOMF


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
