"""How atoms are shown."""

import base64
import io
import re

import numpy as np
import pytest

from somf.report import HeatMaps, PatchGrid


def images_of(html):
    """Return the pixels of the images of a page, without transparency."""
    from matplotlib.image import imread

    found = re.findall(r'src="data:image/png;base64,([^"]+)"', str(html))
    return [imread(io.BytesIO(base64.b64decode(text)))[..., :3] for text in found]


def test_patches_show_the_chosen_bands():
    atoms = np.zeros((2, 3, 4, 10))
    atoms[1, :, :, 7] = 1  # one band, which is shown as red
    (image,) = images_of(PatchGrid(atoms, bands=(7, 2, 1)).atom(1))
    assert image.shape == (3, 4, 3)
    np.testing.assert_allclose(image[..., 0], 1)
    np.testing.assert_allclose(image[..., 1:], 0.5, atol=0.01)  # zero is grey


@pytest.mark.parametrize(
    ("n_bands", "shown"), [(1, (0,)), (2, (0,)), (3, (0, 1, 2)), (12, (10, 6, 2))]
)
def test_bands_by_default(n_bands, shown):
    grid = PatchGrid(np.random.default_rng(0).random((2, 3, 3, n_bands)))
    assert grid.bands == shown
    assert len(images_of(grid.atom(0))) == 1
    assert ("spectrum" in grid.caption) is (n_bands > 3)
    assert ("<svg" in grid.atom(0)) is (n_bands > 3)


def test_grey_patches():
    atoms = np.linspace(-1, 1, 9).reshape(1, 3, 3, 1)
    (image,) = images_of(PatchGrid(atoms).atom(0))
    np.testing.assert_allclose(image[..., 0], (atoms[0, ..., 0] + 1) / 2, atol=0.02)
    np.testing.assert_array_equal(image[..., 0], image[..., 2])


def test_a_sample_beside_its_reconstruction():
    grid = PatchGrid(np.ones((2, 3, 3, 5)))
    sample = np.ones(45)
    images = images_of(grid.sample(sample, 0.5 * sample))
    assert [round(float(image.mean()), 2) for image in images] == [1.0, 0.75]


def test_heat_map_and_profiles():
    components = np.random.default_rng(0).standard_normal((5, 3000))
    html = HeatMaps(components).html(np.arange(5))
    (image,) = images_of(html)
    assert image.shape == (5, 960, 3)  # neighbours are taken together
    assert html.count('class="spark"') == 5


def test_the_heat_map_keeps_what_is_farthest_from_zero():
    components = np.zeros((1, 3000))
    components[0, 1234], components[0, 2100] = 5, -5
    (image,) = images_of(HeatMaps(components).html(np.arange(1)))
    red, blue = image[0, :, 0] - image[0, :, 2], image[0, :, 2] - image[0, :, 0]
    assert abs(red.argmax() - 1234 * 960 / 3000) < 1
    assert abs(blue.argmax() - 2100 * 960 / 3000) < 1


def test_heat_maps_with_a_shape_are_images():
    components = np.eye(6)
    shown = HeatMaps(components, shape=(2, 3))
    (image,) = images_of(shown.atom(4))
    assert image.shape == (2, 3, 3)
    assert image[1, 1, 0] > image[1, 1, 2]  # red
    assert len(images_of(shown.sample(components[0], components[1]))) == 2


def test_the_most_used_come_first_and_the_rest_is_told():
    html = HeatMaps(np.eye(70)).html(np.arange(70)[::-1])
    numbers = re.findall(r"<figcaption>(\d+)</figcaption>", str(html))
    assert [int(number) for number in numbers] == list(range(69, 9, -1))
    assert "The 60 most used of 70 atoms" in html


def test_atoms_of_zeros_and_not_numbers():
    assert images_of(PatchGrid(np.zeros((1, 2, 2, 1))).atom(0))
    assert "NaN" not in HeatMaps(np.full((1, 5), np.nan)).atom(0)
    assert "nan" not in HeatMaps(np.full((1, 5), np.nan)).atom(0)


def test_profiles_break_where_values_are_missing():
    line = np.ones(10)
    line[4:6] = np.nan
    shown = HeatMaps(np.ones((1, 10)))
    picture = shown.sample(line, np.ones(10))
    sample, reconstruction = re.findall(r'<path class="s\d" d="([^"]+)"', picture)
    assert sample.count("M") == 2
    assert reconstruction.count("M") == 1
    heights = {float(y) for y in re.findall(r"[\d.]+ ([\d.]+)", sample)}
    assert heights == {2.0}  # ones, and nothing at zero
    assert "gaps" in shown.sample_caption


def test_spectra_of_patches_with_missing_values():
    patches = PatchGrid(np.ones((1, 2, 2, 5)))
    sample = np.ones((2, 2, 5))
    sample[0, 0] = np.nan  # a pixel, and a band
    sample[..., 3] = np.nan
    picture = patches.sample(sample.ravel(), np.ones(20))
    spectrum = re.findall(r'<path class="s1" d="([^"]+)"', picture)[0]
    assert spectrum.count("M") == 2
    assert "nan" not in picture
    heights = {float(y) for y in re.findall(r"[\d.]+ ([\d.]+)", spectrum)}
    assert heights == {2.0}


def test_pixels_with_missing_bands_are_black():
    sample = np.ones((2, 2, 3))
    sample[0, 0, 1] = np.nan
    image, _ = images_of(PatchGrid(np.ones((1, 2, 2, 3))).sample(sample, np.ones(12)))
    assert image[0, 0].tolist() == [0, 0, 0]
    assert image[1, 1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("bands", [(0, 1), (0, 1, 10), (-1, 0, 1)])
def test_bad_bands(bands):
    with pytest.raises(ValueError, match=r"bands=.* from 0 to 9"):
        PatchGrid(np.zeros((2, 3, 3, 10)), bands=bands)


def test_bad_shapes():
    with pytest.raises(ValueError, match=r"\(2, 9\); it must be \(n_components, "):
        PatchGrid(np.zeros((2, 9)))
    with pytest.raises(ValueError, match=r"shape=\(2, 2\) has 4 pixels.* 6 features"):
        HeatMaps(np.eye(6), shape=(2, 2))
