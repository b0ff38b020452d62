"""Volumes are masked once, as nilearn does it, and never taken for others."""

import gc
import logging
import os
import pickle
import sys

import nibabel
import numpy as np
import pytest
from nilearn.maskers import MultiNiftiMasker, NiftiMasker, SurfaceMasker
from nilearn.masking import compute_multi_epi_mask
from nilearn.surface import InMemoryMesh, PolyMesh, SurfaceImage

from somf.sources import NiftiSource
from somf.sources import nifti as nifti_module
from somf.testing import SourceContract

SHAPE = (3, 3, 2)
RAW = {"standardize": False, "detrend": False}


def image_of(X, shape=SHAPE):
    """Samples as the volumes of an image, all of whose voxels are features."""
    data = np.moveaxis(X.reshape(len(X), *shape), 0, -1)
    return nibabel.Nifti1Image(data, np.eye(4))


def full_mask(shape=SHAPE):
    return nibabel.Nifti1Image(np.ones(shape, np.uint8), np.eye(4))


def noise(n_volumes=12, n_voxels=18, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n_volumes, n_voxels)).astype(np.float32) + 5


def save(path, X, shape=SHAPE):
    nibabel.save(image_of(X, shape), path)
    return path


def read_all(source):
    return source.read(np.arange(source.shape[0]))


class TestFiles(SourceContract):
    def make(self, X, tmp_path):
        paths = [
            save(tmp_path / f"{i}.nii.gz", part)
            for i, part in enumerate(np.split(X, [10, 12]))
        ]
        return NiftiSource(paths, mask_img=full_mask(), cache=tmp_path / "cache", **RAW)


class TestImagesInMemory(SourceContract):
    def make(self, X, tmp_path):
        one_volume = nibabel.Nifti1Image(X[9].reshape(SHAPE), np.eye(4))
        images = [image_of(X[:9]), one_volume, image_of(X[10:])]
        masker = NiftiMasker(full_mask(), standardize=None, reports=False)
        return NiftiSource(images, masker.fit())


def surface_mesh(n_left=10, n_right=8):
    """Two strips of triangles."""
    parts = {}
    for name, n in (("left", n_left), ("right", n_right)):
        points = np.column_stack([np.arange(n) // 2, np.arange(n) % 2, np.zeros(n)])
        faces = [(i, i + 1, i + 2) for i in range(n - 2)]
        parts[name] = InMemoryMesh(points.astype(float), np.array(faces))
    return PolyMesh(**parts)


def surface_of(X):
    """Samples as an image on both hemispheres."""
    data = {"left": X[:, :10].T, "right": X[:, 10:].T}
    return SurfaceImage(mesh=surface_mesh(), data=data)


class TestSurfaces(SourceContract):
    def make(self, X, tmp_path):
        images = [surface_of(X[:9]), surface_of(X[9:])]
        masker = SurfaceMasker(standardize=None).fit(images[0])
        return NiftiSource(images, masker)


# Masking


def test_confounds_are_taken_out_of_their_image(tmp_path):
    X, trend = noise(), np.linspace(-1, 1, 12)[:, None]
    with_trend = X + 10 * trend
    images = [image_of(X), image_of(with_trend)]
    for masker in (NiftiMasker, MultiNiftiMasker):
        fitted = masker(full_mask(), standardize=None).fit()
        source = NiftiSource(images, fitted, confounds=[None, trend], cache=tmp_path)
        raw, clean = np.split(read_all(source), 2)
        np.testing.assert_allclose(raw, X, rtol=1e-5)
        assert np.abs(trend.T @ clean).max() < 1e-3
    # The signals of an image with other confounds, or none, are other signals.
    without = NiftiSource(images, fitted, cache=tmp_path)
    np.testing.assert_allclose(read_all(without)[12:], with_trend, rtol=1e-5)


def test_confounds_in_a_file_that_changes(tmp_path):
    X, path = noise(), tmp_path / "confounds.tsv"
    masker = NiftiMasker(full_mask(), standardize=None).fit()
    found = []
    for column in (np.linspace(-1, 1, 12), np.linspace(-1, 1, 12) ** 2):
        rows = [f"{value:.6f}\t{value**3:.6f}" for value in column]
        path.write_text("\n".join(["trend\tcubic", *rows]))
        os.utime(path, ns=(len(found), len(found)))
        source = NiftiSource(
            image_of(X), masker, confounds=[str(path)], cache=tmp_path / "cache"
        )
        found.append(read_all(source))
    assert np.abs(found[0] - found[1]).max() > 0.01


@pytest.mark.parametrize("confounds", [[None, None], np.zeros((12, 1)), []])
def test_confounds_that_do_not_match_the_images(confounds):
    with pytest.raises(ValueError, match=r"there are 1 images. Give a list"):
        NiftiSource(image_of(noise()), mask_img=full_mask(), confounds=confounds)


def test_a_surface_of_another_shape_is_another_image(tmp_path):
    X = noise()
    image, moved = surface_of(X), surface_of(X)
    for part in moved.mesh.parts.values():
        part.coordinates[:, 0] *= 3
    keys = []
    for one in (image, moved):
        masker = SurfaceMasker(smoothing_fwhm=2, standardize=None).fit(one)
        source = NiftiSource(one, masker, cache=tmp_path)
        keys.append(source.feature_key)
        read_all(source)
    assert keys[0] != keys[1]
    assert len(list(tmp_path.glob("*.npy"))) == 2


@pytest.mark.filterwarnings("ignore:imgs are being resampled")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # inside of nilearn
def test_an_image_that_was_moved_in_memory(tmp_path):
    X = noise()
    image = nibabel.load(save(tmp_path / "a.nii.gz", X))
    affine = np.eye(4)
    affine[0, 3] = 1
    image.set_sform(affine)
    image.set_qform(affine)
    source = NiftiSource(image, mask_img=full_mask(), **RAW)
    assert np.abs(read_all(source) - X).max() > 1  # resampled to the mask


def test_the_key_of_features_is_that_of_the_mask():
    image, mask = image_of(noise()), full_mask()
    other = np.ones(SHAPE, np.uint8)
    other[0, 0, 0] = 0
    moved = nibabel.Nifti1Image(np.ones(SHAPE, np.uint8), np.diag([2.0, 2, 2, 1]))
    masks = [mask, full_mask(), nibabel.Nifti1Image(other, np.eye(4)), moved]
    keys = [NiftiSource(image, mask_img=m, **RAW).feature_key for m in masks]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    again = pickle.loads(pickle.dumps(NiftiSource(image, mask_img=mask, **RAW)))
    assert again.feature_key == keys[0]


def test_the_key_of_features_survives_a_file(tmp_path):
    """Files keep another order of the bytes, and rounded affines."""
    affine = np.diag([1 / 3, 0.1, 0.7, 1])
    values = np.random.default_rng(0).integers(0, 2, SHAPE).astype(np.uint8)
    mask = nibabel.Nifti1Image(values, affine)
    mask.to_filename(tmp_path / "mask.nii.gz")
    image = nibabel.Nifti1Image(np.zeros((*SHAPE, 3), np.float32), affine)
    keys = [
        NiftiSource(image, mask_img=m, **RAW).feature_key
        for m in (mask, str(tmp_path / "mask.nii.gz"))
    ]
    assert keys[0] == keys[1]


def brain(seed=0, size=12, n_volumes=6):
    """A bright ball in the dark, big enough for nilearn to find."""
    rng = np.random.default_rng(seed)
    axes = np.indices((size,) * 3) - (size - 1) / 2
    inside = (axes**2).sum(axis=0) < (size / 3) ** 2
    data = rng.standard_normal((size, size, size, n_volumes)) + 1
    data[inside] += 100
    return nibabel.Nifti1Image(data.astype(np.float32), np.diag([3.0, 3, 3, 1]))


def test_signals_are_those_of_nilearn():
    images = [brain(0), brain(1)]
    source = NiftiSource(images, smoothing_fwhm=4)
    mask = compute_multi_epi_mask(images)
    masker = NiftiMasker(
        mask, standardize="zscore_sample", detrend=True, smoothing_fwhm=4
    )
    expected = np.concatenate([masker.fit().transform(image) for image in images])
    assert source.shape == expected.shape
    assert 20 < source.shape[1] < 12**3
    np.testing.assert_allclose(read_all(source), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "mean", "deviation"),
    [
        (RAW, 5, None),
        ({"standardize": None}, 0, 1),
        ({"standardize": True}, 0, 1),
        ({"standardize": "zscore_sample", "detrend": False}, 0, 1),
        ({"standardize": "psc", "detrend": False}, 0, None),
    ],
    ids=str,
)
def test_standardization(options, mean, deviation):
    signals = read_all(
        NiftiSource(image_of(noise(400)), mask_img=full_mask(), **options)
    )
    np.testing.assert_allclose(signals.mean(axis=0), mean, atol=0.2)
    if deviation is not None:
        np.testing.assert_allclose(signals.std(axis=0, ddof=1), deviation, atol=1e-2)


def test_trends_are_removed_if_wanted():
    X = noise(50) + np.arange(50, dtype=np.float32)[:, None]
    straight, raw = (
        read_all(
            NiftiSource(
                image_of(X), mask_img=full_mask(), standardize=False, detrend=detrend
            )
        )
        for detrend in (True, False)
    )
    assert abs(np.polyfit(np.arange(50), straight[:, 0], 1)[0]) < 1e-3
    np.testing.assert_array_equal(raw, X)


def test_only_voxels_of_the_mask_are_features(tmp_path):
    mask = np.zeros(SHAPE, np.uint8)
    mask[1] = 1
    nibabel.save(nibabel.Nifti1Image(mask, np.eye(4)), tmp_path / "mask.nii")
    X = noise()
    source = NiftiSource(image_of(X), mask_img=tmp_path / "mask.nii", **RAW)
    assert source.shape == (12, 6)
    np.testing.assert_array_equal(read_all(source), X[:, mask.ravel() > 0])


def test_images_that_do_not_fit_are_resampled_with_a_warning():
    mask = np.array([[1, 1], [1, 0]], np.uint8)[..., None]
    coarse = nibabel.Nifti1Image(mask, np.diag([2.0, 2, 2, 1]))
    source = NiftiSource(image_of(noise()), mask_img=coarse, **RAW)
    with pytest.warns(UserWarning, match="resampled"):
        assert source.read(np.array([0])).shape == (1, 3)


def test_components_become_images():
    source = NiftiSource(image_of(noise()), mask_img=full_mask(), **RAW)
    image = source.inverse_transform(read_all(source)[:3])
    np.testing.assert_array_equal(image.get_fdata(), image_of(noise()[:3]).get_fdata())


def test_double_precision_if_wanted():
    X = noise().astype(np.float64) / 3
    source = NiftiSource(image_of(X), mask_img=full_mask(), dtype=np.float64, **RAW)
    assert source.dtype == np.float64
    np.testing.assert_array_equal(read_all(source), X)


# When images are masked


@pytest.fixture
def masked(monkeypatch):
    """Note which images are masked."""
    images = []
    transform = NiftiMasker.transform

    def note(self, image, *args, **kwargs):
        images.append(image)
        return transform(self, image, *args, **kwargs)

    monkeypatch.setattr(NiftiMasker, "transform", note)
    return images


def three_files(folder):
    return [str(save(folder / f"{i}.nii", noise(4, seed=i))) for i in range(3)]


def test_images_are_masked_once_when_they_are_read(tmp_path, masked):
    paths = three_files(tmp_path)
    source = NiftiSource(paths, mask_img=full_mask(), **RAW)
    assert masked == []
    for _ in range(2):
        source.read(np.array([5, 6]))
        assert masked == [paths[1]]
    read_all(source)
    assert masked == [paths[1], paths[0], paths[2]]


def test_all_images_at_once(tmp_path, masked, caplog):
    paths = three_files(tmp_path)
    source = NiftiSource(paths, mask_img=full_mask(), **RAW)
    seen = []
    with caplog.at_level(logging.INFO, "somf"):
        source.prepare(lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert masked == paths
    assert f"Masking image 2 of 3, {paths[1]}, 4 volumes" in caplog.messages
    source.prepare()
    read_all(source)
    assert masked == paths


def test_lasting_folder_spares_masking(tmp_path, masked):
    paths = three_files(tmp_path)
    options = {"mask_img": full_mask(), "cache": tmp_path / "a" / "b", **RAW}
    first = NiftiSource(paths, **options)
    signals = read_all(first)
    del masked[:]
    again = read_all(NiftiSource(paths, **options))
    copy = read_all(pickle.loads(pickle.dumps(first)))
    assert masked == []
    np.testing.assert_array_equal(signals, again)
    np.testing.assert_array_equal(signals, copy)
    files = list((tmp_path / "a" / "b").iterdir())
    assert [path.suffix for path in files] == [".npy"] * 3
    assert {np.load(path).dtype.name for path in files} == {"float32"}


def test_images_with_the_same_data_share_a_file(tmp_path, masked):
    options = {"mask_img": full_mask(), "cache": tmp_path, **RAW}
    for _ in range(2):
        read_all(NiftiSource(image_of(noise()), **options))
    assert len(masked) == 1
    read_all(NiftiSource(image_of(noise(seed=1)), **options))
    assert len(masked) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"standardize": "psc"},
        {"detrend": True},
        {"smoothing_fwhm": 2.0},
        {"dtype": np.float64},
        {"mask_img": nibabel.Nifti1Image(np.tri(3, 3)[..., None] * [1, 1], np.eye(4))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_masking_is_not_confused(tmp_path, masked, change):
    path = save(tmp_path / "X.nii", noise())
    options = {"mask_img": full_mask(), "cache": tmp_path / "cache", **RAW}
    read_all(NiftiSource(path, **options))
    changed = NiftiSource(path, **options | change)
    fresh = NiftiSource(path, **options | change | {"cache": None})
    np.testing.assert_array_equal(read_all(changed), read_all(fresh))
    assert len(masked) == 3


def test_what_does_not_change_signals_does_not_count(tmp_path, masked):
    path = save(tmp_path / "X.nii", noise())
    for verbose in (0, 1):
        masker = NiftiMasker(full_mask(), standardize=None, verbose=verbose)
        read_all(NiftiSource(path, masker.fit(), cache=tmp_path / "cache"))
    assert len(masked) == 1


def test_changed_file_is_not_confused(tmp_path):
    options = {"mask_img": full_mask(), "cache": tmp_path / "cache", **RAW}
    path = save(tmp_path / "X.nii", noise())
    read_all(NiftiSource(path, **options))
    save(path, noise(seed=1))  # of the same size
    os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 1))
    np.testing.assert_array_equal(read_all(NiftiSource(path, **options)), noise(seed=1))


def test_loaded_images_are_known_by_their_files(tmp_path):
    path = save(tmp_path / "X.nii", noise())
    source = NiftiSource(nibabel.load(path), mask_img=full_mask(), **RAW)
    assert source.images == [str(path)]
    changed = nibabel.load(path)
    changed = nibabel.Nifti1Image(changed.get_fdata() + 1, changed.affine)
    changed.set_filename(path)
    source = NiftiSource(changed, mask_img=full_mask(), **RAW)
    np.testing.assert_allclose(read_all(source), noise() + 1)


def test_temporary_folder_goes_with_the_source():
    source = NiftiSource(image_of(noise()), mask_img=full_mask(), **RAW)
    read_all(source)
    folder = source._temporary
    assert len(list(folder.iterdir())) == 1
    del source
    gc.collect()
    assert not folder.exists()


def test_copies_carry_no_signals(tmp_path):
    path = save(tmp_path / "X.nii", noise(400))
    source = NiftiSource(path, mask_img=full_mask(), **RAW)
    before = len(pickle.dumps(source))
    signals = read_all(source)
    assert len(pickle.dumps(source)) < before + signals.nbytes / 10


def test_copies_have_a_temporary_folder_of_their_own():
    source = NiftiSource(image_of(noise()), mask_img=full_mask(), **RAW)
    read_all(source)
    copy = pickle.loads(pickle.dumps(source))
    del source
    gc.collect()
    np.testing.assert_array_equal(read_all(copy), noise())


def test_files_are_there_only_when_complete(tmp_path, monkeypatch):
    source = NiftiSource(
        image_of(noise()), mask_img=full_mask(), cache=tmp_path / "cache", **RAW
    )

    def break_off(file, signals):
        file.write(b"half of it")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", break_off)
        with pytest.raises(OSError, match="disk full"):
            read_all(source)
    assert list((tmp_path / "cache").iterdir()) == []
    np.testing.assert_array_equal(read_all(source), noise())


def test_few_files_are_open_at_a_time(monkeypatch):
    monkeypatch.setattr(nifti_module, "OPEN_MAPS", 2)
    images = [image_of(noise(3, seed=seed)) for seed in range(5)]
    source = NiftiSource(images, mask_img=full_mask(), **RAW)
    X = np.concatenate([noise(3, seed=seed) for seed in range(5)])
    np.testing.assert_array_equal(read_all(source), X)
    assert list(source._maps) == [3, 4]
    source.read(np.array([9]))  # of image 3
    source.read(np.array([0]))
    assert list(source._maps) == [3, 0]


# Errors


def test_number_of_dimensions(tmp_path):
    flat = nibabel.Nifti1Image(np.zeros((3, 3), np.float32), np.eye(4))
    nibabel.save(flat, tmp_path / "flat.nii")
    with pytest.raises(ValueError, match=r"flat\.nii has 2 dim.*\(3, 3\).*must have 4"):
        NiftiSource(tmp_path / "flat.nii", mask_img=full_mask())
    deep = nibabel.Nifti1Image(np.zeros((3, 3, 3, 2, 2), np.float32), np.eye(4))
    with pytest.raises(ValueError, match=r"in memory has 5 dimensions"):
        NiftiSource(deep, mask_img=full_mask())


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*nowhere\.nii; .*looked up"):
        NiftiSource(tmp_path / "nowhere.nii")


@pytest.mark.parametrize("name", ["X.nii", "X.nii.gz"])
@pytest.mark.parametrize("content", [b"hello", b"\x1f\x8b\x08\x00hello"])
def test_file_that_is_no_image(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is not a readable NIfTI image"):
        NiftiSource(tmp_path / name)


def test_file_with_a_broken_header(tmp_path):
    path = save(tmp_path / "X.nii", noise())
    header = bytearray(path.read_bytes())
    header[70:72] = b"\xff\x7f"  # the type of the values
    path.write_bytes(header)
    with pytest.raises(ValueError, match=r"X\.nii is not a readable .*not recognized"):
        NiftiSource(path)


def test_empty_file(tmp_path):
    (tmp_path / "X.nii").touch()
    with pytest.raises(ValueError, match=r"X\.nii is empty \(0 bytes\)"):
        NiftiSource(tmp_path / "X.nii")


def test_no_images():
    with pytest.raises(ValueError, match="images is empty"):
        NiftiSource([])


def test_arrays_are_no_images():
    with pytest.raises(TypeError, match=r"ndarray.*must be a path or an image"):
        NiftiSource([np.zeros((3, 3, 2, 5))])


def test_masker_must_be_fitted():
    with pytest.raises(ValueError, match=r"no mask yet; fit it first"):
        NiftiSource(image_of(noise()), NiftiMasker())


@pytest.mark.parametrize(
    "option",
    [{"mask_img": "mask.nii"}, {"detrend": False}, {"standardize": False}],
    ids=str,
)
def test_masker_decides_alone(option):
    masker = NiftiMasker(full_mask(), reports=False).fit()
    with pytest.raises(
        ValueError, match=rf"{next(iter(option))} cannot .*beside masker"
    ):
        NiftiSource(image_of(noise()), masker, **option)


def test_masker_must_keep_all_volumes(monkeypatch):
    source = NiftiSource(image_of(noise()), mask_img=full_mask(), **RAW)
    monkeypatch.setattr(NiftiMasker, "transform", lambda *_, **__: noise()[:-1])
    with pytest.raises(
        ValueError, match=r"\(11, 18\) from the 12 volumes of in memory"
    ):
        read_all(source)


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "nilearn", None)
    with pytest.raises(ImportError, match=r"package nilearn, .*'somf\[fmri\]'"):
        NiftiSource("X.nii")
