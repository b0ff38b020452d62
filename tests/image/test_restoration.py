"""Noise goes, gaps are filled, and neither takes more memory than a few rows."""

import tracemalloc

import numpy as np
import pytest
from scenes import make_image, small
from sklearn.decomposition import PCA, MiniBatchDictionaryLearning
from sklearn.feature_extraction.image import (
    extract_patches_2d,
    reconstruct_from_patches_2d,
)

from somf.image.coding import Coder
from somf.image.noise import MeanSpectra, estimate_sigma
from somf.image.overlap import average_overlaps
from somf.image.patches import Preparation, fill_gaps
from somf.threads import Team


def psnr(image, truth):
    span = truth.max() - truth.min()
    return 10 * np.log10(span**2 / np.mean((image - truth) ** 2, dtype=np.float64))


def add_noise(image, sigma, seed=0):
    noise = np.random.default_rng(seed).standard_normal(image.shape)
    return (image + sigma * noise).astype(np.float32)


def quiet(done, total):
    """Take no notice of progress."""


# -- overlapping patches -------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(11, 13, 2), (4, 5, 1), (9, 5, 3)])
def test_patches_that_do_not_change_give_the_image(shape, step):
    image = np.random.default_rng(0).random(shape).astype(np.float32)
    out = np.empty_like(image)
    average_overlaps(image, (4, 5), step, lambda patches: patches, out, quiet)
    np.testing.assert_allclose(out, image, rtol=1e-6)


def test_pixels_are_means_over_patches(monkeypatch):
    """As scikit-learn puts patches together; in small blocks."""
    rng = np.random.default_rng(0)
    image = rng.random((12, 9, 2)).astype(np.float32)
    changed = rng.random((10 * 6, 3, 4, 2)).astype(np.float32)
    given = iter(changed)

    def change(patches):
        return np.array([next(given).ravel() for _ in patches])

    monkeypatch.setattr("somf.image.overlap.BLOCK", 4 * 3 * 4 * 2 * 4)
    out = np.empty_like(image)
    average_overlaps(image, (3, 4), 1, change, out, quiet)
    expected = reconstruct_from_patches_2d(changed, image.shape)
    np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_patches_without_an_opinion_do_not_count():
    image = np.arange(6.0, dtype=np.float32).reshape(2, 3, 1)

    def change(patches):
        patches[patches == 4] = np.nan
        return patches * [[1, 2, 1, 2]]

    out = np.empty_like(image)
    average_overlaps(image, (2, 2), 1, change, out, quiet)
    np.testing.assert_allclose(out[:, :, 0], [[0, 1.5, 4], [3, np.nan, 10]])


def test_prepared_patches_come_back():
    rng = np.random.default_rng(0)
    patches = rng.random((6, 20)).astype(np.float32)
    patches[2, 3:7] = np.nan
    patches[3, 1::2] = np.nan  # a whole band
    patches[4] = 0.5
    for center in (False, True):
        for scale in (False, True):
            how = Preparation(center, scale)
            parts = how.split(patches, 2)
            assert parts[0].dtype == np.float32
            np.testing.assert_allclose(how.join(*parts), patches, atol=1e-6)
    prepared, means, _ = Preparation(True, True).split(patches, 2)
    pixels = patches.reshape(6, 10, 2)
    np.testing.assert_allclose(means[2], np.nanmean(pixels[2], axis=0), rtol=1e-5)
    assert np.isnan(means[3, 1])
    np.testing.assert_allclose(np.nansum(prepared[:2] ** 2, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.nansum(prepared[2] ** 2), 16 / 20, rtol=1e-5)
    filled = fill_gaps(patches, 2)
    np.testing.assert_allclose(filled[2, 3], means[2, 1], rtol=1e-5)
    assert not np.isnan(filled).any()


# -- noise ---------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.5, 30.0])
def test_noise_is_measured(sigma):
    image = 10 * make_image((50, 60, 8), n_sources=3)
    rough = estimate_sigma(image)
    found = estimate_sigma(add_noise(image, sigma))
    assert abs(found - np.hypot(sigma, rough)) < 0.15 * np.hypot(sigma, rough)
    flat = np.tile(np.arange(60.0), (50, 1))[:, :, None]
    assert estimate_sigma(flat) == 0
    assert abs(estimate_sigma(add_noise(flat, sigma)) - sigma) < 0.1 * sigma


def test_mean_spectra_keep_their_subspace():
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.standard_normal((30, 3)))[0]
    clean = 5 * rng.standard_normal((2000, 3)) @ axes.T + 10
    noisy = clean + 0.3 * rng.standard_normal(clean.shape)
    spectra = MeanSpectra(noisy, 0.3**2, 2000)
    assert spectra.axes.shape == (30, 3)
    error = np.mean((spectra.project(noisy) - clean) ** 2)
    assert error < 0.15 * 0.3**2


@pytest.mark.slow
def test_penalty_for_noise_is_near_the_best():
    """Stein's estimate chooses without the truth as well as one who knows it."""
    rng = np.random.default_rng(0)
    D = rng.standard_normal((20, 200)).astype(np.float32)
    codes = rng.standard_normal((300, 20)) * (rng.random((300, 20)) < 0.1)
    clean = (codes @ D).astype(np.float32)
    noisy = add_noise(clean, 3.0)
    with Team(1) as team:
        coder = Coder(D, 1.0, False, team)

        def error(alpha):
            return np.mean((coder.reconstruct(coder.codes(noisy, alpha)) - clean) ** 2)

        alpha = coder.alpha_for_noise(noisy, 3.0)
        best = min(error(3.0 * np.sqrt(200) * f) for f in np.geomspace(0.1, 5, 15))
        assert error(alpha) < 1.15 * best


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["dictionary", "non-negative"])
def test_denoised_image_is_nearer_to_the_truth(setting):
    truth = make_image((48, 44, 12), smooth=12)
    noisy = np.maximum(add_noise(truth, 3.0), 0)
    model = small(40, patch_size=(6, 6), setting=setting, nonzero=0.1).fit(noisy)
    before = psnr(noisy, truth)
    least = 7 if setting == "dictionary" else 5  # dB
    assert psnr(model.denoise(noisy), truth) > before + least
    assert psnr(model.denoise(noisy, 3.0, step=2), truth) > before + least


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Orthogonal matching pursuit ended")
def test_denoises_pines_better_than_pca_and_scikit_learn():
    datasets = pytest.importorskip("tensorly.datasets")
    cube = np.asarray(datasets.load_indian_pines().tensor, np.float32)
    truth = cube[:48, :48, ::10]
    noisy = add_noise(truth, 400)
    pixels = noisy.reshape(-1, truth.shape[2])
    by_pca = max(
        psnr(p.inverse_transform(p.fit_transform(pixels)).reshape(truth.shape), truth)
        for p in (PCA(n) for n in range(1, 12))
    )
    patches = extract_patches_2d(noisy, (6, 6)).reshape(43 * 43, -1)
    centred, means, norms = Preparation(True, True).split(patches, truth.shape[2])
    peer = MiniBatchDictionaryLearning(
        64, alpha=0.3, max_iter=5, random_state=0, transform_n_nonzero_coefs=5
    ).fit(centred)
    back = (peer.transform(centred) @ peer.components_).astype(np.float32)
    joined = Preparation(True, True).join(back, means, norms)
    joined = joined.reshape(-1, 6, 6, truth.shape[2])
    by_peer = psnr(reconstruct_from_patches_2d(joined, truth.shape), truth)
    model = small(64, patch_size=(6, 6)).fit(noisy)
    ours = psnr(model.denoise(noisy, step=1), truth)
    assert ours > by_pca + 0.5
    assert ours > by_peer


@pytest.mark.slow
def test_denoising_reads_and_writes_files_row_by_row(tmp_path):
    """Memory does not grow with the height of the image."""
    rng = np.random.default_rng(0)
    model = small(8).fit(make_image())
    peaks = []
    for height in (40, 240):
        path = tmp_path / f"{height}.npy"
        np.save(path, rng.random((height, 40, 5)).astype(np.float64))
        out = np.lib.format.open_memmap(
            tmp_path / "out.npy", "w+", np.float32, (height, 40, 5)
        )
        model.denoise(path, 0.1, out=out)  # what is compiled is compiled
        tracemalloc.start()
        model.denoise(path, 0.1, out=out)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert np.isfinite(out).all()
    assert peaks[1] < 1.6 * peaks[0]


@pytest.mark.slow
def test_result_does_not_depend_on_where_the_image_is(tmp_path):
    image = make_image()
    np.save(tmp_path / "cube.npy", image)
    model = small().fit(image)
    expected = model.denoise(image, 0.2)
    assert expected.dtype == np.float32
    np.testing.assert_array_equal(model.denoise(tmp_path / "cube.npy", 0.2), expected)
    out = np.empty((40, 36, 5), np.float64)
    assert model.denoise(image, 0.2, out=out) is out
    np.testing.assert_array_equal(out.astype(np.float32), expected)


@pytest.mark.slow
def test_mean_spectra_of_patches_lose_their_noise_too():
    """Means over patches alone would leave a ninth of the noise."""
    truth = np.ones((40, 40, 1), np.float32) * np.arange(30, dtype=np.float32)
    noisy = add_noise(truth, 1.0)
    model = small(8, patch_size=(6, 6)).fit(noisy)
    error = model.denoise(noisy, 1.0, step=1) - truth
    assert np.sqrt(np.mean(error**2)) < 0.06


@pytest.mark.slow
def test_bad_arguments_of_denoise():
    image = make_image()
    model = small().fit(image)
    for wrong, words in [
        (dict(sigma=-1), "sigma=-1 must be"),
        (dict(step=5), "step=5 must be an integer between 1 and 4"),
        (dict(out=np.empty((3, 3, 5))), r"out has shape \(3, 3, 5\); it must be"),
    ]:
        with pytest.raises(ValueError, match=words):
            model.denoise(image, **wrong)
    image[3, 3, 3] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity; fill the gaps first"):
        model.denoise(image)


@pytest.mark.slow
def test_units_do_not_matter():
    image = make_image()
    model = small().fit(image)
    expected = model.denoise(image, 0.3)
    scaled = model.denoise(image * np.float32(1e-8), 0.3e-8)
    np.testing.assert_allclose(scaled * 1e8, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_without_noise_the_image_stays(monkeypatch):
    image = make_image().astype(np.float64)
    model = small().fit(image)
    monkeypatch.setattr("somf.image.dictionary.denoiser", None)  # not needed
    clean = model.denoise(image, 0)
    assert clean.dtype == np.float32
    np.testing.assert_array_equal(clean, image.astype(np.float32))
    flat = np.full_like(image, 3)  # whose noise is measured as 0
    np.testing.assert_array_equal(model.denoise(flat), flat)
    image[3, 3, 3] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity; fill the gaps first"):
        model.denoise(image, 0)


@pytest.mark.slow
def test_axes_are_those_of_the_file(tmp_path):
    image = make_image((20, 18, 1))
    model = small().fit(image)
    for shape in ((20, 18, 1), (20, 18)):
        np.save(tmp_path / "grey.npy", image.reshape(shape))
        assert model.denoise(tmp_path / "grey.npy", 0.1).shape == shape
        assert model.inpaint(tmp_path / "grey.npy").shape == shape


# -- gaps ----------------------------------------------------------------------------


@pytest.mark.slow
def test_results_may_go_where_the_image_is(tmp_path):
    image = make_image()
    model = small().fit(image)
    image[::5, ::7] = np.nan
    expected = model.inpaint(image)
    np.save(tmp_path / "cube.npy", image)
    model.inpaint(image, out=image)
    np.testing.assert_array_equal(image, expected)
    out = np.load(tmp_path / "cube.npy", mmap_mode="r+")
    model.inpaint(tmp_path / "cube.npy", out=out)
    np.testing.assert_array_equal(out, expected)
    denoised = model.denoise(image, 0.2)
    np.testing.assert_array_equal(model.denoise(image, 0.2, out=image), denoised)


@pytest.mark.slow
def test_bad_arguments_of_inpaint():
    image = make_image()
    model = small().fit(image)
    with pytest.raises(ValueError, match=r"has 3 x 36 pixels, less than a patch of"):
        model.inpaint(image[:3])
    with pytest.raises(TypeError, match="out holds int16"):
        model.inpaint(image, out=np.zeros(image.shape, np.int16))
    known = np.ones(image.shape[:2], bool)
    known[4, 4] = False
    image[4, 4] = np.inf
    before = image.copy()
    with pytest.raises(ValueError, match="infinity where it is known"):
        model.inpaint(image, out=image)
    np.testing.assert_array_equal(image, before)
    assert np.isfinite(model.inpaint(image, known)).all()


@pytest.mark.slow
def test_masked_arrays_have_gaps():
    image = make_image()
    known = np.random.default_rng(1).random(image.shape) > 0.1
    masked = np.ma.array(np.where(known, image, -9999), mask=~known)
    gapped = np.where(known, image, np.nan)
    model = small(alpha=0.1).fit(masked)
    expected = small(alpha=0.1).fit(gapped)
    np.testing.assert_array_equal(model.components_, expected.components_)
    np.testing.assert_array_equal(model.inpaint(masked), model.inpaint(gapped))


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["dictionary", "non-negative"])
@pytest.mark.parametrize("per_band", [False, True])
def test_gaps_are_filled_and_the_rest_is_left_alone(setting, per_band):
    truth = make_image((48, 44, 6), smooth=12)
    rng = np.random.default_rng(1)
    known = rng.random(truth.shape if per_band else truth.shape[:2]) > 0.2
    model = small(40, patch_size=(6, 6), setting=setting, nonzero=0.1).fit(truth)
    broken = np.where(known if per_band else known[:, :, None], truth, -99)
    before = broken.copy()
    filled = model.inpaint(broken, known)
    np.testing.assert_array_equal(broken, before)
    np.testing.assert_array_equal(filled[known], truth[known])
    gaps = ~known
    error = np.mean((filled - truth)[gaps] ** 2)
    spread = np.mean((truth - truth.mean(axis=(0, 1)))[gaps] ** 2)
    assert error < (0.1 if setting == "dictionary" else 0.25) * spread


@pytest.mark.slow
def test_nan_is_a_gap_too():
    truth = make_image()
    known = np.random.default_rng(1).random(truth.shape[:2]) > 0.1
    model = small().fit(truth)
    broken = np.where(known[:, :, None], truth, np.nan)
    np.testing.assert_array_equal(model.inpaint(broken), model.inpaint(truth, known))


@pytest.mark.slow
def test_image_without_gaps_stays():
    image = make_image()
    np.testing.assert_array_equal(small().fit(image).inpaint(image), image)


@pytest.mark.slow
def test_gaps_wider_than_patches_remain_with_a_warning():
    image = make_image()
    model = small().fit(image)
    known = np.ones(image.shape[:2], bool)
    known[5:30, 5:30] = False
    with pytest.warns(UserWarning, match="gaps wider than a patch"):
        filled = model.inpaint(image, known)
    assert np.isnan(filled[15, 15]).all()
    assert np.isfinite(filled[6, 6]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.ones((40, 36)), "type float64; it must be boolean"),
        (np.ones((36, 40), bool), r"shape \(36, 40\)"),
        (np.ones((40, 36, 3), bool), "mask has 3 bands, but the image 5"),
    ],
)
def test_bad_masks(mask, words):
    image = make_image()
    model = small().fit(image)
    with pytest.raises(ValueError, match=words):
        model.inpaint(image, mask)


@pytest.mark.slow
def test_long_work_tells_how_far_it_is(monkeypatch, capsys):
    for module in ("dictionary", "training"):
        monkeypatch.setattr(f"somf.image.{module}.PATIENCE", 0)
    image = make_image()
    model = small(progress=True).fit(image)
    assert "warm-up: 4 of 4 batches (100 %)" in capsys.readouterr().err
    model.transform(image, step=7)
    assert "transform: 6 of 6 rows (100 %)" in capsys.readouterr().err
    model.denoise(image, 0.1)
    assert "denoise: 40 of 40 rows (100 %)" in capsys.readouterr().err
    model.set_params(progress=False).denoise(image, 0.1)
    assert not capsys.readouterr().err
