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
from somf.image.files import band_numbers
from somf.image.form import Opened, PatchForm, bands_of, plain_bands
from somf.image.inputs import as_list, check_bands, has_gaps, known_pixels, output
from somf.image.noise import estimate_sigma
from somf.image.overlap import average_overlaps, blocks, centred_strip
from somf.image.pictures import default_bands, draw_grid
from somf.image.restoration import (
    Change,
    Gapped,
    check_finite,
    copy_rows,
    denoiser,
    filler,
)
from somf.image.training import AlphaRule
from somf.parameters import check_choice, check_number
from somf.progress import PATIENCE, CountProgress
from somf.sampling import as_generator
from somf.solver.storage import plain
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
        X : image, list or tuple of images, or array of patches
            NaN stands for pixels that are not known, which takes longer. An array (n,
            patch_height, patch_width, n_bands) holds patches, as
            ``sklearn.feature_extraction.image.extract_patches_2d`` gives them; those of
            a grey image lack the last axis: give ``patches[..., None]``. With patches
            of one pixel, an array (n, n_bands) holds spectra.
        y : ignored

        Returns
        -------
        self : object
        """
        self._check_parameters()
        form = self._new_form()
        images = [form.open(x) for x in as_list(X)]
        check_bands([image.cube for image in images])
        missing = any([has_gaps(image.cube) for image in images])  # all of them
        n_bands = int(images[0].cube.shape[2])
        source = self._training_source(form, images, missing)
        model = self._new_model(missing)
        if self.alpha == "auto":
            rng = as_generator(self.random_state)
            rule = AlphaRule(source, n_bands, self.nonzero, rng)
            model.alpha = rule.before(model)
        model.fit(source)
        if self.alpha == "auto":
            model.alpha = rule.after(model)
        self.model_ = model
        self.n_bands_ = n_bands
        self._form = form
        return self

    def fit_transform(self, X: Image, y: Any = None) -> Array:
        """Learn the atoms of one image, or array of patches, and return its codes."""
        if isinstance(X, list | tuple):
            raise TypeError(
                "fit_transform takes one image, since codes of several have no common "
                "shape: use fit(images), then transform(image) for each."
            )
        return self.fit(X).transform(X)

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

    def _new_form(self) -> PatchForm:
        height, width = (int(size) for size in self.patch_size)
        return PatchForm((height, width), self.setting, self.bands, self.code_l1_ratio)

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

    def _training_source(
        self, form: PatchForm, images: list[Opened], missing: bool
    ) -> SampleSource:
        step = 1 if self.step == "auto" else int(self.step)
        if self.step == "auto" and any(image.stack is None for image in images):
            while step < min(form.patch_size):
                counts = [form.count(i.cube, i.stack or step) for i in images]
                if sum(counts) <= MOST_PATCHES:
                    break
                step += 1
        sources = [
            form.source(
                image.cube,
                image.stack or step,
                missing=missing,
                n_threads=self.n_threads,
            )
            for image in images
        ]
        return sources[0] if len(sources) == 1 else StackedSource(sources)

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
        form = self._form
        image, stack, _ = self._known_image(X)
        if stack is not None:
            source = self._patches(image, stack)
            return np.asarray(self.model_.transform(source))
        rows = range(0, image.shape[0], step)
        n_columns = len(range(0, image.shape[1], step))
        codes = np.empty((len(rows), n_columns, len(self.components_)), np.float32)
        with self._team() as team, self._telling("transform") as progress:
            coder = self._coder(team)
            for i, row in enumerate(rows):
                strip = centred_strip(image, row, form.patch_size)
                check_finite(strip)
                source = form.source(strip, step, n_threads=self.n_threads)
                for numbers in blocks(source):
                    found = coder.codes(source.read(numbers), self.alpha_)
                    codes[i, numbers] = found
                progress(i + 1, len(rows))
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
            Standard deviation of the noise; None estimates it from the image. 0 gives
            the image as it is.
        step : int, default=None
            Distance of neighbouring patches: 1 is best and slowest. None is a quarter
            of the patch.
        out : array of the shape of the image, default=None
            Where the result goes, such as a memory map for one larger than memory;
            may be the image itself. It holds floats.

        Returns
        -------
        denoised : array of float32, of the shape of the image (with the bands in use)
        """
        check_is_fitted(self)
        opened = self._known_image(image)
        cube = opened.cube
        self._form.check_size(cube)
        if sigma is None:
            sigma = estimate_sigma(cube)
        check_number("sigma", sigma, 0)
        step, out = self._step(step), output(out, opened.result_shape)
        if sigma == 0:
            copy_rows(cube, out.reshape(cube.shape))
            return out
        center = self._form.preparation.center
        with self._team() as team:
            source = self._form.source(
                cube, 1, prepared=False, n_threads=self.n_threads
            )
            change = denoiser(self._coder(team), center, source, self.n_bands_, sigma)
            self._rebuild("denoise", cube, change, step, out)
        return out

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
        form, opened = self._form, self._known_image(image)
        cube = opened.cube
        form.check_size(cube)
        gapped = Gapped(cube, known_pixels(mask, cube, form.bands))
        step, out = self._step(step), output(out, opened.result_shape)
        gapped.check()
        with self._team() as team:
            coder = self._coder(team)
            change = filler(coder, form.preparation, self.n_bands_, self.alpha_)
            n_left = self._rebuild("inpaint", gapped, change, step, out)
        if n_left:
            warnings.warn(
                f"{n_left} values are in gaps wider than a patch, and remain NaN; use "
                f"patches larger than {form.patch_size}.",
                stacklevel=2,
            )
        return out

    def _step(self, step: int | None) -> int:
        """Return the distance of the patches that an image is put together from."""
        smallest = min(self._form.patch_size)
        if step is None:
            return max(1, smallest // 4)
        check_number("step", step, 1, smallest, integer=True)
        return step

    def _rebuild(
        self, what: str, cube: Array | Gapped, change: Change, step: int, out: Array
    ) -> int:
        """Put an image together from changed patches; return how many gaps it has."""
        with self._telling(what) as progress:
            return average_overlaps(
                cube,
                self._form.patch_size,
                step,
                change,
                out.reshape(cube.shape),
                progress,
                self.n_threads,
                keep_known=isinstance(cube, Gapped),
            )

    def _telling(self, what: str) -> CountProgress:
        return CountProgress(what, "rows", wanted=self.progress, delay=PATIENCE)

    def _patches(self, image: Array, step: int) -> PatchSource:
        """Return the patches of an image as samples of the model, gaps included."""
        missing = self.model_.missing == "mask"
        return self._form.source(image, step, missing=missing, n_threads=self.n_threads)

    def _known_image(self, X: Image) -> Opened:
        """Open an image that has as many bands as those of the training."""
        opened = self._form.open(X)
        n_bands = opened.cube.shape[2]
        if n_bands != self.n_bands_:
            raise ValueError(
                f"The image has {n_bands} bands; the dictionary was learned "
                f"from {self.n_bands_}. Give an image of the same sensor."
            )
        return opened

    def _team(self) -> Team:
        return Team(resolve_n_threads(self.n_threads))

    def _coder(self, team: Team) -> Coder:
        form = self._form
        return Coder(self.components_, form.code_l1_ratio, form.positive, team)

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
        return self.components_.reshape(-1, *self._form.patch_size, self.n_bands_)

    @property
    def atom_spectra_(self) -> Array:
        """A spectrum for each atom, (n_components, n_bands)."""
        if self._form.preparation.center:
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
        for name, value in (("n_atoms", n_atoms), ("n_columns", n_columns)):
            if value is not None:
                check_number(name, value, 1, integer=True)
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
            cube, stack, _ = self._known_image(image)
            step = stack or min(self._form.patch_size)
            patches = self._patches(cube, step)
        atoms = PatchGrid(self.atoms_)
        return self.model_.report(path, X=patches, atoms=atoms)

    # -- files -----------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the dictionary with its whole state to one file, atomically.

        The file is data (safetensors): reading it runs no code. ``SOMF.load`` reads the
        factorization alone.
        """
        check_is_fitted(self)
        # What the atoms were learned with, whatever was set since.
        parameters = {**self.get_params(deep=False), **vars(self._form)}
        parameters = {name: plain(value) for name, value in parameters.items()}
        parameters["bands"] = plain_bands(self._form.bands)
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
        parameters["bands"] = bands_of(parameters["bands"])
        dictionary = cls(**parameters)
        dictionary.model_ = model
        dictionary.n_bands_ = kept["n_bands"]
        dictionary._form = dictionary._new_form()
        return dictionary
