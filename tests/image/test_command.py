"""`somf image`: one command from a file to something to look at."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from scenes import make_image

from somf.cli import main
from somf.image import PatchDictionary

pytestmark = pytest.mark.slow  # they learn dictionaries

SMALL = [
    *("--n-components", "12", "--patch-size", "5", "4", "--n-epochs", "2"),
    *("--n-threads", "1", "--random-state", "0"),
]


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["image", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def cube(tmp_path):
    path = tmp_path / "cube.npy"
    np.save(path, make_image())
    return path


def test_learn_leaves_a_model_and_a_picture(cube, tmp_path):
    facts = json.loads(
        run("learn", cube, "--output", tmp_path / "out", *SMALL, "--json")
    )
    model = PatchDictionary.load(facts["model"])
    assert model.atoms_.shape == (12, 5, 4, 5)
    expected = PatchDictionary(
        12, patch_size=(5, 4), n_epochs=2, n_threads=1, random_state=0
    ).fit(make_image())
    np.testing.assert_array_equal(model.components_, expected.components_)
    picture = np.asarray(Image.open(facts["picture"]))
    grid = expected.atom_grid()
    zoom = 800 // grid.shape[1]
    assert picture.shape == (zoom * grid.shape[0], zoom * grid.shape[1], 3)
    np.testing.assert_allclose(picture[::zoom, ::zoom], 255 * grid, atol=0.51)
    assert 'id="examples"' in Path(facts["report"]).read_text()
    again = run("learn", cube, "--output", tmp_path / "out", *SMALL, code=2)
    assert "is there already: use --overwrite" in again


def test_denoise_with_a_model_and_without(cube, tmp_path):
    run("learn", cube, "--output", tmp_path / "out", *SMALL)
    model = PatchDictionary.load(tmp_path / "out" / "model.safetensors")
    expected = model.denoise(make_image(), 0.2)
    for extra in (["--model", tmp_path / "out"], SMALL):
        target = tmp_path / f"clean{len(extra)}.npy"
        run("denoise", cube, target, "--sigma", 0.2, *extra)
        np.testing.assert_array_equal(np.load(target), expected)


def test_denoise_a_photo(tmp_path):
    rng = np.random.default_rng(0)
    photo = (5 * make_image((32, 30, 3), smooth=9)).clip(0, 255)
    noisy = (photo + 20 * rng.standard_normal(photo.shape)).clip(0, 255)
    Image.fromarray(noisy.astype(np.uint8)).save(tmp_path / "photo.png")
    out = tmp_path / "clean.png"
    facts = json.loads(run("denoise", tmp_path / "photo.png", out, *SMALL, "--json"))
    assert 10 < facts["sigma"] < 30
    clean = np.asarray(Image.open(out), np.float64)
    assert np.mean((clean - photo) ** 2) < 0.5 * np.mean((noisy - photo) ** 2)


def test_png_of_16_bits(tmp_path):
    photo = (1000 * make_image((32, 30, 1), smooth=9)).clip(0, 65535)[:, :, 0]
    assert photo.max() > 5000
    Image.fromarray(photo.astype(np.uint16)).save(tmp_path / "photo.png")
    out = tmp_path / "clean.png"
    run("denoise", tmp_path / "photo.png", out, "--sigma", 5, *SMALL)
    clean = np.asarray(Image.open(out))
    assert clean.dtype == np.uint16
    assert np.abs(clean - photo).mean() < 0.1 * photo.mean()


def test_images_that_no_png_can_hold(tmp_path):
    for name, image in [
        ("unit", make_image((32, 30, 3)) / 1000),
        ("large", make_image((32, 30, 3)) * 1000),
        ("negative", make_image((32, 30, 3)) - 9),
        ("colours", np.full((32, 30, 3), 9, np.uint16)),
    ]:
        np.save(tmp_path / f"{name}.npy", image)
        target = tmp_path / "clean.png"
        assert "write .npy" in run(
            "denoise", tmp_path / f"{name}.npy", target, *SMALL, code=2
        )
        assert not target.exists()


def test_gaps_are_told_before_anything_is_learned(tmp_path, monkeypatch):
    monkeypatch.setattr(PatchDictionary, "fit", None)
    image = make_image()
    image[3, 3] = np.nan
    np.save(tmp_path / "cube.npy", image)
    out = run("denoise", tmp_path / "cube.npy", tmp_path / "x.npy", *SMALL, code=1)
    assert "fill the gaps first" in out


def test_wrong_usage(cube, tmp_path):
    out = run("denoise", cube, tmp_path / "x.tif", code=2)
    assert "must end with .npy or .png" in out
    out = run("denoise", cube, tmp_path / "x.png", code=2)
    assert "can hold 1 or 3 bands, not 5" in out
    out = run("denoise", tmp_path / "none.npy", tmp_path / "x.npy", code=1)
    assert "There is no file" in out
    out = run("denoise", cube, tmp_path / "no" / "x.npy", code=2)
    assert "There is no folder" in out
    model = ["--model", tmp_path / "run", "--n-components", 3, "--n-threads", 1]
    out = run("denoise", cube, tmp_path / "x.npy", *model, code=2)
    assert "leave --n-components out" in out
    assert not (tmp_path / "x.npy").exists()
    out = run("learn", cube, "--output", tmp_path / "y", "--nonzero", 5, code=2)
    assert "nonzero=5.0 must be" in out
    assert not (tmp_path / "y").exists()


def test_denoise_with_a_model_of_some_bands(cube, tmp_path):
    settings = {"patch_size": (5, 4), "n_epochs": 2, "random_state": 0}
    model = PatchDictionary(12, bands=slice(1, 3), n_threads=1, **settings)
    model.fit(make_image()).save(tmp_path / "model.safetensors")
    clean = tmp_path / "clean.npy"
    run("denoise", cube, clean, "--model", tmp_path / "model.safetensors")
    assert np.load(clean).shape == (*make_image().shape[:2], 2)
    np.testing.assert_allclose(np.load(clean), model.denoise(make_image()), rtol=1e-5)
