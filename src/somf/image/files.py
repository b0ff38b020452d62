"""From whatever holds an image, a path or an object, to an array or a memory map."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.image.envi import RAW, has_header, read_envi
from somf.memory import available_memory
from somf.sources.checks import existing_file, need

Array = NDArray[Any]
PathLike = str | os.PathLike[str]

logger = logging.getLogger("somf")

# An image that has to be copied is kept in memory if it takes no more than this part of
# the free memory, and goes to a temporary file beyond.
PART_IN_MEMORY = 0.25
BLOCK = 2**26  # bytes that are copied at a time


def read_image(path: PathLike) -> Array:
    """Return the image of a file, (height, width) or (height, width, bands).

    Parameters
    ----------
    path : path
        ============================ ==============================================
        .npy                         an array, as a memory map
        .hdr, or the raw file of one ENVI, as a memory map; a raw file of any name
                                     that has a header beside it
        .mat                         MATLAB, any version; of several arrays one:
                                     "file.mat::name"
        .tif .tiff                   GeoTIFF (extra ``geo``)
        .png .jpg .jpeg .bmp .webp   a photo (extra ``image``)
        ============================ ==============================================

        What cannot be mapped is read into memory, or into a temporary file if it is
        larger than a quarter of the free memory. Values that the file declares as not
        known (GeoTIFF: nodata, ENVI: data ignore value) become NaN, in float32; an ENVI
        file that holds such values is copied for it.

    Returns
    -------
    image : array or memory map

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> from somf.image import read_image
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "cube.npy"
    >>> np.save(path, np.zeros((5, 6, 3)))
    >>> read_image(path).shape
    (5, 6, 3)
    """
    name = os.fspath(path)
    bare, _, variable = name.partition("::")
    extension = os.path.splitext(bare)[1].lower()
    existing_file(bare)
    if extension not in READERS and has_header(bare):
        extension = ".hdr"
    if extension not in READERS:
        raise ValueError(
            f"{name} has no known extension; known are "
            f"{', '.join(filter(None, READERS))}. Open other files yourself, and give "
            "the array."
        )
    if variable and extension != ".mat":
        raise ValueError(f"{name}: only .mat files have names after ::, leave it out.")
    image = READERS[extension](name if variable else bare)
    _check_image(image, name)
    return image


def as_image(image: Any) -> Array:
    """Return an image as an array or memory map (height, width, bands).

    See `open_image` for what it can be.
    """
    array = open_image(image)
    return array if array.ndim == 3 else array[:, :, None]


def open_image(image: Any) -> Array:
    """Return an image as an array or memory map, with the axes it has.

    Parameters
    ----------
    image : path, array, memory map, Dask array, hyperspy signal or array-like
        A hyperspy signal has its navigation axes first, (y, x | energy) or (y, x |).
        What a masked array hides becomes NaN, in float32.
    """
    if isinstance(image, str | os.PathLike):
        image = read_image(image)
    if hasattr(image, "axes_manager"):  # hyperspy, which need not be imported
        image = image.data
    if type(image).__module__.partition(".")[0] in ("dask", "h5py", "zarr"):
        _check_image(image, "The image")
        image = copy_rows(image)
    array = image if isinstance(image, np.ndarray) else np.asarray(image)
    _check_image(array, "The image")
    if isinstance(array, np.ma.MaskedArray):
        if not np.ma.is_masked(array):
            return np.asarray(array.data)
        return np.ma.filled(array.astype(np.float32), np.nan)
    return array


def select_bands(image: Array, bands: Any) -> Array:
    """Return some bands of a (height, width, bands) image; as a view if that can be."""
    if bands is None:
        return image
    chosen = band_numbers(bands, image.shape[2])
    steps = np.unique(np.diff(chosen))
    if len(chosen) == 1 or (len(steps) == 1 and steps[0] > 0):
        step = int(steps[0]) if len(steps) else 1
        return image[:, :, chosen[0] : chosen[-1] + 1 : step]
    return copy_rows(image, lambda rows: rows[:, :, chosen], len(chosen))


def band_numbers(bands: Any, n_bands: int) -> NDArray[np.intp]:
    """Return the numbers of the chosen bands, of which there are `n_bands`."""
    if isinstance(bands, slice):
        chosen = np.arange(n_bands)[bands]
    else:
        chosen = np.atleast_1d(np.asarray(bands))
    whole = chosen.ndim == 1 and chosen.dtype.kind in "iu" and len(chosen) > 0
    if not whole or chosen.min() < 0 or chosen.max() >= n_bands:
        raise ValueError(
            f"bands={bands!r} must be numbers of bands from 0 to {n_bands - 1} or a "
            "slice of them; None takes all."
        )
    return chosen.astype(np.intp)


def copy_rows(
    image: Any,
    change: Callable[[Array], Array] = lambda rows: rows,
    n_bands: int | None = None,
    dtype: Any = None,
) -> Array:
    """Copy an image, some rows at a time, to where it fits."""
    shape = tuple(image.shape[:2]) + tuple(image.shape[2:])
    if n_bands is not None:
        shape = (*shape[:2], n_bands)
    copy = new_image(shape, dtype or image.dtype)
    n_rows = max(1, BLOCK // max(1, copy.nbytes // max(1, len(copy))))
    for start in range(0, len(copy), n_rows):
        stop = start + n_rows
        copy[start:stop] = change(np.asarray(image[start:stop]))
    return copy


def new_image(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return room for an image: in memory, or in a temporary file if that is short."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if size <= PART_IN_MEMORY * available_memory():
        return np.empty(shape, dtype)
    logger.warning(
        "The image takes %.1f GB, more than a quarter of the free memory: a copy goes "
        "to a temporary file in %s.",
        size / 1e9,
        tempfile.gettempdir(),
    )
    with tempfile.TemporaryFile() as file:  # gone with the last use of the map
        return np.memmap(file, dtype, "w+", shape=shape)


def _check_image(image: Any, name: str) -> None:
    if len(image.shape) not in (2, 3) or 0 in image.shape:
        raise ValueError(
            f"{name} has shape {tuple(image.shape)}; an image is (height, width) or "
            "(height, width, bands). Take one image of a stack at a time."
        )
    if np.dtype(image.dtype).kind not in "fiub":
        raise TypeError(
            f"{name} holds {image.dtype}; an image must hold real numbers: convert it "
            "first."
        )


# -- formats -------------------------------------------------------------------------


def _read_npy(path: str) -> Array:
    try:
        image = np.load(path, mmap_mode="r")
    except ValueError as error:
        raise ValueError(
            f"{path} is not a readable .npy file of numbers ({error})."
        ) from error
    if not isinstance(image, np.memmap):  # an archive
        raise ValueError(f"{path} does not hold one array in .npy form.")
    return image


def _read_mat(path: str) -> Array:
    import scipy.io

    file, _, name = path.partition("::")
    try:
        arrays = {key: shape for key, shape, _ in scipy.io.whosmat(file)}
    except NotImplementedError:  # version 7.3, which is HDF5
        return _read_mat73(file, name)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{file} is not a readable MATLAB file ({error}); save it again."
        ) from error
    name = _choose_array(file, name, arrays)
    return np.asarray(scipy.io.loadmat(file, variable_names=[name])[name])


def _read_mat73(file: str, name: str) -> Array:
    h5py = need("h5py", "chunked", "A MATLAB file of version 7.3")
    with h5py.File(file, "r") as data:
        arrays = {
            key: item.shape[::-1]
            for key, item in data.items()
            if isinstance(item, h5py.Dataset)
        }
        stored = data[_choose_array(file, name, arrays)]
        image = new_image(stored.shape[::-1], stored.dtype)
        for i in range(stored.shape[0]):  # MATLAB keeps the last axis first: bands
            image[..., i] = stored[i].T
        return image


def _choose_array(file: str, name: str, arrays: dict[str, tuple[int, ...]]) -> str:
    """Return the name that was asked for, or of the only array that is an image."""
    if name in arrays:
        return name
    for n_axes in (3, 2):
        known = [key for key, shape in arrays.items() if len(shape) == n_axes]
        known = [key for key in known if min(arrays[key]) > 1]  # no scalars, no lists
        if len(known) == 1 and not name:
            return known[0]
        if known and not name:
            break
    words = ", ".join(f"{key} {shape}" for key, shape in arrays.items()) or "none"
    asked = f"no array {name!r}" if name else "not one image alone"
    raise ValueError(
        f"{file} holds {asked}; its arrays are: {words}. Name one of them: "
        f'"{os.path.basename(file)}::{next(iter(arrays), "name")}".'
    )


def _read_geotiff(path: str) -> Array:
    rasterio = need("rasterio", "geo", "A GeoTIFF")
    with warnings.catch_warnings():
        # A photo in this format has no coordinates, and needs none here.
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        try:
            with rasterio.open(path) as data:
                gaps = any(value is not None for value in data.nodatavals)
                dtype = np.float32 if gaps else data.dtypes[0]
                image = new_image((data.height, data.width, data.count), dtype)
                for i, nodata in enumerate(data.nodatavals):
                    image[:, :, i] = _with_nan(data.read(i + 1), nodata)
        except rasterio.errors.RasterioIOError as error:
            raise ValueError(f"{path} is not a readable TIFF ({error}).") from error
    return image


def _read_envi(path: str) -> Array:
    image, nodata = read_envi(path)
    if nodata is None or not any((row == nodata).any() for row in image):
        return image
    return copy_rows(image, lambda rows: _with_nan(rows, nodata), dtype=np.float32)


def _with_nan(values: Array, nodata: float | None) -> Array:
    """Return values with NaN, in float32, for those that stand for no data."""
    if nodata is None:
        return values
    return np.where(values == nodata, np.float32(np.nan), values.astype(np.float32))


def _read_photo(path: str) -> Array:
    pillow = need("PIL.Image", "image", "A photo")
    try:
        with pillow.open(path) as photo:
            # Palettes, transparency and prints become colours.
            plain = photo.mode in ("L", "I", "F", "RGB") or photo.mode.startswith("I;")
            return np.asarray(photo if plain else photo.convert("RGB"))
    except pillow.UnidentifiedImageError as error:
        raise ValueError(
            f"{path} is not a readable photo ({error}); save it again."
        ) from error


READERS: dict[str, Callable[[str], Array]] = {
    ".npy": _read_npy,
    ".mat": _read_mat,
    **dict.fromkeys((".tif", ".tiff"), _read_geotiff),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".bmp", ".webp"), _read_photo),
    ".hdr": _read_envi,
    **dict.fromkeys(RAW, _read_envi),
}
