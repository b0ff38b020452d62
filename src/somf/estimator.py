"""`SOMF`, the scikit-learn estimator: parameters, checks, fit, transform, score."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils.validation import (
    check_is_fitted,
    check_non_negative,
    validate_data,
)

from somf.parameters import check_indices, check_parameters
from somf.problem import AtomConstraint, CodePenalty, Problem
from somf.progress import (
    CallbackSupportMixin,
    EpochCallbacks,
    ProgressBar,
    with_callbacks,
)
from somf.sampling import MaskSampler, SampleOrder, as_generator
from somf.solver.evaluation import Evaluation
from somf.solver.initialization import check_atoms, initial_atoms
from somf.solver.iteration import Factorization, Settings
from somf.solver.run import Run, StopRule, record_step
from somf.solver.schedule import (
    PAPER_U,
    PAPER_V,
    Schedule,
    auto_batch_size,
    auto_reduction,
)
from somf.solver.state import State
from somf.solver.storage import read_model, write_model
from somf.solver.trace import Trace
from somf.solver.workspace import Workspace
from somf.sources.base import ArraySource, Batch, SampleSource, read_batch
from somf.threads import Team, resolve_n_threads

Array = NDArray[Any]

EXACT_TOL = 1e-6  # duality gap of codes outside the training loop, relative to ½|x|²


class SOMF(
    CallbackSupportMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    r"""Matrix factorization with sparse or non-negative factors, for huge matrices.

    Minimises, over atoms in a ball and one code for each sample,

    .. math::

        \sum_i \tfrac12 \|x_i - a_i^T \mathrm{components}\|^2 + \alpha \Omega(a_i)

    by subsampled online matrix factorization: samples are streamed in mini-batches,
    and their codes are computed from a random 1/`reduction` of the features only.

    Three settings have names: :meth:`dictionary_learning` (sparse codes),
    :meth:`sparse_components` (sparse atoms, as for brain maps) and :meth:`nmf`.

    Parameters
    ----------
    n_components : int, default=None
        Number of atoms. None takes 50, or n_features or n_samples if that is less.
    alpha : float, default=1.0
        Weight of the penalty on the codes; nothing scales it behind your back.
        :func:`somf.alpha_max` gives the value above which all codes are zero: a tenth
        of it is a good start for sparse codes.
    code_l1_ratio : float in [0, 1], default=1.0
        Penalty on codes: ``code_l1_ratio * |a|_1 + (1 - code_l1_ratio)/2 * |a|_2^2``.
    dict_l1_ratio : float in [0, 1], default=0.0
        Constraint: ``dict_l1_ratio * |d|_1 + (1 - dict_l1_ratio)/2 * |d|_2^2 <= 1``
        for each atom d. Larger values make atoms sparser.
    positive_code, positive_dict : bool, default=False
        Whether codes and atoms are non-negative.
    reduction : float >= 1 or "auto", default="auto"
        n_features over the number of features that an iteration observes. 1 is plain
        online learning. "auto" is 12, or less if that would leave fewer than 1000
        features or fewer than 8 per atom in view.
    reduction_schedule : {"constant", "decreasing"}, default="constant"
        "decreasing" lowers the reduction to 1 in the second half of `fit`, for the last
        digits of precision; all `n_epochs` are then made, whatever `tol` is.
        `partial_fit` does not know the end and stays constant.
    code_estimator : {"masked", "averaged", "gram", "exact"}, default="masked"
        What codes are computed from: the observed features alone; averages over the
        epochs of what was observed (n_samples * n_components**2 numbers in memory); the
        exact Gram matrix with averaged correlations (n_samples * n_components numbers);
        all features. The paper proves that the last three converge to a stationary
        point with ``mask="bernoulli"`` and all of the aggregation.
    aggregation : {"async", "full", "masked"}, default="async"
        How a batch enters the statistics: all features, on other threads while the
        dictionary is updated; all features at once (the same bits); the observed
        features alone, so that nothing in an iteration grows with n_features.
    dict_update : {"auto", "all", "observed"}, default="auto"
        Which features of the dictionary an iteration updates: all of them, from codes
        of the observed ones, or the observed ones, as in the paper. "auto" takes all
        if `code_estimator` is "masked" and `aggregation` is not, and if there are as
        many observed features as atoms. With all, the reduction saves time in the codes
        only, but every iteration improves every feature, and large batches pay.
    mask : {"cycle", "bernoulli"}, default="cycle"
        Features are observed by turns in an order that is drawn anew for each turn, or
        each by a coin of its own.
    mask_block : int, default=1
        Observe features in blocks of this many neighbours: 16 or more read memory and
        disks in whole lines.
    batch_size : int or "auto", default="auto"
        Samples in a mini-batch of `fit`; about n_components or more. "auto" is 200 for
        dense codes and non-negative factors, and up to 12 times n_components for
        sparse codes, or less for few samples: a run of `n_epochs` has 32 iterations,
        and an epoch 2.
    n_epochs : int, default=10
        Most passes over the samples in `fit`.
    tol : float, default=1e-3
        `fit` stops when the objective has not fallen by this part of itself for
        `patience` epochs; 0 always makes `n_epochs`.
    patience : int, default=2
        See `tol`.
    dict_init : {"samples", "random"} or array of shape (n_components, n_features), \
            default="samples"
        First dictionary: random samples, noise, or given.
    n_dict_passes : int, default=1
        Passes over the atoms in each iteration.
    weights : {"fast", "paper"}, default="fast"
        How fast early statistics are forgotten: fast at first and then like
        ``t ** -weight_exponent``, or like that from the start.
    weight_exponent, sample_weight_exponent : float, default=0.917, 0.751
        The paper's u and v. A warning tells when they are outside of its theory.
    code_tol : float, default=1e-4
        Duality gap at which codes are good enough during training, relative to half
        the squared norm of the sample. For non-negative codes the first 100 iterations
        accept 100 times as much, those after them less and less.
    code_max_iter : int, default=1000
        Most sweeps of coordinate descent for a code.
    shuffle : bool, default=True
        Whether `fit` draws a new order of the samples for each epoch.
    averages_folder : str or path, default=None
        Folder for the memory of "averaged" and "gram"; None keeps it in memory, or in
        the system's temporary folder if it is larger than half of the free memory.
    n_threads : int, default=None
        Threads; None takes all cores.
    progress : bool or "auto", default="auto"
        Whether `fit` shows a progress bar; "auto" does on a terminal, after 2 seconds.
    random_state : int, RandomState instance, Generator or None, default=None
        A fixed one gives the same bits on the same machine with the same `n_threads`.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        The dictionary, an atom a row; a read-only view of the state.
    n_components_ : int
    reduction_ : float
    n_iter_, n_steps_ : int
        Epochs of the last `fit`; iterations in all.
    objective_ : float
        Objective of the last epoch, on held-out samples if `fit` got them.
    stop_reason_ : str
        Why `fit` stopped, in words.
    trace_ : dict of arrays
        A row for each iteration: time, objective, density of the codes, replaced atoms,
        seconds of each step. ``pandas.DataFrame(model.trace_)`` makes a table.
    n_features_in_ : int
    feature_names_in_ : array of str, if X had names
    state_ : somf.solver.state.State
        Everything that `partial_fit` continues from.

    Examples
    --------
    >>> import numpy as np
    >>> from somf import SOMF
    >>> rng = np.random.default_rng(0)
    >>> codes = rng.standard_normal((500, 5)) * (rng.random((500, 5)) < 0.3)
    >>> X = codes @ rng.standard_normal((5, 100))
    >>> model = SOMF(5, alpha=0.1, batch_size=20, random_state=0).fit(X)
    >>> model.transform(X).shape
    (500, 5)
    >>> model.components_.shape
    (5, 100)
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        alpha: float = 1.0,
        code_l1_ratio: float = 1.0,
        dict_l1_ratio: float = 0.0,
        positive_code: bool = False,
        positive_dict: bool = False,
        reduction: float | str = "auto",
        reduction_schedule: str = "constant",
        code_estimator: str = "masked",
        aggregation: str = "async",
        dict_update: str = "auto",
        mask: str = "cycle",
        mask_block: int = 1,
        batch_size: int | str = "auto",
        n_epochs: int = 10,
        tol: float = 1e-3,
        patience: int = 2,
        dict_init: str | ArrayLike = "samples",
        n_dict_passes: int = 1,
        weights: str = "fast",
        weight_exponent: float = PAPER_U,
        sample_weight_exponent: float = PAPER_V,
        code_tol: float = 1e-4,
        code_max_iter: int = 1000,
        shuffle: bool = True,
        averages_folder: str | os.PathLike[str] | None = None,
        n_threads: int | None = None,
        progress: bool | str = "auto",
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.code_l1_ratio = code_l1_ratio
        self.dict_l1_ratio = dict_l1_ratio
        self.positive_code = positive_code
        self.positive_dict = positive_dict
        self.reduction = reduction
        self.reduction_schedule = reduction_schedule
        self.code_estimator = code_estimator
        self.aggregation = aggregation
        self.dict_update = dict_update
        self.mask = mask
        self.mask_block = mask_block
        self.batch_size = batch_size
        self.n_epochs = n_epochs
        self.tol = tol
        self.patience = patience
        self.dict_init = dict_init
        self.n_dict_passes = n_dict_passes
        self.weights = weights
        self.weight_exponent = weight_exponent
        self.sample_weight_exponent = sample_weight_exponent
        self.code_tol = code_tol
        self.code_max_iter = code_max_iter
        self.shuffle = shuffle
        self.averages_folder = averages_folder
        self.n_threads = n_threads
        self.progress = progress
        self.random_state = random_state

    # -- presets ---------------------------------------------------------------------

    @classmethod
    def dictionary_learning(
        cls, n_components: int | None = None, **parameters: Any
    ) -> Self:
        """Sparse codes, dense atoms: l1 penalty, l2 ball.

        >>> SOMF.dictionary_learning(100, alpha=0.2)
        SOMF(alpha=0.2, n_components=100)
        """
        settings = {"code_l1_ratio": 1.0, "dict_l1_ratio": 0.0}
        return cls(n_components, **(settings | parameters))

    @classmethod
    def sparse_components(
        cls, n_components: int | None = None, **parameters: Any
    ) -> Self:
        """Sparse atoms, dense codes: ridge penalty, l1 ball, as for brain maps.

        >>> SOMF.sparse_components(70, alpha=1e-3)
        SOMF(alpha=0.001, code_l1_ratio=0.0, dict_l1_ratio=1.0, n_components=70)
        """
        settings = {"code_l1_ratio": 0.0, "dict_l1_ratio": 1.0}
        return cls(n_components, **(settings | parameters))

    @classmethod
    def nmf(cls, n_components: int | None = None, **parameters: Any) -> Self:
        """Non-negative codes and atoms; the l1 penalty makes codes sparse.

        >>> SOMF.nmf(30, alpha=0.1)
        SOMF(alpha=0.1, n_components=30, positive_code=True, positive_dict=True)
        """
        settings = {"positive_code": True, "positive_dict": True}
        return cls(n_components, **(settings | parameters))

    # -- training --------------------------------------------------------------------

    @with_callbacks  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any = None, *, X_val: Any = None) -> Self:
        """Learn the dictionary from samples, in shuffled epochs.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or source of samples
            A C-ordered float array or memory map is read in place, never copied.
        y : ignored
        X_val : like X, default=None
            Held-out samples that judge the run after each epoch.

        Returns
        -------
        self : object
        """
        before = self.__dict__.copy()
        try:
            check_parameters(self.get_params(deep=False))
            source = self._check_samples(X, reset=True)
            held_out = None if X_val is None else self._check_samples(X_val)
            self._check_against(source)
        except Exception:
            self._restore(before)
            raise
        n_samples = source.shape[0]
        with Team(resolve_n_threads(self.n_threads)) as team:
            self._start(source)
            batch_size = self._batch_size(n_samples)
            order = SampleOrder(n_samples, batch_size, bool(self.shuffle))
            self.state_.order = order
            solver = self._solver(team, idle_limit=min(20, max(3, order.n_batches)))
            validate = None
            if held_out is not None:
                evaluation = self._evaluation(team)

                def validate() -> float:
                    return evaluation.objective(held_out)

            tol = self.tol if self.reduction_schedule == "constant" else 0
            rule = StopRule(self.n_epochs, tol, self.patience)
            run = Run(solver, source, order, rule, self._trace, validate)
            self._follow(run, X, y, batch_size)
        return self

    def _follow(self, run: Run, X: Any, y: Any, batch_size: int) -> None:
        """Go through a run, with progress and callbacks."""
        callbacks = EpochCallbacks(self, X, y, self.n_epochs)
        with ProgressBar(self.progress, batch_size) as bar:
            for report in run:
                bar.show(report)
                self.n_iter_ = run.n_epochs_done
                self.objective_ = run.objective
                if not report.ends_epoch:
                    continue
                if callbacks.end_epoch(self._fitted_attributes()):
                    run.stop("a callback asked to stop")
                elif report.step < report.n_steps_planned and not run.stop_reason:
                    callbacks.begin_epoch()
        self.stop_reason_ = run.stop_reason
        callbacks.end(self._fitted_attributes())

    def partial_fit(
        self, X: Any, y: Any = None, *, sample_indices: ArrayLike | None = None
    ) -> Self:
        """Improve the dictionary with one mini-batch.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : ignored
        sample_indices : array-like of shape (n_samples,), default=None
            Numbers of the samples in the whole data set, from which the estimators
            "averaged" and "gram" know them again. Without, every sample is new.

        Returns
        -------
        self : object
        """
        before = self.__dict__.copy()
        first = not hasattr(self, "state_")
        try:
            check_parameters(self.get_params(deep=False))
            source = self._check_samples(X, reset=first)
            index = check_indices(sample_indices, source.shape[0])
            self._check_against(source)
        except Exception:
            self._restore(before)
            raise
        with Team(resolve_n_threads(self.n_threads)) as team:
            if first:
                self._start(source)
                self.n_iter_ = 0
            dtype = self.state_.D.dtype
            read = read_batch(source, np.arange(source.shape[0]))
            X = np.ascontiguousarray(read.X, dtype=dtype)
            batch = Batch.of(X, index)
            self.objective_ = record_step(self._solver(team), batch, self._trace)
        return self

    def _start(self, source: SampleSource) -> None:
        """Make the state of a new run."""
        rng = as_generator(self.random_state)
        n_samples, n_features = source.shape
        constraint = self._problem().constraint
        init = self.dict_init
        if not isinstance(init, str):
            init = check_atoms(init, self.n_components, n_features)
            n_components = len(init)
        else:
            n_components = self.n_components or min(50, n_samples, n_features)
        atoms = initial_atoms(init, source, n_components, constraint, rng)
        self.state_ = State.start(
            atoms, constraint, rng, MaskSampler(n_features, self.mask, self.mask_block)
        )
        self._trace = Trace()
        self._workspace = Workspace()
        self.__dict__.pop("stop_reason_", None)

    def _solver(self, team: Team, idle_limit: int = 20) -> Factorization:
        masks = self.state_.masks
        if (masks.kind, masks.block) != (self.mask, self.mask_block):
            self.state_.masks = MaskSampler(
                masks.n_features, self.mask, self.mask_block
            )
        settings = Settings(
            code_estimator=self.code_estimator,
            aggregation=self.aggregation,
            dict_update=self._updated_features(),
            schedule=Schedule(
                self.weights,
                self.weight_exponent,
                self.sample_weight_exponent,
                self.reduction_,
                self.reduction_schedule,
            ),
            n_dict_passes=self.n_dict_passes,
            code_tol=self.code_tol,
            code_max_iter=self.code_max_iter,
            idle_limit=idle_limit,
            averages_folder=self.averages_folder,
        )
        return Factorization(
            self._problem(), settings, self.state_, team, self._workspace
        )

    def _batch_size(self, n_samples: int) -> int:
        if not isinstance(self.batch_size, str):
            return min(self.batch_size, n_samples)
        # Codes of non-negative factors are denser, and take more iterations.
        nonnegative = self.positive_code and self.positive_dict
        return auto_batch_size(
            n_samples,
            self.n_features_in_,
            self.n_components_,
            self.n_epochs,
            sparse_codes=self.code_l1_ratio > 0 and not nonnegative,
        )

    def _updated_features(self) -> str:
        if self.dict_update != "auto":
            return self.dict_update
        n_components, n_features = self.state_.D.shape
        enough = n_features >= self.reduction_ * n_components  # for codes to be stable
        fresh = self.code_estimator == "masked"  # averages cannot follow all of D
        complete = self.aggregation != "masked"
        return "all" if enough and fresh and complete else "observed"

    def _problem(self) -> Problem:
        return Problem(
            CodePenalty(self.alpha, self.code_l1_ratio, bool(self.positive_code)),
            AtomConstraint(self.dict_l1_ratio, bool(self.positive_dict)),
        )

    # -- use -------------------------------------------------------------------------

    def transform(self, X: Any) -> Array:
        """Return the codes of samples, (n_samples, n_components)."""
        check_is_fitted(self)
        source = self._check_samples(X)
        with Team(resolve_n_threads(self.n_threads)) as team:
            return self._evaluation(team).codes(source)

    def inverse_transform(self, X: ArrayLike) -> Array:
        """Return the samples that codes stand for: codes times components."""
        check_is_fitted(self)
        codes = np.asarray(X)
        if codes.ndim != 2 or codes.shape[1] != self.n_components_:
            raise ValueError(
                f"Codes have shape {codes.shape}; they must be (n_samples, "
                f"{self.n_components_}), as transform returns them."
            )
        return np.asarray(codes @ self.components_)

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the mean objective over the samples: higher is better."""
        check_is_fitted(self)
        source = self._check_samples(X)
        with Team(resolve_n_threads(self.n_threads)) as team:
            return -self._evaluation(team).objective(source)

    def _evaluation(self, team: Team) -> Evaluation:
        return Evaluation(
            self._problem(), self.state_.D, team, EXACT_TOL, self.code_max_iter
        )

    @property
    def components_(self) -> Array:
        """The dictionary, an atom a row, as a read-only view."""
        check_is_fitted(self)
        view = self.state_.D.view()
        view.flags.writeable = False
        return view

    @property
    def n_components_(self) -> int:
        """Number of atoms."""
        return len(self.state_.D)

    @property
    def n_steps_(self) -> int:
        """Iterations made in all."""
        return int(self.state_.n_steps)

    @property
    def reduction_(self) -> float:
        """The reduction in use."""
        if self.reduction == "auto":
            return auto_reduction(*self.state_.D.shape[::-1])
        return float(self.reduction)

    @property
    def trace_(self) -> dict[str, NDArray[np.float64]]:
        """What each iteration did, by column."""
        return self._trace.as_dict()

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    # -- files -----------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model with its whole state to one file, atomically.

        The file is data (safetensors): reading it runs no code. What continues from it
        gives the same bits as what had never stopped. A `random_state` other than a
        number is not kept as a parameter; the state of its generator is.
        """
        check_is_fitted(self)
        attributes = {n: getattr(self, n) for n in _FITTED if hasattr(self, n)}
        write_model(
            path, self.get_params(deep=False), attributes, self.state_, self._trace
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote."""
        parameters, attributes, state, trace = read_model(path)
        model = cls(**parameters)
        model.state_ = state
        model._trace = trace
        model._workspace = Workspace()
        for name, value in attributes.items():
            setattr(model, name, value)
        return model

    # -- checks ----------------------------------------------------------------------

    def _check_samples(self, X: Any, reset: bool = False) -> Any:
        """Return X as a source; raise if it cannot be factorized."""
        if isinstance(X, SampleSource) and not hasattr(X, "__array__"):
            return self._check_source(X, reset)
        X = validate_data(self, X, reset=reset, dtype="numeric", ensure_min_samples=1)
        if self.positive_code and self.positive_dict:
            check_non_negative(X, "SOMF with positive codes and atoms (NMF)")
        return ArraySource(X)

    def _check_source(self, source: SampleSource, reset: bool) -> SampleSource:
        if reset:
            self.n_features_in_ = source.shape[1]
        elif source.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {source.shape[1]} features, but {type(self).__name__} is "
                f"expecting {self.n_features_in_} features as input."
            )
        if source.shape[0] < 1 or source.shape[1] < 1:
            raise ValueError(
                f"X has shape {source.shape}; it has nothing to learn from."
            )
        return source

    def _check_against(self, source: SampleSource) -> None:
        """Raise for parameters that do not fit the data."""
        n_features = source.shape[1]
        if self.reduction != "auto" and float(self.reduction) > n_features:
            raise ValueError(
                f"reduction={self.reduction} must be between 1 (observe every feature) "
                f"and n_features={n_features} (observe one feature per iteration)."
            )
        if self.mask_block > n_features:
            raise ValueError(
                f"mask_block={self.mask_block} must be between 1 and n_features="
                f"{n_features}: a block is a run of neighbouring features."
            )
        if not isinstance(self.dict_init, str):
            check_atoms(self.dict_init, self.n_components, n_features)

    def _restore(self, attributes: dict[str, Any]) -> None:
        self.__dict__.clear()
        self.__dict__.update(attributes)

    def _fitted_attributes(self) -> dict[str, Any]:
        """What a copy of this estimator needs to transform and score."""
        names = ("state_", "_trace", "_workspace", *_FITTED)
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "state_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = bool(self.positive_code and self.positive_dict)
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


_FITTED = (
    "n_features_in_",
    "feature_names_in_",
    "n_iter_",
    "objective_",
    "stop_reason_",
)
