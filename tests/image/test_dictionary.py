"""A dictionary of patches: what it learns, how sparse codes are, what it keeps."""

import numpy as np
import pytest
from scenes import make_image, small
from sklearn.base import clone
from sklearn.feature_extraction.image import extract_patches_2d
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from somf import SOMF
from somf.image import PatchDictionary
from somf.sources import PatchSource

pytestmark = pytest.mark.slow  # they learn dictionaries

SETTINGS = ["dictionary", "non-negative"]


@pytest.fixture(scope="module")
def image():
    return make_image()


@pytest.fixture(scope="module")
def pines():
    datasets = pytest.importorskip("tensorly.datasets")
    return np.asarray(datasets.load_indian_pines().tensor, np.float32)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("size", [8, 16])
def test_codes_of_a_real_image_are_as_sparse_as_asked(pines, setting, size):
    cube = pines[:, :, ::20]
    model = small(64, setting=setting, patch_size=(size, size)).fit(cube)
    codes = model.transform(cube, step=5)
    assert 0.02 <= np.mean(codes != 0) <= 0.045


@pytest.mark.parametrize("nonzero", [0.1, 0.4])
def test_nonzero_is_what_it_says(image, nonzero):
    model = small(nonzero=nonzero).fit(image)
    share = np.mean(model.transform(image, step=2) != 0)
    assert abs(share - nonzero) < 0.25 * nonzero


@pytest.mark.parametrize("setting", SETTINGS)
def test_it_is_somf_on_patches(image, setting):
    """With a given alpha there is nothing else."""
    signed = setting == "dictionary"
    alpha = 0.1 if signed else 0.5
    model = small(setting=setting, alpha=alpha, step=2).fit(image)
    patches = PatchSource(image, (5, 4), center=signed, scale=signed, step=2)
    preset = SOMF.dictionary_learning if signed else SOMF.nmf
    plain = preset(12, alpha=alpha, n_epochs=3, n_threads=1, random_state=0)
    plain.fit(patches)
    np.testing.assert_array_equal(model.components_, plain.components_)
    assert model.alpha_ == alpha


def test_non_negative_factors(image):
    model = small(setting="non-negative").fit(image)
    assert model.atoms_.min() >= 0
    codes = model.transform(image)
    assert codes.min() >= 0
    assert codes.max() > 0


def test_code_map_belongs_to_pixels(image):
    """Inside the image, codes are those of the patch centred on the pixel."""
    model = small().fit(image)
    codes = model.transform(image)
    assert codes.shape == (40, 36, 12)
    patches = PatchSource(image, (5, 4), center=True, scale=True)
    expected = model.model_.transform(patches).reshape(36, 33, 12)
    inner = codes[2 : 2 + 36, 2 : 2 + 33]
    np.testing.assert_allclose(inner, expected, atol=1e-4)
    np.testing.assert_array_equal(model.transform(image, step=3), codes[::3, ::3])


def test_borders_are_mirrors(image):
    model = small().fit(image)
    wide = np.pad(image, [(8, 8), (8, 8), (0, 0)], "symmetric")
    expected = model.transform(wide)[8:-8, 8:-8]
    assert expected[0].any()
    np.testing.assert_allclose(model.transform(image), expected, atol=1e-5)


def test_files_maps_and_arrays_give_the_same(image, tmp_path):
    np.save(tmp_path / "cube.npy", image)
    np.save(tmp_path / "other.npy", np.asfortranarray(image.astype(np.float64)))
    expected = small().fit(image)
    for name in ("cube.npy", "other.npy"):
        model = small().fit(tmp_path / name)
        np.testing.assert_array_equal(model.components_, expected.components_)
        codes = model.transform(tmp_path / name)
        np.testing.assert_array_equal(codes, expected.transform(image))


def test_several_images(image):
    halves = [image[:22], image[18:]]
    model = small(step=1).fit(halves)
    assert model.model_.n_features_in_ == 100
    same = small(step=1).fit(tuple(halves))
    np.testing.assert_array_equal(same.components_, model.components_)
    again = small(step=1).fit(halves[:1])
    assert not np.array_equal(model.components_, again.components_)
    with pytest.raises(ValueError, match=r"The images have \[5, 3\] bands"):
        small().fit([image, image[:, :, :3]])


def test_bands(image):
    model = small(bands=slice(0, None, 2)).fit(image)
    expected = small().fit(image[:, :, ::2])
    np.testing.assert_array_equal(model.components_, expected.components_)
    np.testing.assert_array_equal(
        model.transform(image), expected.transform(image[:, :, ::2])
    )
    assert model.denoise(image).shape == (40, 36, 3)


def test_large_images_are_read_in_larger_steps(monkeypatch, image):
    seen = []
    monkeypatch.setattr("somf.image.dictionary.MOST_PATCHES", 200)
    monkeypatch.setattr(
        "somf.image.dictionary.SOMF.fit",
        lambda self, source: seen.append(source.shape[0]) or self,
    )
    built = []
    monkeypatch.setattr(
        "somf.image.form.PatchSource",
        lambda *args, **how: built.append(how["step"]) or PatchSource(*args, **how),
    )
    small(alpha=0.1).fit(image)
    assert 100 < seen[0] <= 200
    assert len(built) == 1  # each may copy the image


def test_grey_image():
    image = make_image()[:, :, 0]
    model = small(patch_size=(6, 6)).fit(image)
    assert model.atoms_.shape == (12, 6, 6, 1)
    assert model.denoise(image).shape == image.shape
    assert model.atom_grid().ndim == 2


def test_atoms_to_look_at(image):
    model = small(10).fit(image)
    assert model.atoms_.shape == (10, 5, 4, 5)
    np.testing.assert_array_equal(model.atoms_.reshape(10, -1), model.components_)
    expected = np.sqrt(np.mean(model.atoms_**2, axis=(1, 2)))
    np.testing.assert_allclose(model.atom_spectra_, expected, rtol=1e-6)
    grid = model.atom_grid((4, 2, 0))
    assert grid.shape == (3 * 6 + 1, 4 * 5 + 1, 3)
    assert grid.min() >= 0
    assert grid.max() <= 1
    most_used = model.atoms_[np.argmax(np.diagonal(model.model_.state_.C))]
    bands = np.sqrt(np.mean(model.atoms_**2, axis=(0, 1, 2)))
    first = (most_used / bands)[:, :, [4, 2, 0]]
    seen = grid[1:6, 1:5]
    assert np.corrcoef(first.ravel(), seen.ravel())[0, 1] > 0.99
    assert model.atom_grid(2, n_atoms=4, n_columns=4).shape == (7, 21)
    with pytest.raises(ValueError, match="must be 1 or 3 numbers"):
        model.atom_grid((0, 1))
    for name in ("n_atoms", "n_columns"):
        with pytest.raises(ValueError, match=f"{name}=0 must be an integer"):
            model.atom_grid(**{name: 0})


def test_mean_spectra_of_non_negative_atoms(image):
    model = small(setting="non-negative").fit(image)
    expected = model.atoms_.mean(axis=(1, 2))
    np.testing.assert_allclose(model.atom_spectra_, expected, rtol=1e-6)


@pytest.mark.parametrize("bands", [None, slice(1, None, 2), [4, 0]])
def test_saved_and_loaded(image, tmp_path, bands):
    model = small(bands=bands).fit(image)
    model.save(tmp_path / "model.safetensors")
    again = PatchDictionary.load(tmp_path / "model.safetensors")
    assert again.get_params() == model.get_params()
    np.testing.assert_array_equal(again.transform(image), model.transform(image))
    inner = SOMF.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(inner.components_, model.components_)
    inner.save(tmp_path / "inner.safetensors")
    with pytest.raises(ValueError, match="is a SOMF model, not a PatchDictionary"):
        PatchDictionary.load(tmp_path / "inner.safetensors")


def test_numpy_numbers_as_parameters_are_saved(image, tmp_path):
    model = small(
        np.int64(6),
        nonzero=np.float32(0.25),
        patch_size=np.array([5, 4]),
        bands=[np.int64(1), 2],
        random_state=np.int64(3),
    ).fit(image)
    model.save(tmp_path / "model.safetensors")
    again = PatchDictionary.load(tmp_path / "model.safetensors")
    assert (again.n_components, again.nonzero, again.random_state) == (6, 0.25, 3)
    assert again.patch_size == (5, 4)
    np.testing.assert_array_equal(again.transform(image), model.transform(image))


def test_parameters_set_after_the_training_wait_for_the_next(image, tmp_path):
    model = small().fit(image)
    expected = [model.atoms_, model.transform(image), model.denoise(image, 0.2)]
    model.set_params(
        patch_size=(4, 5), setting="non-negative", bands=[0], code_l1_ratio=0.5
    )
    model.save(tmp_path / "model.safetensors")
    for m in (model, PatchDictionary.load(tmp_path / "model.safetensors")):
        found = [m.atoms_, m.transform(image), m.denoise(image, 0.2)]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
    assert model.fit(image).atoms_.shape == (12, 4, 5, 1)


def test_same_seed_same_bits(image):
    first, second = (small().fit(image) for _ in range(2))
    np.testing.assert_array_equal(first.components_, second.components_)
    assert first.alpha_ == second.alpha_
    assert clone(first).get_params() == first.get_params()


def test_patches_in_a_pipeline():
    """Patches of two sceneries are told apart, in scikit-learn's cross-validation."""
    images = [make_image((30, 60, 4), seed) for seed in (1, 2)]
    patches = np.concatenate(
        [
            extract_patches_2d(image, (6, 6), max_patches=120, random_state=0)
            for image in images
        ]
    )
    labels = np.repeat([0, 1], 120)
    features = small(patch_size=(6, 6), setting="non-negative", nonzero=0.2)
    pipeline = make_pipeline(features, StandardScaler(), LogisticRegression())
    scores = cross_val_score(pipeline, patches, labels, cv=3)
    assert scores.mean() > 0.8
    codes = features.fit(patches).transform(patches)
    assert codes.shape == (240, 12)


def test_grey_patches_need_an_axis_for_their_bands(image):
    patches = extract_patches_2d(image[:, :, 0], (5, 4), max_patches=60, random_state=0)
    with pytest.raises(ValueError, match=r"Give X\[\.\.\., None\] for patches"):
        small().fit(patches)
    model = small().fit(patches[..., None])
    assert model.transform(patches[..., None]).shape == (60, 12)


def test_training_with_gaps(image):
    """What is not known does not matter: atoms are about as good as without gaps."""
    gapped = image.copy()
    gapped[::5, ::7] = np.nan
    gapped[20, 20, 2] = np.nan
    model = small(alpha=0.1).fit(gapped)
    assert np.isfinite(model.components_).all()
    spoilt = np.where(np.isnan(gapped), 10, gapped)
    patches = PatchSource(image, (5, 4), center=True, scale=True)
    score, best, worst = (
        m.model_.score(patches)
        for m in (model, small(alpha=0.1).fit(image), small(alpha=0.1).fit(spoilt))
    )
    assert score > best - 0.2 * (best - worst)
    stack, whole = (
        np.array([x[i : i + 5, i : i + 4] for i in range(20)]) for x in (gapped, image)
    )
    assert np.isnan(stack).any(axis=(1, 2, 3)).mean() > 0.3
    codes, expected = model.transform(stack), model.transform(whole)
    cosine = np.sum(codes * expected) / np.linalg.norm(codes) / np.linalg.norm(expected)
    assert cosine > 0.9


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (dict(setting="nmf"), "setting='nmf' must be one of"),
        (dict(alpha="low"), "alpha='low' must be a number"),
        (dict(nonzero=0), "nonzero=0 must be a number"),
        (dict(patch_size=8), "patch_size=8 must be two whole numbers"),
        (dict(patch_size=(50, 4)), r"patch_size=\(50, 4\) must be between"),
        (dict(bands=[7]), "must be numbers of bands from 0 to 4"),
        (dict(step=0), "step=0 must be an integer"),
        (dict(code_l1_ratio=0), "code_l1_ratio=0 must be"),
    ],
)
def test_bad_parameters(image, wrong, words):
    model = small(**wrong)
    with pytest.raises((ValueError, TypeError), match=words):
        model.fit(image)
    assert not hasattr(model, "model_")


def test_images_that_do_not_suit(image):
    with pytest.raises(ValueError, match="infinity"):
        small().fit(np.full((9, 9), np.inf))
    with pytest.raises(ValueError, match="list of images is empty"):
        small().fit([])
    with pytest.raises(ValueError, match="holds nothing but NaN"):
        small().fit([image, np.full_like(image, np.nan)])
    for numbers in ([[1.0, 2.0], [3.0, 4.0]], [1.0, 2.0], [image.tolist()]):
        with pytest.raises(TypeError, match=r"nested lists of numbers: np\.asarray"):
            small().fit(numbers)
    unfitted = small()
    with pytest.raises(TypeError, match="fit_transform takes one image"):
        unfitted.fit_transform([image, image])
    assert not hasattr(unfitted, "model_")
    model = small().fit(image)
    with pytest.raises(ValueError, match="has 4 bands; the dictionary was learned"):
        model.transform(image[:, :, :4])
    with pytest.raises(ValueError, match="holds NaN or infinity; fill the gaps"):
        model.transform(np.full_like(image, np.nan))
    with pytest.raises(TypeError, match="Only fit takes a list of images"):
        model.transform([image])


@pytest.mark.slow
def test_report_shows_atoms_and_patches(tmp_path):
    pytest.importorskip("jinja2", reason="reports need it")
    image = make_image()
    model = small().fit(image)
    page = model.report(tmp_path / "report.html", image=image)
    assert (tmp_path / "report.html").read_text() == page.html
    assert 'id="examples"' in page.html
    assert 'alt="Atom 0"' in page.html
    assert 'id="examples"' not in model.report().html
