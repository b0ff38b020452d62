"""Brain images as samples: a volume is a sample, a voxel of the mask a feature.

Images on a surface, as nilearn has them, are read in the same way: what is said of
voxels holds for vertices.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from somf.sources.base import Array, Indices, Source
from somf.sources.checks import check_rows, existing_file, need

LOGGER = logging.getLogger("somf")

# Files that are mapped at a time; systems allow a process some hundreds or more.
OPEN_MAPS = 64
# Parameters of a masker that do not change the signals, given the mask.
NO_MATTER = {
    *("mask_img", "mask_strategy", "mask_args"),
    *("memory", "memory_level", "n_jobs", "verbose", "reports", "cmap"),
}


class NiftiSource(Source):
    """Volumes of NIfTI images, masked by nilearn when they are first needed.

    Each image is masked once; the result waits in a file of the folder `cache`, from
    which samples are read. The name of that file comes from the image (its path, time
    of change and size, or its data) and from all that the masker does, so files of
    changed images are never taken for those of the new ones. An image that does not
    fit the mask is resampled by nilearn, with a warning.

    Parameters
    ----------
    images : path or nibabel image, or a list of them
        With 4 dimensions; one with 3 is one volume. With a masker for surfaces,
        nilearn's `SurfaceImage`.
    masker : fitted nilearn NiftiMasker, MultiNiftiMasker, SurfaceMasker ... or None
        None builds one from the parameters below.
    confounds : list or None
        For each image what nilearn takes as its confounds, or None.
    mask_img : path or nibabel image, or None
        None computes a mask from all images, by `nilearn.masking.
        compute_multi_epi_mask`, which reads them once.
    standardize : {"zscore_sample", "psc", False} or None
        What nilearn does to every voxel of an image over time. None is
        "zscore_sample": no mean and unit variance. For images of a single volume take
        False.
    detrend : bool or None
        Whether linear trends of every voxel are removed; None is True.
    smoothing_fwhm : float or None
        Width in millimetres of a filter in space.
    cache : path or None
        A folder that lasts, to mask images once and for all; processes may share it.
        None makes a temporary one, which is removed with the source.
    dtype : float32 or float64

    Examples
    --------
    >>> import nibabel, numpy as np
    >>> from somf.sources import NiftiSource
    >>> image = nibabel.Nifti1Image(np.ones((3, 3, 3, 10), np.float32), np.eye(4))
    >>> mask = nibabel.Nifti1Image(np.ones((3, 3, 3), np.uint8), np.eye(4))
    >>> source = NiftiSource([image, image], mask_img=mask, standardize=False)
    >>> source.shape
    (20, 27)
    """

    def __init__(
        self,
        images: Any,
        masker: Any = None,
        *,
        confounds: Any = None,
        mask_img: Any = None,
        standardize: str | bool | None = None,
        detrend: bool | None = None,
        smoothing_fwhm: float | None = None,
        cache: str | os.PathLike[str] | None = None,
        dtype: Any = np.float32,
    ) -> None:
        need("nilearn", "fmri", "Reading NIfTI images")
        if not isinstance(images, list | tuple):
            images = [images]
        if not images:
            raise ValueError("images is empty; give at least one image.")
        self.images = [_by_path(image) for image in images]
        self.confounds = _check_confounds(confounds, len(images))
        n_volumes = [_count_volumes(image) for image in self.images]
        self._starts = np.concatenate([[0], np.cumsum(n_volumes)])
        if masker is None:
            masker = _build_masker(
                self.images, mask_img, standardize, detrend, smoothing_fwhm
            )
        else:
            _check_masker(
                masker,
                mask_img=mask_img,
                standardize=standardize,
                detrend=detrend,
                smoothing_fwhm=smoothing_fwhm,
            )
        self.masker = masker
        mask = _values(masker.mask_img_)
        n_features = sum(int(np.count_nonzero(part)) for part in mask)
        self.shape = (int(self._starts[-1]), n_features)
        self.row_files = self._starts
        self.feature_key = _place(masker.mask_img_)
        self.dtype = np.dtype(dtype)
        self.cache = None if cache is None else Path(cache).absolute()
        self._masking = _digest_masker(masker, self.feature_key, self.dtype)
        self._digests: dict[int, str] = {}
        self._begin()

    def _begin(self) -> None:
        """Start with what belongs to this process alone."""
        self._temporary: Path | None = None
        self._maps: OrderedDict[int, Array] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, rows: Indices) -> Array:
        """Return the volumes `rows`, one a row, as a new array."""
        out = np.empty((len(rows), self.shape[1]), self.dtype)
        for part, signals, volumes in self._split(rows):
            out[part] = signals[volumes]
        return out

    def read_features(self, rows: Indices, features: Indices) -> Array:
        """Return some voxels of the volumes `rows` as a new array."""
        out = np.empty((len(rows), len(features)), self.dtype)
        for part, signals, volumes in self._split(rows):
            out[part] = signals[np.ix_(volumes, features)]
        return out

    def _split(self, rows: Indices) -> Iterator[tuple[slice, Array, Indices]]:
        """Yield parts of `rows`, with the signals of an image and volumes in it."""
        check_rows(rows, self.shape[0])
        cuts = np.searchsorted(rows, self._starts)
        for i in np.flatnonzero(np.diff(cuts)):
            part = slice(cuts[i], cuts[i + 1])
            yield part, self._signals(int(i)), rows[part] - self._starts[i]

    def prepare(self, progress: Callable[[int, int], object] | None = None) -> None:
        """Mask all images now; `progress(done, total)` is called after each."""
        for i in range(len(self.images)):
            self._signals(i)
            if progress is not None:
                progress(i + 1, len(self.images))

    def inverse_transform(self, components: Array) -> Any:
        """Return (n_components, n_features) as a 4-D image."""
        return self.masker.inverse_transform(components)

    def _signals(self, i: int) -> Array:
        """Return the masked image `i`, (n_volumes, n_features), as a memory map."""
        with self._lock:
            if i in self._maps:
                self._maps.move_to_end(i)
                return self._maps[i]
        path = self._folder() / f"{self._digest(i)}.npy"
        if not path.exists():
            self._mask(i, path)
        signals: Array = np.load(path, mmap_mode="r").view(np.ndarray)
        with self._lock:
            self._maps[i] = signals
            if len(self._maps) > OPEN_MAPS:
                self._maps.popitem(last=False)
        return signals

    def _mask(self, i: int, path: Path) -> None:
        """Write the signals of an image to a file that is there only when complete."""
        n_volumes = int(self._starts[i + 1] - self._starts[i])
        LOGGER.info(
            "Masking image %d of %d, %s, %d volumes",
            i + 1,
            len(self.images),
            _name(self.images[i]),
            n_volumes,
        )
        signals = _transform(self.masker, self.images[i], self.confounds[i])
        if signals.shape != (n_volumes, self.shape[1]):
            raise ValueError(
                f"The masker made signals of shape {signals.shape} from the "
                f"{n_volumes} volumes of {_name(self.images[i])} and the "
                f"{self.shape[1]} voxels of the mask; it must keep all of them."
            )
        part = path.with_name(f"{path.stem}-{os.getpid()}-{threading.get_ident()}.part")
        try:
            with open(part, "wb") as file:
                np.save(file, np.ascontiguousarray(signals, self.dtype))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    def _digest(self, i: int) -> str:
        if i not in self._digests:
            what = [self._masking, *_identity(self.images[i])]
            if self.confounds[i] is not None:
                what.append(_identity_of_confounds(self.confounds[i]))
            self._digests[i] = joblib.hash(repr(what))
        return self._digests[i]

    def _folder(self) -> Path:
        if self.cache is not None:
            self.cache.mkdir(parents=True, exist_ok=True)
            return self.cache
        with self._lock:
            if self._temporary is None:
                self._temporary = Path(tempfile.mkdtemp(prefix="somf-"))
                weakref.finalize(self, shutil.rmtree, self._temporary, True)
            return self._temporary

    def __getstate__(self) -> dict[str, Any]:
        """A copy without a lasting `cache` masks the images again, for itself."""
        own = ("_temporary", "_maps", "_lock")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


def _by_path(image: Any) -> Any:
    """Return the path of an image whose data are still in their file, or the image."""
    nibabel = need("nibabel", "fmri", "Reading NIfTI images")
    if isinstance(image, str | os.PathLike):
        return os.fspath(existing_file(image))
    if _is_surface(image):
        return image
    if not hasattr(image, "dataobj"):
        raise TypeError(
            f"images holds a {type(image)}; an image must be a path or an image of "
            "nibabel."
        )
    name = image.get_filename()
    if nibabel.is_proxy(image.dataobj) and name and os.path.exists(name):
        stored = nibabel.load(name)
        if stored.shape == image.shape and np.array_equal(stored.affine, image.affine):
            return os.path.abspath(name)
    return image


def _name(image: Any) -> str:
    return image if isinstance(image, str) else "in memory"


def _count_volumes(image: Any) -> int:
    """Return the number of volumes of an image, from its header."""
    if _is_surface(image):
        return int(image.shape[1]) if len(image.shape) > 1 else 1
    shape = _load(image).shape
    if len(shape) not in (3, 4):
        raise ValueError(
            f"The image {_name(image)} has {len(shape)} dimensions, shape {shape}; it "
            "must have 4, the last one time, or 3 for a single volume."
        )
    return int(shape[3]) if len(shape) == 4 else 1


def _is_surface(image: Any) -> bool:
    return hasattr(image, "mesh") and hasattr(image, "data")


def _values(image: Any) -> list[Array]:
    """Return the values of an image: one array, or one for each part of a surface."""
    if _is_surface(image):
        return [np.asarray(part) for _, part in sorted(image.data.parts.items())]
    return [np.asanyarray(image.dataobj)]


def _mesh(image: Any) -> list[Any]:
    """Return the names, points and triangles of the parts of a surface."""
    return [
        (name, np.asarray(part.coordinates), np.asarray(part.faces))
        for name, part in sorted(image.mesh.parts.items())
    ]


def _place(mask: Any) -> str:
    """Return a digest of where the voxels of a mask are."""
    inside = [np.ascontiguousarray(part != 0) for part in _values(mask)]
    if _is_surface(mask):
        return str(joblib.hash((inside, _mesh(mask))))
    # The same for a mask in memory and in its file, which rounds to float32.
    affine = np.ascontiguousarray(mask.affine, np.float32)
    return str(joblib.hash((inside[0], affine)))


def _transform(masker: Any, image: Any, confounds: Any) -> Array:
    """Return the signals of one image, whatever kind of masker it is."""
    if confounds is not None and hasattr(masker, "transform_imgs"):
        confounds = [confounds]  # maskers of many images take a list
    signals = masker.transform(_with_time(image), confounds=confounds)
    return np.atleast_2d(np.asarray(signals))


def _with_time(image: Any) -> Any:
    """Return an image with 4 dimensions; versions of nilearn differ about 3."""
    if _is_surface(image):
        return image
    loaded = _load(image)
    if len(loaded.shape) == 4:
        return image
    return type(loaded)(np.asanyarray(loaded.dataobj)[..., None], loaded.affine)


def _load(image: Any) -> Any:
    nibabel = need("nibabel", "fmri", "Reading NIfTI images")
    if not isinstance(image, str):
        return image
    unreadable = (
        nibabel.filebasedimages.ImageFileError,
        nibabel.spatialimages.HeaderDataError,
    )
    try:
        return nibabel.load(image)
    except unreadable as error:
        raise ValueError(f"{image} is not a readable NIfTI image ({error}).") from error


def _identity(image: Any) -> list[Any]:
    """Return what tells an image from any other, and from itself once it changes."""
    if isinstance(image, str):
        stat = os.stat(image)
        return [os.path.realpath(image), stat.st_mtime_ns, stat.st_size]
    where = _mesh(image) if _is_surface(image) else image.affine
    return [joblib.hash(_values(image)), joblib.hash(where)]


def _identity_of_confounds(confounds: Any) -> Any:
    if isinstance(confounds, str | os.PathLike):
        return _identity(os.fspath(confounds))
    return joblib.hash(confounds)


def _check_confounds(confounds: Any, n_images: int) -> list[Any]:
    """Return the confounds of every image, None where there are none."""
    if confounds is None:
        return [None] * n_images
    if not isinstance(confounds, list | tuple) or len(confounds) != n_images:
        given = type(confounds).__name__
        if isinstance(confounds, list | tuple):
            given = f"a list of {len(confounds)}"
        raise ValueError(
            f"Number of confounds must match number of images: confounds is {given}, "
            f"and there are {n_images} images. Give a list with one entry for each, "
            "None for an image without."
        )
    return list(confounds)


def _build_masker(
    images: list[Any],
    mask_img: Any,
    standardize: str | bool | None,
    detrend: bool | None,
    smoothing_fwhm: float | None,
) -> Any:
    maskers = need("nilearn.maskers", "fmri", "Reading NIfTI images")
    if mask_img is None:
        masking = need("nilearn.masking", "fmri", "Reading NIfTI images")
        LOGGER.info("Computing a mask from %d images", len(images))
        mask_img = masking.compute_multi_epi_mask(images)
    if standardize is None or standardize is True:
        standardize = "zscore_sample"
    masker = maskers.NiftiMasker(
        mask_img=mask_img,
        standardize=standardize or None,  # nilearn's word for no
        detrend=True if detrend is None else detrend,
        smoothing_fwhm=smoothing_fwhm,
        reports=False,
    )
    return masker.fit()


def _check_masker(masker: Any, **others: Any) -> None:
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise ValueError(
            f"{', '.join(given)} cannot be given beside masker, which decides; set it "
            "there, or leave masker out."
        )
    if getattr(masker, "mask_img_", None) is None:
        raise ValueError(
            "The masker has no mask yet; fit it first: masker.fit(images), or "
            "masker.fit() if it was given a mask_img."
        )


def _digest_masker(masker: Any, place: str, dtype: np.dtype[Any]) -> str:
    """Return a digest of all that decides what the masker makes of an image."""
    nilearn = need("nilearn", "fmri", "Reading NIfTI images")
    parameters = {
        name: joblib.hash(value)
        for name, value in masker.get_params(deep=False).items()
        if name not in NO_MATTER
    }
    what = [
        sorted(parameters.items()),
        place,
        dtype.str,
        type(masker).__name__,
        nilearn.__version__,
    ]
    return str(joblib.hash(repr(what)))
