"""`BrainDictionary`: sparse maps of the brain, with the habits of nilearn."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from nilearn.decomposition import DictLearning
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from somf.checkpoints import Interrupted, find, read_newest
from somf.estimator import SOMF
from somf.fmri.atlas import write_atlas
from somf.fmri.evaluation import explained_variance
from somf.fmri.maskers import (
    fit_maps_masker,
    fit_masker,
    mask_maps,
    signals_folder,
)
from somf.fmri.records import as_records
from somf.fmri.start import choose_alpha, draw_volumes, independent_maps
from somf.parameters import check_parameters
from somf.progress import CountProgress
from somf.sampling import as_generator
from somf.sources.checks import need
from somf.sources.nifti import NiftiSource

if TYPE_CHECKING:
    from somf.report import Page

Array = NDArray[Any]

STARTS = ("ica", "samples", "random")
IN_VIEW = 20_000  # voxels: fewer make the maps of a good start worse before better


class BrainDictionary(DictLearning):
    """Learn sparse maps of the brain from fMRI records of any size.

    Takes the place of :class:`nilearn.decomposition.DictLearning`: the same images,
    the same attributes. Records are masked once, then streamed, so they need not fit in
    memory; the maps are learned by :class:`somf.SOMF` with ridge codes and an l1 ball.

    Parameters
    ----------
    n_components : int, default=70
        Number of maps.
    alpha : float or "auto", default="auto"
        Weight of the penalty on time courses; the larger, the sparser the maps. "auto"
        makes short runs on a sample until maps have the `coverage` asked for.
    coverage : float, default=2.0
        How many maps a voxel belongs to on average, at most half of them: maps have
        `coverage / n_components` of the voxels each, and together cover the brain.
        For "auto".
    positive_maps : bool, default=False
        Whether maps are non-negative.
    reduction : float >= 1 or "auto", default="auto"
        Voxels over those that an iteration looks at. "auto" looks at 20 000 or more.
    n_epochs : int, default=10
        Most passes over all volumes.
    tol : float, default=1e-3
        Stops when the objective has not fallen by this part of itself for two epochs.
    batch_size : int or "auto", default="auto"
        Volumes of an iteration, drawn from all records.
    dict_init : {"ica", "samples", "random"} or image, default="ica"
        First maps: by spatial ICA of some volumes; some volumes; noise; given.
    checkpoint : str or path, default=None
        Folder for checkpoints, from which ``fit(..., resume=True)`` continues.
    checkpoint_minutes : float, default=10.0
        Minutes between checkpoints.
    n_threads : int, default=None
        Threads of the learning; None takes all cores.
    random_state : int, RandomState instance, Generator or None, default=None
        A fixed one gives the same maps on the same machine.
    mask : image, masker or None, default=None
        Mask, or masker of nilearn whose parameters take the place of those below. None
        computes a mask by `mask_strategy` and `mask_args`.
    smoothing_fwhm : float or None, default=4
        Width of a smoothing filter in millimetres.
    standardize : {"zscore_sample", "psc", True, False} or None, default="zscore_sample"
        What is done to each voxel of a record over time.
    standardize_confounds : bool, default=True
        Whether confounds are made z-scores.
    detrend : bool, default=True
        Whether linear trends are removed from each voxel of a record.
    low_pass : float or None, default=None
        Upper limit of a filter in time, in Hertz.
    high_pass : float or None, default=None
        Its lower limit.
    t_r : float or None, default=None
        Seconds between volumes, for the filter.
    dtype : dtype, "auto" or None, default=None
        Type of what `transform` returns.
    target_affine : array or None, default=None
        Resample images to this space.
    target_shape : tuple or None, default=None
        And to this shape.
    mask_strategy : str, default="epi"
        How a mask is computed, in nilearn's words.
    mask_args : dict or None, default=None
        Parameters of that.
    n_jobs : int, default=1
        Processes that compute the mask.
    memory : joblib.Memory, str or path, default=None
        Where masked records are kept, for other runs; None keeps them in a temporary
        folder while a method runs.
    memory_level : int, default=0
        As in nilearn; masked records are kept at any level.
    verbose : int, default=0
        1 shows progress in a log too; a terminal always shows it.

    Attributes
    ----------
    alpha_ : float
        The alpha in use.
    components_ : array of shape (n_components, n_voxels)
        The maps: of unit norm, their heavier tail positive.
    components_img_ : 4D Nifti image or SurfaceImage
        The maps in the brain.
    maps_masker_ : nilearn masker
        Extracts time series of the maps.
    mask_img_ : image
        The mask of `masker_`.
    masker_ : nilearn masker
        Makes the signals that are learned from.
    model_ : somf.SOMF
        The fitted model, on the scale of the solver, with its trace.

    Examples
    --------
    >>> from somf.fmri import BrainDictionary, simulate
    >>> brains = simulate(n_subjects=2, n_volumes=40, n_maps=5, resolution=8)
    >>> model = BrainDictionary(
    ...     5, mask=brains.mask_img, smoothing_fwhm=None, random_state=0
    ... )
    >>> model.fit(brains.images).components_img_.shape[3]
    5
    >>> [series.shape for series in model.transform(brains.images)]
    [(40, 5), (40, 5)]
    """

    def __init__(
        self,
        n_components: int = 70,
        *,
        alpha: float | str = "auto",
        coverage: float = 2.0,
        positive_maps: bool = False,
        reduction: float | str = "auto",
        n_epochs: int = 10,
        tol: float = 1e-3,
        batch_size: int | str = "auto",
        dict_init: Any = "ica",
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_minutes: float = 10.0,
        n_threads: int | None = None,
        random_state: Any = None,
        mask: Any = None,
        smoothing_fwhm: float | None = 4,
        standardize: Any = "zscore_sample",
        standardize_confounds: bool = True,
        detrend: bool = True,
        low_pass: float | None = None,
        high_pass: float | None = None,
        t_r: float | None = None,
        dtype: Any = None,
        target_affine: Any = None,
        target_shape: Any = None,
        mask_strategy: str = "epi",
        mask_args: dict[str, Any] | None = None,
        n_jobs: int = 1,
        memory: Any = None,
        memory_level: int = 0,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.coverage = coverage
        self.positive_maps = positive_maps
        self.reduction = reduction
        self.n_epochs = n_epochs
        self.tol = tol
        self.batch_size = batch_size
        self.dict_init = dict_init
        self.checkpoint = checkpoint
        self.checkpoint_minutes = checkpoint_minutes
        self.n_threads = n_threads
        self.random_state = random_state
        self.mask = mask
        self.smoothing_fwhm = smoothing_fwhm
        self.standardize = standardize
        self.standardize_confounds = standardize_confounds
        self.detrend = detrend
        self.low_pass = low_pass
        self.high_pass = high_pass
        self.t_r = t_r
        self.dtype = dtype
        self.target_affine = target_affine
        self.target_shape = target_shape
        self.mask_strategy = mask_strategy
        self.mask_args = mask_args
        self.n_jobs = n_jobs
        self.memory = memory
        self.memory_level = memory_level
        self.verbose = verbose

    def fit(
        self, imgs: Any, y: Any = None, confounds: Any = None, *, resume: bool = False
    ) -> Self:
        """Learn maps from records.

        Parameters
        ----------
        imgs : image, list of images, pattern of file names, or folder
            An image is a path, an image of nibabel, or a SurfaceImage of nilearn. A
            folder holds BIDS derivatives, of which confounds are taken too, see
            :func:`somf.fmri.load_bids`.
        y : ignored
        confounds : list, default=None
            For each image what nilearn takes for its confounds.
        resume : bool, default=False
            Whether to continue the run of the folder `checkpoint`, if there is one.

        Returns
        -------
        self : object
        """
        del y
        self._check(resume)
        images, confounds = as_records(imgs, confounds)
        masker = fit_masker(self, images)
        source = self._open(masker, images, confounds)
        try:
            model = self._learn(source, masker)
        except Interrupted as error:  # SOMF.resume would know nothing of brains
            command = "fit(imgs, resume=True) of the same BrainDictionary"
            raise Interrupted(error.signal, error.path, command) from error
        self._take_over(masker, model)
        return self

    def _open(self, masker: Any, images: list[Any], confounds: Any) -> NiftiSource:
        """Mask all records, with progress, and return them as a source."""
        folder = signals_folder(self.memory)
        source = NiftiSource(images, masker, confounds=confounds, cache=folder)
        with CountProgress("mask", "records", wanted=self._progress) as progress:
            source.prepare(progress)
        return source

    @property
    def _progress(self) -> bool | str:
        return True if self.verbose else "auto"

    def _learn(self, source: NiftiSource, masker: Any) -> SOMF:
        if self.checkpoint is not None and find(self.checkpoint):
            return SOMF.resume(self.checkpoint, source)
        rng = as_generator(self.random_state)
        model = self._new_model(random_state=int(rng.integers(2**31)))
        if self._start == "ica" or self.alpha == "auto":
            sample = draw_volumes(source, rng)
        if self._start == "image":
            model.dict_init = mask_maps(masker, self.dict_init)
        elif self._start == "ica":
            model.dict_init = independent_maps(sample, self.n_components, rng)
        if self.reduction == "auto":
            model.reduction = float(np.clip(source.shape[1] / IN_VIEW, 1, 12))
        if self.alpha == "auto":
            model.alpha = choose_alpha(model, sample, self.coverage, rng)
        model.fit(source)
        return model

    def _new_model(self, **parameters: Any) -> SOMF:
        """Return the model to fit, as far as it is known before the images are."""
        return SOMF.sparse_components(
            self.n_components,
            alpha=1.0 if self.alpha == "auto" else self.alpha,
            positive_dict=self.positive_maps,
            reduction=self.reduction,
            n_epochs=self.n_epochs,
            tol=self.tol,
            batch_size=self.batch_size,
            dict_init="random" if self._start == "random" else "samples",
            checkpoint=self.checkpoint,
            checkpoint_minutes=self.checkpoint_minutes,
            n_threads=self.n_threads,
            progress=self._progress,
            **parameters,
        )

    @property
    def _start(self) -> str:
        """Where the maps start from, in a word."""
        named = isinstance(self.dict_init, str) and self.dict_init in STARTS
        return str(self.dict_init) if named else "image"

    def _check(self, resume: bool) -> None:
        """Raise for wrong parameters, before anything is done."""
        model = self._new_model()
        check_parameters(model.get_params(deep=False))
        unknown = isinstance(self.dict_init, str) and self._start == "image"
        if unknown and not Path(self.dict_init).exists():
            raise ValueError(
                f'dict_init={self.dict_init!r} must be one of "ica", "samples", '
                '"random", or an image of maps; there is no such file.'
            )
        if not self.coverage > 0:
            raise ValueError(
                f"coverage={self.coverage} must be above 0: to so many maps does a "
                "voxel belong on average."
            )
        if self.checkpoint is not None and find(self.checkpoint):
            self._check_checkpoint(model, resume)

    def _check_checkpoint(self, model: SOMF, resume: bool) -> None:
        """Raise unless the run of the folder is to be resumed, and is like this one."""
        if not resume:
            raise ValueError(
                f"checkpoint={os.fspath(self.checkpoint)!r} holds checkpoints of "  # type: ignore[arg-type]
                "another run. fit(..., resume=True) continues it; name another folder, "
                "or delete this one, to start anew."
            )
        there: SOMF = read_newest(self.checkpoint, SOMF.load)  # type: ignore[arg-type]
        names = ["n_components", "positive_dict", "n_epochs", "tol", "batch_size"]
        names += [
            name for name in ("alpha", "reduction") if getattr(self, name) != "auto"
        ]
        for name in names:
            if getattr(there, name) != getattr(model, name):
                raise ValueError(
                    f"{name} is {getattr(there, name)!r} in the run that is to be "
                    f"resumed, and {getattr(model, name)!r} here. Resume it with the "
                    "parameters it was started with."
                )

    def _take_over(self, masker: Any, model: SOMF) -> None:
        """Become a fitted estimator."""
        maps = np.array(model.components_)
        maps /= np.maximum(np.linalg.norm(maps, axis=1, keepdims=True), 1e-30)
        maps[np.sum(maps**3, axis=1) < 0] *= -1
        components_img = masker.inverse_transform(maps)
        self.maps_masker_ = fit_maps_masker(self, masker, components_img)
        self.masker_, self.mask_img_ = masker, masker.mask_img_
        self.components_, self.components_img_ = maps, components_img
        self.model_, self.alpha_ = model, float(model.alpha)
        share = np.count_nonzero(maps) / maps.shape[1]
        if share < 0.1:
            warnings.warn(
                f"A voxel belongs to {share:.2g} maps on average: they hold hardly any "
                f"voxel. alpha={self.alpha_:.3g} is too large; it is not on the scale "
                'of nilearn. alpha="auto" chooses one for the `coverage` you want.',
                UserWarning,
                stacklevel=3,
            )

    def transform(self, imgs: Any, confounds: Any = None) -> list[Array]:
        """Return a time series for each map and record, (n_volumes, n_components).

        Maps are regressed on images as they are, with confounds taken out: what
        nilearn's `NiftiMapsMasker` does.

        Parameters
        ----------
        imgs, confounds : as for `fit`

        Returns
        -------
        series : list of arrays, one for each record
        """
        check_is_fitted(self)
        series: list[Array] = super().transform(*as_records(imgs, confounds))
        return series

    def score(
        self,
        imgs: Any,
        y: Any = None,
        confounds: Any = None,
        per_component: bool = False,
    ) -> Any:
        """Return the part of the variance of images that the maps explain.

        Parameters
        ----------
        imgs, confounds : as for `fit`
        y : ignored
        per_component : bool, default=False
            Whether to return what each map explains alone, as an array.
        """
        del y
        check_is_fitted(self)
        source = self._open(self.masker_, *as_records(imgs, confounds))
        return explained_variance(source, self.components_, per_component)

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        imgs: Any = None,
        confounds: Any = None,
    ) -> Page:
        """Return a page about the run, with maps to look at and a viewer.

        Needs the extra `report`. With `path`, it is written there, too. `imgs`, with
        their `confounds`, as for `fit`, add how well some volumes are reconstructed.
        """
        check_is_fitted(self)
        from somf.report import BrainMaps

        volumes = None
        if imgs is not None:
            volumes = self._open(self.masker_, *as_records(imgs, confounds))
        atoms = None  # maps on a surface are shown as profiles
        if len(self.components_img_.shape) == 4:
            atoms = BrainMaps(self.components_img_, self.mask_img_)
        return self.model_.report(path, X=volumes, atoms=atoms)

    def save_atlas(self, path: str | os.PathLike[str]) -> None:
        """Write the maps as an atlas: a 4-D NIfTI file, and a table of labels.

        ``save_atlas("atlas.nii.gz")`` writes `atlas.tsv` beside it, with the number of
        each map, a name, the MNI coordinates of its peak and its number of voxels.
        nilearn's `NiftiMapsMasker` takes the image. Maps on a surface become a GIFTI
        file for each hemisphere, `atlas_hemi-L.gii` and `atlas_hemi-R.gii`.
        """
        check_is_fitted(self)
        write_atlas(Path(path), self.components_img_, self.components_)

    def extract_regions(self, **parameters: Any) -> Any:
        """Return the regions of the maps: nilearn's `RegionExtractor`, fitted.

        Its `regions_img_` holds each connected part of each map as an image. The
        parameters are its own; the mask is that of the maps.
        """
        check_is_fitted(self)
        if len(self.components_img_.shape) != 4:
            raise ValueError(
                "These maps are on a surface; nilearn extracts regions of volumes only."
            )
        regions = need("nilearn.regions", "fmri", "Extracting regions")
        settings = {"mask_img": self.mask_img_, "standardize": None}
        return regions.RegionExtractor(
            self.components_img_, **(settings | parameters)
        ).fit()
