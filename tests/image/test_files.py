"""Images come out of their files as they went in, mapped where the format allows."""

import logging

import h5py
import numpy as np
import pytest
import rasterio
import scipy.io
from PIL import Image

from somf.image import files, read_image
from somf.image.files import as_image, band_numbers, select_bands

SHAPE = (5, 7, 3)


def make_cube(dtype=np.int16, shape=SHAPE):
    rng = np.random.default_rng(0)
    return rng.integers(0, 200, shape).astype(dtype)


def write_envi(folder, cube, interleave, *, big=False, offset=0, name="scene.img"):
    """Write a raw file and its header; returns the header."""
    order = {"bsq": (2, 0, 1), "bil": (0, 2, 1), "bip": (0, 1, 2)}[interleave]
    codes = {"uint8": 1, "int16": 2, "float32": 4, "float64": 5, "uint16": 12}
    stored = cube.transpose(order).astype(cube.dtype.newbyteorder(">" if big else "<"))
    (folder / name).write_bytes(b"x" * offset + stored.tobytes())
    header = folder / "scene.hdr"
    header.write_text(
        "ENVI\ndescription = {two\n  lines = 99}\n"
        f"samples = {cube.shape[1]}\nlines   = {cube.shape[0]}\n"
        f"bands = {cube.shape[2]}\nheader offset = {offset}\n"
        f"data type = {codes[cube.dtype.name]}\ninterleave = {interleave.upper()}\n"
        f"byte order = {int(big)}\nwavelength = {{400.0,\n 500.0, 600.0}}\n"
    )
    return header


@pytest.mark.parametrize("interleave", ["bsq", "bil", "bip"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "float32", "float64"])
@pytest.mark.parametrize("big", [False, True])
def test_envi_is_mapped_in_any_layout(tmp_path, interleave, dtype, big):
    cube = make_cube(dtype)
    header = write_envi(tmp_path, cube, interleave, big=big, offset=11)
    image = read_image(header)
    assert isinstance(image, np.memmap)
    np.testing.assert_array_equal(image, cube)
    np.testing.assert_array_equal(read_image(tmp_path / "scene.img"), cube)


def test_envi_header_with_the_extension_of_its_raw_file(tmp_path):
    cube = make_cube()
    header = write_envi(tmp_path, cube, "bil")
    header.rename(tmp_path / "scene.img.hdr")
    np.testing.assert_array_equal(read_image(tmp_path / "scene.img.hdr"), cube)
    np.testing.assert_array_equal(read_image(tmp_path / "scene.img"), cube)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("ENVI\n", "NOPE\n", "does not start with the word ENVI"),
        ("lines   = 5", "lines   = 50", "has 210 bytes, but its header asks for 2100"),
        ("lines   = 5", "lines   = many", "lines = 'many' must be a whole number"),
        ("data type = 2", "data type = 6", "data type = 6 must be one of"),
        ("= BSQ", "= XYZ", "interleave = 'xyz' must be one of bsq, bil, bip"),
        ("header offset", "file compression = 1\nheader offset", "is compressed"),
    ],
)
def test_bad_envi_headers_are_explained(tmp_path, old, new, words):
    header = write_envi(tmp_path, make_cube(), "bsq")
    text = header.read_text()
    assert old in text
    header.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=words):
        read_image(header)


def test_envi_files_that_lack_their_other_half(tmp_path):
    header = write_envi(tmp_path, make_cube(), "bsq")
    (tmp_path / "scene.img").rename(tmp_path / "other.img")
    with pytest.raises(FileNotFoundError, match="header without its raw file"):
        read_image(header)
    with pytest.raises(FileNotFoundError, match=r"has no header other\.hdr"):
        read_image(tmp_path / "other.img")


@pytest.mark.parametrize(
    ("raw", "header"),
    [
        ("X.IMG", "X.HDR"),
        ("x.img", "x.HDR"),
        ("flight.07", "flight.07.hdr"),
        ("f100_rfl.v2", "f100_rfl.hdr"),
        ("scene.2020.01.dat", "scene.2020.01.hdr"),
    ],
)
def test_envi_files_of_any_name(tmp_path, raw, header):
    cube = make_cube()
    write_envi(tmp_path, cube, "bil", name=raw).rename(tmp_path / header)
    np.testing.assert_array_equal(read_image(tmp_path / raw), cube)
    if raw != "f100_rfl.v2":  # a header tells nothing of such a name
        np.testing.assert_array_equal(read_image(tmp_path / header), cube)


@pytest.mark.parametrize("dtype", ["int16", "float32", "float64"])
def test_envi_values_to_ignore_are_nan(tmp_path, dtype):
    cube = make_cube(dtype) + np.array(0.1).astype(dtype)
    header = write_envi(tmp_path, cube, "bsq")
    text = header.read_text()
    header.write_text(text + "data ignore value = -9999.1\n")
    assert isinstance(read_image(header), np.memmap)  # there are none
    cube[2, 3] = -9999.1
    write_envi(tmp_path, cube, "bsq")
    header.write_text(text + f"data ignore value = {cube[2, 3, 0]}\n")
    image = read_image(header)
    assert image.dtype == np.float32
    expected = cube.astype(np.float32)
    expected[2, 3] = np.nan
    np.testing.assert_array_equal(image, expected)
    header.write_text(text + "data ignore value = none\n")
    with pytest.raises(ValueError, match="data ignore value = 'none' must be a number"):
        read_image(header)


def test_geotiff_nodata_is_nan(tmp_path):
    path, cube = tmp_path / "scene.tif", make_cube()
    cube[1, 2:4] = -9999
    form = dict(driver="GTiff", height=5, width=7, count=3, dtype="int16")
    place = rasterio.Affine(1, 0, 500000, 0, -1, 4480000)
    with rasterio.open(path, "w", **form, transform=place, nodata=-9999) as file:
        file.write(cube.transpose(2, 0, 1))
    image = read_image(path)
    assert image.dtype == np.float32
    expected = np.where(cube == -9999, np.nan, cube)
    np.testing.assert_array_equal(image, expected)


def test_masked_arrays_have_nan():
    cube = make_cube()
    image = as_image(np.ma.masked_less(cube, 50))
    assert image.dtype == np.float32
    assert not isinstance(image, np.ma.MaskedArray)
    np.testing.assert_array_equal(image, np.where(cube < 50, np.nan, cube))
    whole = as_image(np.ma.array(cube))
    assert np.shares_memory(whole, cube)
    assert whole.dtype == cube.dtype


def test_npy_is_mapped(tmp_path):
    np.save(tmp_path / "cube.npy", make_cube())
    image = read_image(tmp_path / "cube.npy")
    assert isinstance(image, np.memmap)
    np.testing.assert_array_equal(image, make_cube())


def test_matlab_5(tmp_path):
    path = tmp_path / "cube.mat"
    scipy.io.savemat(path, {"cube": make_cube(), "labels": make_cube(shape=(5, 7))})
    np.testing.assert_array_equal(read_image(path), make_cube())
    labels = read_image(f"{path}::labels")
    np.testing.assert_array_equal(labels, make_cube(shape=(5, 7)))


def test_matlab_73(tmp_path):
    path = tmp_path / "cube.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["cube"] = make_cube().T  # MATLAB stores columns first
        file["labels"] = make_cube(shape=(5, 7)).T
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")
    np.testing.assert_array_equal(read_image(path), make_cube())
    labels = read_image(f"{path}::labels")
    np.testing.assert_array_equal(labels, make_cube(shape=(5, 7)))


def test_matlab_files_with_several_images_ask_for_a_name(tmp_path):
    path = tmp_path / "cube.mat"
    scipy.io.savemat(path, {"one": make_cube(), "two": make_cube()})
    with pytest.raises(ValueError, match=r"one \(5, 7, 3\), two.*cube.mat::one"):
        read_image(path)
    with pytest.raises(ValueError, match=r"no array 'three'"):
        read_image(f"{path}::three")


def test_geotiff(tmp_path):
    path, cube = tmp_path / "scene.tif", make_cube(np.uint16)
    form = dict(driver="GTiff", height=5, width=7, count=3, dtype="uint16")
    place = rasterio.Affine(1, 0, 500000, 0, -1, 4480000)
    with rasterio.open(path, "w", **form, transform=place) as file:
        file.write(cube.transpose(2, 0, 1))
    image = read_image(path)
    assert image.dtype == np.uint16
    np.testing.assert_array_equal(image, cube)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_photo(tmp_path, mode):
    pixels = make_cube(np.uint8) if mode == "RGB" else make_cube(np.uint8, (5, 7))
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    np.testing.assert_array_equal(read_image(tmp_path / "photo.png"), pixels)


def test_photo_with_a_palette_has_its_colours(tmp_path):
    pixels = make_cube(np.uint8)
    pixels[:] = pixels[:1, :1]
    Image.fromarray(pixels).convert("P", palette=Image.Palette.ADAPTIVE).save(
        tmp_path / "photo.png"
    )
    np.testing.assert_array_equal(read_image(tmp_path / "photo.png"), pixels)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.mat", "a.npy"])
def test_files_that_are_something_else(tmp_path, name):
    (tmp_path / name).write_bytes(b"this is no image, whatever it is called" * 9)
    with pytest.raises(ValueError, match=rf"{name} is not a readable"):
        read_image(tmp_path / name)


def test_what_is_not_an_image(tmp_path):
    np.save(tmp_path / "four.npy", np.zeros((2, 2, 2, 2)))
    with pytest.raises(ValueError, match=r"four.npy has shape \(2, 2, 2, 2\)"):
        read_image(tmp_path / "four.npy")
    np.save(tmp_path / "complex.npy", np.zeros((2, 2), complex))
    with pytest.raises(TypeError, match="complex128"):
        read_image(tmp_path / "complex.npy")
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read_image(tmp_path / "none.npy")
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(ValueError, match="has no known extension"):
        read_image(tmp_path / "text.txt")


def test_dask_arrays_are_copied_block_by_block(monkeypatch):
    dask = pytest.importorskip("dask.array")
    cube = make_cube(np.float32, (40, 7, 3))
    monkeypatch.setattr(files, "BLOCK", 500)
    image = as_image(dask.from_array(cube, chunks=(16, 4, 3)))
    assert isinstance(image, np.ndarray)
    np.testing.assert_array_equal(image, cube)


def test_copies_that_do_not_fit_go_to_a_file(monkeypatch, caplog):
    dask = pytest.importorskip("dask.array")
    monkeypatch.setattr(files, "available_memory", lambda: 100)
    with caplog.at_level(logging.WARNING, "somf"):
        image = as_image(dask.from_array(make_cube(), chunks=(2, 7, 3)))
    assert isinstance(image, np.memmap)
    assert "temporary file" in caplog.text
    np.testing.assert_array_equal(image, make_cube())


def test_bands_are_views_where_they_can_be(tmp_path):
    np.save(tmp_path / "cube.npy", make_cube(shape=(5, 7, 9)))
    image = read_image(tmp_path / "cube.npy")
    for bands in (slice(1, None, 3), [1, 4, 7], np.arange(1, 9, 3)):
        part = select_bands(image, bands)
        assert np.shares_memory(part, image)
        np.testing.assert_array_equal(part, image[:, :, 1::3])
    part = select_bands(image, [5, 0, 6])
    assert not np.shares_memory(part, image)
    np.testing.assert_array_equal(part, image[:, :, [5, 0, 6]])
    np.testing.assert_array_equal(select_bands(image, 4), image[:, :, 4:5])


@pytest.mark.parametrize("bands", [[9], [-1], [], [0.5], [[1, 2]], slice(9, None)])
def test_bands_that_are_not_there(bands):
    with pytest.raises(ValueError, match="must be numbers of bands from 0 to 8"):
        band_numbers(bands, 9)
