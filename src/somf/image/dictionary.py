"""`PatchDictionary`: a dictionary of the patches of images, and what it is good for."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from somf.estimator import SOMF
from somf.image.coding import Coder
from somf.image.files import as_image, band_numbers, select_bands
from somf.image.noise import estimate_sigma
from somf.image.overlap import average_overlaps, blocks, centred_strip
from somf.image.patches import Preparation
from somf.image.pictures import default_bands, draw_grid
from somf.image.restoration import Change, Gapped, check_finite, denoiser, filler
from somf.image.training import AlphaRule
from somf.parameters import check_choice, check_number
from somf.progress import PATIENCE, CountProgress
from somf.sampling import as_generator
from somf.sources.base import SampleSource
from somf.sources.patches import PatchSource
from somf.sources.stacked import StackedSource
from somf.threads import Team, resolve_n_threads

if TYPE_CHECKING:
    from somf.report import Page

Array = NDArray[Any]
Image = Any  # what `as_image` takes

SETTINGS = ("dictionary", "non-negative")
# Patches of an epoch up to which step="auto" takes all that there are.
MOST_PATCHES = 20_000


class PatchDictionary(TransformerMixin, BaseEstimator):
    """A dictionary of the patches of images, with all their bands.

    Learns atoms of the size of a patch of which few make up any patch of the image. It
    then denoises and fills in images, and turns them into maps of sparse codes for a
    classifier. An image is a path (.npy, ENVI, .mat, GeoTIFF, photo: see
    :func:`somf.image.read_image`), an array or memory map (height, width) or (height,
    width, bands), a Dask array, or a hyperspy signal, lazy or not. It is read patch by
    patch, and computed with in float32.

    Parameters
    ----------
    n_components : int, default=256
        Number of atoms.
    setting : {"dictionary", "non-negative"}, default="dictionary"
        "dictionary": the mean of each band is taken off a patch, which is then scaled
        to unit norm; atoms and codes have any sign. "non-negative": patches as they
        are, atoms and codes >= 0.
    patch_size : (int, int), default=(16, 16)
        Height and width of a patch; it has all bands.
    alpha : float or "auto", default="auto"
        Weight of the penalty on the codes. "auto" finds the one for which a share
        `nonzero` of the codes is not zero, see :class:`somf.image.training.AlphaRule`.
    nonzero : float, default=0.03
        See `alpha`.
    code_l1_ratio : float in (0, 1], default=1.0
        Less than 1 is an elastic net, see :class:`somf.SOMF`.
    step : int or "auto", default="auto"
        Distance of neighbouring patches in training. "auto" is 1, or more for images
        of which an epoch would have more than 20 000 patches.
    bands : slice or sequence of int, default=None
        Bands to use; None takes all.
    n_epochs : int, default=10
    reduction : float >= 1 or "auto", default="auto"
    batch_size : int or "auto", default="auto"
    n_threads : int, default=None
    progress : bool or "auto", default="auto"
    random_state : int, RandomState instance, Generator or None, default=None
        As in :class:`somf.SOMF`.

    Attributes
    ----------
    model_ : somf.SOMF
        The factorization of the patches, with its trace.
    alpha_ : float
    components_ : array of shape (n_components, n_features)
    atoms_ : array of shape (n_components, patch_height, patch_width, n_bands)
    atom_spectra_ : array of shape (n_components, n_bands)
        The mean of each band of an atom; its root mean square in the setting
        "dictionary", where means are zero.
    n_bands_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from somf.image import PatchDictionary
    >>> rng = np.random.default_rng(0)
    >>> image = np.cumsum(rng.standard_normal((14, 12, 3)), axis=1)
    >>> model = PatchDictionary(8, patch_size=(4, 4), random_state=0).fit(image)
    >>> model.atoms_.shape
    (8, 4, 4, 3)
    >>> model.transform(image).shape
    (14, 12, 8)
    >>> model.denoise(image).shape
    (14, 12, 3)
    """

    def __init__(
        self,
        n_components: int = 256,
        *,
        setting: str = "dictionary",
        patch_size: tuple[int, int] = (16, 16),
        alpha: float | str = "auto",
        nonzero: float = 0.03,
        code_l1_ratio: float = 1.0,
        step: int | str = "auto",
        bands: slice | ArrayLike | None = None,
        n_epochs: int = 10,
        reduction: float | str = "auto",
        batch_size: int | str = "auto",
        n_threads: int | None = None,
        progress: bool | str = "auto",
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.setting = setting
        self.patch_size = patch_size
        self.alpha = alpha
        self.nonzero = nonzero
        self.code_l1_ratio = code_l1_ratio
        self.step = step
        self.bands = bands
        self.n_epochs = n_epochs
        self.reduction = reduction
        self.batch_size = batch_size
        self.n_threads = n_threads
        self.progress = progress
        self.random_state = random_state

    # -- training --------------------------------------------------------------------

    def fit(self, X: Image | list[Image], y: Any = None) -> Self:
        """Learn the atoms.

        Parameters
        ----------
        X : image, list of images, or array of patches
            NaN stands for pixels that are not known, which takes longer. An array (n,
            patch_height, patch_width, n_bands) holds patches, as
            ``sklearn.feature_extraction.image.extract_patches_2d`` gives them. With
            patches of one pixel, an array (n, n_bands) holds spectra.
        y : ignored

        Returns
        -------
        self : object
        """
        self._check_parameters()
        images = [self._image(x) for x in (X if isinstance(X, list) else [X])]
        _check_bands(images)
        missing = any(_has_gaps(image) for image, _ in images)
        source = self._training_source(images, missing)
        model = self._new_model(missing)
        if self.alpha == "auto":
            rng = as_generator(self.random_state)
            rule = AlphaRule(source, images[0][0].shape[2], self.nonzero, rng)
            model.alpha = rule.before(model)
        model.fit(source)
        if self.alpha == "auto":
            model.alpha = rule.after(model)
        self.model_ = model
        self.n_bands_ = int(images[0][0].shape[2])
        return self

    def _check_parameters(self) -> None:
        check_choice("setting", self.setting, SETTINGS)
        check_number("nonzero", self.nonzero, 1e-6, 1)
        if self.alpha != "auto":
            check_number("alpha", self.alpha, 0, hint='"auto" finds one.')
        if self.step != "auto":
            check_number("step", self.step, 1, integer=True)
        check_number("n_components", self.n_components, 1, integer=True)
        check_number("code_l1_ratio", self.code_l1_ratio, 1e-3, 1)
        sizes = np.atleast_1d(np.asarray(self.patch_size))
        if sizes.shape != (2,) or sizes.dtype.kind not in "iu" or sizes.min() < 1:
            raise ValueError(
                f"patch_size={self.patch_size!r} must be two whole numbers of at least "
                "1, (height, width)."
            )

    def _new_model(self, missing: bool) -> SOMF:
        positive = self.setting == "non-negative"
        return SOMF(
            self.n_components,
            alpha=1.0 if self.alpha == "auto" else self.alpha,  # type: ignore[arg-type]
            code_l1_ratio=self.code_l1_ratio,
            positive_code=positive,
            positive_dict=positive,
            n_epochs=self.n_epochs,
            reduction=self.reduction,
            batch_size=self.batch_size,
            missing="mask" if missing else "error",
            n_threads=self.n_threads,
            progress=self.progress,
            random_state=self.random_state,
        )

    def _image(self, X: Image) -> tuple[Array, int | None]:
        """Return an image with the bands in use, and the step of a stack of patches.

        A stack of patches is an image in which they stand one under the other.
        """
        shape = tuple(getattr(X, "shape", ()))
        if len(shape) == 4 and shape[1:3] == tuple(self.patch_size):
            X = np.asarray(X)
            column = X.reshape(-1, *shape[2:])
            return select_bands(as_image(column), self.bands), shape[1]
        if len(shape) == 2 and tuple(self.patch_size) == (1, 1):
            return select_bands(as_image(np.asarray(X)[:, None]), self.bands), 1
        return select_bands(as_image(X), self.bands), None

    def _training_source(
        self, images: list[tuple[Array, int | None]], missing: bool
    ) -> SampleSource:
        step = 1 if self.step == "auto" else int(self.step)
        while True:
            sources = [
                self._source(image, stack or step, missing=missing)
                for image, stack in images
            ]
            n_patches = sum(source.shape[0] for source in sources)
            free = self.step == "auto" and any(stack is None for _, stack in images)
            if not free or n_patches <= MOST_PATCHES or step >= min(self.patch_size):
                return sources[0] if len(sources) == 1 else StackedSource(sources)
            step += 1

    def _source(
        self, image: Array, step: int, *, missing: bool = False, prepared: bool = True
    ) -> PatchSource:
        how = self._preparation()
        return PatchSource(
            image,
            self.patch_size,
            center=how.center and prepared,
            scale=how.scale and prepared,
            step=step,
            missing=missing,
            n_threads=self.n_threads,
        )

    def _preparation(self) -> Preparation:
        signed = self.setting == "dictionary"
        # Nothing would be left of a pixel without its mean.
        return Preparation(signed and tuple(self.patch_size) != (1, 1), signed)

    # -- use -------------------------------------------------------------------------

    def transform(self, X: Image, *, step: int = 1) -> Array:
        """Return the codes of the patches centred on the pixels of an image.

        Parameters
        ----------
        X : image, or array of patches
            Beyond its borders the image goes on as in a mirror.
        step : int
            Distance of neighbouring patches.

        Returns
        -------
        codes : array of shape (height / step, width / step, n_components)
            ``codes[i, j]`` belongs to the pixel ``X[step * i, step * j]``, so
            ``codes[labels > 0]`` goes with ``labels[labels > 0]`` if `step` is 1. About
            `nonzero` of the numbers are not zero. For an array of n patches or spectra
            (see `fit`): (n, n_components).
        """
        check_is_fitted(self)
        check_number("step", step, 1, integer=True)
        image, stack = self._known_image(X)
        if stack is not None:
            return self.model_.transform(self._source(image, stack))
        rows = range(0, image.shape[0], step)
        n_columns = len(range(0, image.shape[1], step))
        codes = np.empty((len(rows), n_columns, len(self.components_)), np.float32)
        with self._team() as team, self._telling("transform") as progress:
            coder = self._coder(team)
            for i, row in enumerate(rows):
                strip = centred_strip(image, row, self.patch_size)
                check_finite(strip)
                source = self._source(strip, step)
                for numbers in blocks(source):
                    found = coder.codes(source.read(numbers), self.alpha_)
                    codes[i, numbers] = found
                progress(row, image.shape[0])
        return codes

    def denoise(
        self,
        image: Image,
        sigma: float | None = None,
        *,
        step: int | None = None,
        out: Array | None = None,
    ) -> Array:
        """Return an image without its noise.

        Every patch is replaced by a sparse sum of atoms, with a penalty that suits the
        noise, and every pixel by the mean of all patches that hold it. The mean spectra
        of patches are brought into the subspace that holds more than noise.

        Parameters
        ----------
        image : image
        sigma : float, default=None
            Standard deviation of the noise; None estimates it from the image.
        step : int, default=None
            Distance of neighbouring patches: 1 is best and slowest. None is a quarter
            of the patch.
        out : array of the shape of the image, default=None
            Where the result goes, such as a memory map for one larger than memory.

        Returns
        -------
        denoised : array of float32, of the shape of the image (with the bands in use)
        """
        check_is_fitted(self)
        cube, _ = self._known_image(image)
        if sigma is None:
            sigma = estimate_sigma(cube)
        check_number("sigma", sigma, 0)
        floor = float(np.finfo(np.float32).eps)
        sigma = max(float(sigma), floor)  # of an image that is constant
        center = self._preparation().center
        with self._team() as team:
            source = self._source(cube, 1, prepared=False)
            args = (self._coder(team), center, source, self.n_bands_, sigma)
            return self._rebuild("denoise", cube, denoiser(*args), step, out, image)

    def inpaint(
        self,
        image: Image,
        mask: ArrayLike | None = None,
        *,
        step: int | None = None,
        out: Array | None = None,
    ) -> Array:
        """Return an image with its gaps filled; what is known stays as it is.

        Parameters
        ----------
        image : image
        mask : array of bool, (height, width) or (height, width, bands), default=None
            True where the image is known. NaN is never known; None means that all else
            is.
        step, out : as for `denoise`

        Returns
        -------
        filled : array of float32, of the shape of the image (with the bands in use)
            NaN where gaps are wider than patches, with a warning.
        """
        check_is_fitted(self)
        cube, _ = self._known_image(image)
        gapped = Gapped(cube, self._known_pixels(mask, cube))
        how = self._preparation()
        with self._team() as team:
            change = filler(self._coder(team), how, self.n_bands_, self.alpha_)
            filled = self._rebuild("inpaint", gapped, change, step, out, image)
        n_left = gapped.put_known(filled.reshape(cube.shape))
        if n_left:
            warnings.warn(
                f"{n_left} values are in gaps wider than a patch, and remain NaN; use "
                f"patches larger than {tuple(self.patch_size)}.",
                stacklevel=2,
            )
        return filled

    def _known_pixels(self, mask: ArrayLike | None, cube: Array) -> Array | None:
        if mask is None:
            return None
        known = np.asarray(mask)
        if known.dtype.kind != "b" or known.shape[:2] != cube.shape[:2]:
            raise ValueError(
                f"mask has shape {known.shape} and type {known.dtype}; it must be "
                f"boolean, (height, width) = {cube.shape[:2]} or with bands too, and "
                "True where the image is known."
            )
        if known.ndim == 2:
            return known[:, :, None]
        known = select_bands(known, self.bands)
        if known.shape != cube.shape:
            raise ValueError(
                f"mask has {known.shape[2]} bands, but the image {cube.shape[2]}; give "
                "one for each band, or (height, width) for all of them."
            )
        return known

    def _rebuild(
        self,
        what: str,
        cube: Array | Gapped,
        change: Change,
        step: int | None,
        out: Array | None,
        image: Image,
    ) -> Array:
        """Put an image together from changed patches, with the axes it came with."""
        size = self.patch_size
        if step is None:
            step = max(1, min(size) // 4)
        check_number("step", step, 1, min(size), integer=True)
        flat = cube.shape[2] == 1 and len(getattr(image, "shape", (0, 0))) == 2
        shape = cube.shape[:2] if flat else cube.shape
        if out is None:
            out = np.empty(shape, np.float32)
        if out.shape != shape:
            raise ValueError(f"out has shape {out.shape}; it must be {shape}.")
        view = out.reshape(cube.shape)
        with self._telling(what) as progress:
            average_overlaps(cube, size, step, change, view, progress, self.n_threads)
        return out

    def _telling(self, what: str) -> CountProgress:
        return CountProgress(what, "rows", wanted=self.progress, delay=PATIENCE)

    def _known_image(self, X: Image) -> tuple[Array, int | None]:
        """Return an image that has as many bands as those of the training."""
        image, stack = self._image(X)
        if image.shape[2] != self.n_bands_:
            raise ValueError(
                f"The image has {image.shape[2]} bands; the dictionary was learned "
                f"from {self.n_bands_}. Give an image of the same sensor."
            )
        return image, stack

    def _team(self) -> Team:
        return Team(resolve_n_threads(self.n_threads))

    def _coder(self, team: Team) -> Coder:
        positive = self.setting == "non-negative"
        return Coder(self.components_, self.code_l1_ratio, positive, team)

    # -- what was learned ------------------------------------------------------------

    @property
    def components_(self) -> Array:
        """The atoms as rows, (n_components, n_features)."""
        check_is_fitted(self)
        return self.model_.components_

    @property
    def alpha_(self) -> float:
        """The alpha in use."""
        check_is_fitted(self)
        return float(self.model_.alpha)

    @property
    def atoms_(self) -> Array:
        """The atoms as images, (n_components, patch_height, patch_width, n_bands)."""
        return self.components_.reshape(-1, *self.patch_size, self.n_bands_)

    @property
    def atom_spectra_(self) -> Array:
        """A spectrum for each atom, (n_components, n_bands)."""
        if self._preparation().center:
            return np.asarray(np.sqrt(np.square(self.atoms_).mean(axis=(1, 2))))
        return np.asarray(self.atoms_.mean(axis=(1, 2)))

    def atom_grid(
        self,
        bands: ArrayLike | None = None,
        *,
        n_atoms: int | None = None,
        n_columns: int | None = None,
    ) -> Array:
        """Return a picture of the atoms side by side, those used most first.

        Parameters
        ----------
        bands : 1 or 3 numbers of bands, default=None
            Shown in grey, or as red, green and blue; None takes three that are spread
            over all bands, or the first of two.
        n_atoms : int, default=None
            How many; None is all.
        n_columns : int, default=None
            None makes the grid square.

        Returns
        -------
        picture : array of shape (height, width) or (height, width, 3), from 0 to 1
            For ``matplotlib.pyplot.imshow``. Each atom has a contrast of its own.
        """
        chosen = default_bands(self.n_bands_) if bands is None else np.ravel(bands)
        if len(chosen) not in (1, 3):
            raise ValueError(f"bands={bands!r} must be 1 or 3 numbers of bands.")
        used = np.argsort(-np.diagonal(self.model_.state_.C), kind="stable")[:n_atoms]
        numbers = band_numbers(chosen, self.n_bands_)
        return draw_grid(self.atoms_[used][..., numbers], n_columns)

    def report(
        self, path: str | os.PathLike[str] | None = None, *, image: Image = None
    ) -> Page:
        """Return a page about the run, with the atoms as patches and their spectra.

        Needs the extra `report`. With `path`, it is written there, too. An `image` adds
        which atoms its patches use, and some of them with their reconstructions.
        """
        check_is_fitted(self)
        from somf.report import PatchGrid

        patches = None
        if image is not None:
            cube, stack = self._known_image(image)
            patches = self._source(cube, stack or min(self.patch_size))
        atoms = PatchGrid(self.atoms_)
        return self.model_.report(path, X=patches, atoms=atoms)

    # -- files -----------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the dictionary with its whole state to one file, atomically.

        The file is data (safetensors): reading it runs no code. ``SOMF.load`` reads the
        factorization alone.
        """
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        if isinstance(self.bands, slice):
            bands = self.bands
            parameters["bands"] = {"slice": [bands.start, bands.stop, bands.step]}
        elif self.bands is not None:
            parameters["bands"] = np.ravel(self.bands).tolist()
        seed = self.random_state
        parameters["random_state"] = int(seed) if isinstance(seed, int) else None
        parameters["patch_size"] = [int(size) for size in self.patch_size]
        kept = {"parameters": parameters, "n_bands": self.n_bands_}
        self.model_._write(path, patch_dictionary=kept)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a dictionary that `save` wrote."""
        model, attributes = SOMF._read(path)
        if "patch_dictionary" not in attributes:
            raise ValueError(
                f"{os.fspath(path)} is a SOMF model, not a PatchDictionary: it does "
                "not know the size of patches. SOMF.load reads it."
            )
        kept = attributes["patch_dictionary"]
        parameters = kept["parameters"]
        parameters["patch_size"] = tuple(parameters["patch_size"])
        if isinstance(parameters["bands"], dict):
            parameters["bands"] = slice(*parameters["bands"]["slice"])
        dictionary = cls(**parameters)
        dictionary.model_ = model
        dictionary.n_bands_ = kept["n_bands"]
        return dictionary


def _check_bands(images: list[tuple[Array, int | None]]) -> None:
    """Raise unless all images have as many bands."""
    counts = [image.shape[2] for image, _ in images]
    if not counts:
        raise ValueError("The list of images is empty; give at least one.")
    if len(set(counts)) > 1:
        raise ValueError(
            f"The images have {counts} bands; a dictionary is learned from images of "
            "one sensor, with the same bands."
        )


def _has_gaps(image: Array) -> bool:
    """Whether an image has NaN; infinity is an error. Read some rows at a time."""
    if image.dtype.kind != "f":
        return False
    gaps = False
    for row in image:
        if not np.isfinite(row.sum(dtype=np.float64)):
            if np.isinf(row).any():
                raise ValueError(
                    "The image holds infinity; repair it, or put NaN where values are "
                    "not known."
                )
            gaps = gaps or bool(np.isnan(row).any())
    return gaps
