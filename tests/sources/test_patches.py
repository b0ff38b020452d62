"""Patches are the sliding windows of the image."""

import pickle
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.feature_extraction.image import extract_patches_2d

from somf.sources import PatchSource, SampleSource
from somf.testing import SourceContract


class TestPatchSource(SourceContract):
    def make(self, X, tmp_path):  # patches of one pixel, with a channel a feature
        return PatchSource(X[:, None, :], (1, 1), dtype=X.dtype)


def make_image(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape) * 3 + 5


def windows(image, height, width):
    """All patches by their upper left corners, (rows, columns, n_features)."""
    image = image.reshape(*image.shape[:2], -1)
    views = sliding_window_view(image, (height, width), axis=(0, 1))
    views = np.moveaxis(views, 2, -1)  # channels last, as in the image
    return views.reshape(*views.shape[:2], -1)


def read_all(source):
    return source.read(np.arange(source.shape[0]))


@st.composite
def sources(draw):
    """An image, a patch size and the options of a source."""
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    if draw(st.booleans()):
        shape += (draw(st.integers(1, 3)),)
    size = draw(st.tuples(st.integers(1, shape[0]), st.integers(1, shape[1])))
    first = draw(st.integers(0, shape[0] - 1))
    rows = draw(st.none() | st.tuples(st.just(first), st.integers(first, 12)))
    options = {
        "step": draw(st.integers(1, 4)),
        "rows": rows,
        "dtype": draw(st.sampled_from([np.float32, np.float64])),
    }
    return make_image(shape, draw(st.integers(0, 99))), size, options


@given(sources())
def test_patches_are_windows(case):
    image, size, options = case
    source = PatchSource(image, size, **options)
    first, last = options["rows"] or (0, None)
    step = options["step"]
    expected = windows(image, *size)[first:last:step, ::step]
    expected = expected.reshape(-1, source.shape[1]).astype(options["dtype"])
    assert source.shape == expected.shape
    assert source.dtype == options["dtype"]
    np.testing.assert_array_equal(read_all(source), expected)


@given(sources(), st.data())
def test_any_patches_can_be_read(case, data):
    image, size, options = case
    source = PatchSource(image, size, center=True, scale=True, **options)
    everything = read_all(source)
    n = len(everything)
    chosen = data.draw(st.sets(st.integers(0, n - 1)) if n else st.just(set()))
    rows = np.array(sorted(chosen), np.intp)
    read = source.read(rows)
    assert read.flags.c_contiguous
    assert read.dtype == options["dtype"]
    np.testing.assert_array_equal(read, everything[rows])


@pytest.mark.parametrize("shape", [(8, 6), (8, 6, 3)])
def test_patches_are_those_of_scikit_learn(shape):
    image = make_image(shape)
    expected = extract_patches_2d(image, (3, 2))
    source = PatchSource(image, (3, 2), dtype=np.float64)
    np.testing.assert_array_equal(read_all(source), expected.reshape(len(expected), -1))
    assert source.patch_shape == (3, 2, image.size // 48)


@given(sources())
def test_centred_patches_have_no_mean_in_any_channel(case):
    image, size, options = case
    plain = read_all(PatchSource(image, size, **options)).astype(float)
    centred = read_all(PatchSource(image, size, center=True, **options))
    n_channels = image.shape[2] if image.ndim == 3 else 1
    plain = plain.reshape(-1, size[0] * size[1], n_channels)
    expected = (plain - plain.mean(axis=1, keepdims=True)).reshape(centred.shape)
    atol = 1e-5 if options["dtype"] == np.float32 else 1e-12
    np.testing.assert_allclose(centred, expected, rtol=0, atol=atol)


@given(sources(), st.booleans())
def test_scaled_patches_have_unit_norm_or_are_zero(case, center):
    image, size, options = case
    plain = read_all(PatchSource(image, size, center=center, **options)).astype(float)
    scaled = read_all(PatchSource(image, size, center=center, scale=True, **options))
    lengths = np.linalg.norm(plain, axis=1)
    atol = 1e-4 if options["dtype"] == np.float32 else 1e-11
    zero = lengths < 1e-3 if size == (1, 1) and center else lengths == 0
    assert not scaled[zero].any()
    expected = plain[~zero] / lengths[~zero, None]
    np.testing.assert_allclose(scaled[~zero], expected, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -1e6 / 7, 1e-20])
def test_constant_patches_become_zero(value, dtype):
    image = np.full((7, 7, 3), value)
    image[..., 1] *= 3  # constant in each channel
    noise = np.random.default_rng(0).standard_normal((3, 3, 3))
    image[4:, 4:] += (1 + abs(value)) * noise
    source = PatchSource(image, (3, 3), center=True, scale=True, dtype=dtype)
    patches = read_all(source).reshape(5, 5, -1)
    constant = np.zeros((5, 5), bool)
    constant[:2] = constant[:, :2] = True
    assert not patches[constant].any()
    np.testing.assert_allclose(np.linalg.norm(patches[~constant], axis=1), 1, rtol=1e-5)


def test_faint_patches_are_not_constant():
    """Much smaller than the mean, much larger than its rounding."""
    rng = np.random.default_rng(0)
    image = 1 + 1e-9 * rng.standard_normal((6, 6))
    source = PatchSource(image, (3, 3), center=True, scale=True, dtype=np.float64)
    np.testing.assert_allclose(np.linalg.norm(read_all(source), axis=1), 1, rtol=1e-9)


def test_zero_patches_stay_zero():
    source = PatchSource(np.zeros((4, 4)), (2, 2), scale=True)
    assert not read_all(source).any()


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16, np.float64])
def test_image_of_any_number_type(dtype):
    image = np.arange(30).reshape(5, 6).astype(dtype)
    patches = read_all(PatchSource(image, (2, 2)))
    assert patches.dtype == np.float32
    np.testing.assert_array_equal(patches[-1], [22, 23, 28, 29])


def test_image_is_left_alone():
    image = make_image((5, 6)).astype(np.float32)
    before = image.copy()
    patches = read_all(PatchSource(image, (2, 2), center=True, scale=True))
    patches[:] = 0
    np.testing.assert_array_equal(image, before)


def test_bands_split_an_image():
    image = make_image((10, 6))
    whole, upper, lower = (
        PatchSource(image, (3, 3), rows=rows) for rows in (None, (0, 4), (4, 10))
    )
    both = np.concatenate([read_all(upper), read_all(lower)])
    np.testing.assert_array_equal(both, read_all(whole))


def test_source_survives_pickling():
    source = PatchSource(make_image((6, 6, 2)), (3, 2), center=True, step=2)
    again = pickle.loads(pickle.dumps(source))
    assert again.shape == source.shape
    np.testing.assert_array_equal(read_all(again), read_all(source))
    assert isinstance(again, SampleSource)


@pytest.mark.parametrize("shape", [(5,), (2, 5, 5, 3)])
def test_image_must_have_two_or_three_axes(shape):
    with pytest.raises(ValueError, match=f"image has {len(shape)} dimensions"):
        PatchSource(np.zeros(shape), (2, 2))


@pytest.mark.parametrize("size", [(6, 2), (2, 7), (0, 2), (2, 0), (-1, 2)])
def test_patches_must_fit_in_the_image(size):
    with pytest.raises(ValueError, match=r"patch_size=.*\(5, 6\)"):
        PatchSource(np.zeros((5, 6)), size)


@pytest.mark.parametrize("row", [20, 1000])
def test_patches_beyond_the_last_are_an_error(row):
    with pytest.raises(IndexError):
        PatchSource(np.zeros((5, 6)), (2, 2)).read(np.array([row]))


@pytest.mark.parametrize("wrong", [dict(step=0), dict(rows=(-3, 2)), dict(rows=(5, 4))])
def test_ranges_without_patches_are_refused(wrong):
    with pytest.raises(ValueError, match=r"step=\d.* rows="):
        PatchSource(np.zeros((9, 9)), (4, 4), **wrong)


@given(sources(), st.booleans(), st.booleans())
def test_memory_maps_are_read_patch_by_patch(case, center, transpose):
    """In any type and order, the same as an array; the map is never copied."""
    image, size, options = case
    stored = np.ascontiguousarray((100 * image).astype(np.int16))
    if transpose:
        stored = np.asfortranarray(stored)
    with tempfile.NamedTemporaryFile() as file:
        mapped = np.memmap(file, ">i2", "w+", shape=stored.shape)
        mapped[:] = stored
        if transpose:
            mapped = np.memmap(file, ">i2", "w+", shape=stored.shape, order="F")
            mapped[:] = stored
        plain = PatchSource(stored, size, center=center, **options)
        source = PatchSource(mapped, size, center=center, **options)
        assert np.shares_memory(source._image, mapped)
        np.testing.assert_array_equal(read_all(source), read_all(plain))


@given(sources())
def test_covering_patches_reach_every_pixel(case):
    image, size, options = case
    step = min(options["step"], *size)
    source = PatchSource(image, size, step=step, cover=True)
    seen = np.zeros(image.shape[:2], bool)
    tops, lefts = source.corners(np.arange(source.shape[0]))
    for top, left in zip(tops, lefts, strict=True):
        seen[top : top + size[0], left : left + size[1]] = True
    assert seen.all()
    views = windows(image, *size)[tops, lefts].astype(np.float32)
    np.testing.assert_array_equal(read_all(source), views)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("center", [False, True])
def test_missing_values_stay_and_do_not_count(center, scale):
    image = make_image((8, 9, 2))
    options = dict(center=center, scale=scale, dtype=np.float64, missing=True)
    whole = read_all(PatchSource(image, (4, 3), **options))
    gapped = image.copy()
    gapped[2, 4, 1] = gapped[5:7, 2:5] = np.nan
    patches = read_all(PatchSource(gapped, (4, 3), **options))
    plain = read_all(PatchSource(gapped, (4, 3), dtype=np.float64))
    unknown = np.isnan(plain)
    np.testing.assert_array_equal(np.isnan(patches), unknown)
    complete = ~unknown.any(axis=1)
    assert 0 < complete.sum() < len(complete)
    np.testing.assert_array_equal(patches[complete], whole[complete])
    pixels = patches.reshape(len(patches), -1, 2)
    some = pixels[~np.isnan(pixels).all(axis=1).any(axis=1)]
    if center:
        np.testing.assert_allclose(np.nanmean(some, axis=1), 0, atol=1e-12)
    if scale:
        np.testing.assert_allclose(np.nanmean(patches**2, axis=1), 1 / 24, rtol=1e-9)
