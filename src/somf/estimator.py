"""`SOMF`, the scikit-learn estimator: parameters, checks, fit, transform, score."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_is_fitted

from somf.checkpoints import Checkpoints, catch_signals, read_newest
from somf.choices import Choices, choose, updated_features
from somf.inputs import check_samples, is_source, requirements
from somf.parameters import check_indices, check_parameters
from somf.problem import AtomConstraint, CodePenalty, Problem
from somf.progress import (
    CallbackSupportMixin,
    EpochCallbacks,
    ProgressBar,
    tell_observers,
    with_callbacks,
)
from somf.reading import make_reader, sample_order
from somf.sampling import MaskSampler, as_generator
from somf.solver.evaluation import Evaluation
from somf.solver.initialization import check_atoms, initial_atoms, spread
from somf.solver.iteration import Factorization, Settings
from somf.solver.run import Progress, Run, StopRule, record_step
from somf.solver.schedule import PAPER_U, PAPER_V, Schedule, auto_reduction
from somf.solver.state import State
from somf.solver.storage import read_model, write_model
from somf.solver.trace import Trace
from somf.solver.workspace import Workspace
from somf.sources.base import Batch, Source, fingerprint, read_batch
from somf.threads import Team, resolve_n_threads

if TYPE_CHECKING:
    from somf.distributed.cluster import Cluster
    from somf.report import Atoms, Page

Array = NDArray[Any]

EXACT_TOL = 1e-6  # duality gap of codes outside the training loop, as `code_tol`


class SOMF(
    CallbackSupportMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    r"""Matrix factorization with sparse or non-negative factors, for huge matrices.

    Minimises, over atoms in a ball and one code for each sample,

    .. math::

        \sum_i \frac{1}{2} \|x_i - a_i^T \mathrm{components}\|^2 + \alpha \Omega(a_i)

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
        features or fewer than 8 per atom in view, or if most of a sample is in a few
        features, as in counts.
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
        only, but every iteration improves every feature, and large batches pay. On
        several workers "auto" is "observed", so that traffic falls with the reduction;
        with ``reduction="auto"`` all features are exchanged until the objective no
        longer falls fast.
    mask : {"cycle", "bernoulli"}, default="cycle"
        Features are observed by turns in an order that is drawn anew for each turn, or
        each by a coin of its own.
    mask_block : int or "auto", default="auto"
        Observe features in blocks of this many neighbours. "auto" is 1, or a chunk of
        features of data on disk of which only the observed features are read.
    batch_size : int or "auto", default="auto"
        Samples in a mini-batch of `fit`; about n_components or more. "auto" is 200 for
        dense codes and non-negative factors, and 4 to 12 times n_components for sparse
        codes, 400 at least, or less for few samples: a run of `n_epochs` has 32
        iterations, and an epoch 2. Large ones are taken in up to 4 pieces for as long
        as the objective still falls fast after 16 iterations.
    n_epochs : int, default=10
        Most passes over the samples in `fit`.
    tol : float, default=1e-3
        `fit` stops when the objective has not fallen by this part of itself for
        `patience` epochs; 0 always makes `n_epochs`.
    patience : int, default=2
        See `tol`.
    dict_init : {"samples", "random"} or array, default="samples"
        First dictionary: random samples, noise, or given as an array of shape
        (n_components, n_features).
    n_dict_passes : int, default=1
        Passes over the atoms in each iteration.
    weights : {"fast", "paper"}, default="fast"
        How fast early statistics are forgotten: fast at first, as long as the objective
        falls, and then like ``t ** -weight_exponent``, or like that from the start.
    weight_exponent, sample_weight_exponent : float, default=0.917, 0.751
        The paper's u and v. A warning tells when they are outside of its theory.
    code_tol : float, default=1e-3
        Duality gap at which codes are good enough during training, relative to the
        objective of the sample. For non-negative codes the first 5 iterations accept
        1500 times as much, and those up to the 193rd less and less.
    code_max_iter : int, default=1000
        Most sweeps of coordinate descent for a code.
    shuffle : bool, default=True
        Whether `fit` draws a new order of the samples for each epoch.
    missing : {"error", "mask"}, default="error"
        What NaN means: an error, or an entry that is not known and never observed. It
        needs ``code_estimator="masked"``.
    checkpoint : str or path, default=None
        Folder for checkpoints of `fit`, from which :meth:`resume` continues after a
        crash. With it, SIGINT and SIGTERM write one before they end the fit.
    checkpoint_minutes : float, default=10.0
        Minutes between checkpoints.
    checkpoint_steps : int, default=None
        Iterations between checkpoints, if that comes first.
    averages_folder : str or path, default=None
        Folder for the memory of "averaged" and "gram"; None keeps it in memory, or in
        the system's temporary folder if it is larger than half of the free memory.
    local_steps : int, default=1
        Batches that the workers of a Dask cluster code between two exchanges. More of
        them mean less traffic and fewer updates of the dictionary; codes then come from
        an older one. Without workers it has no effect.
    max_staleness : int, default=4
        Exchanges that the workers of a Dask cluster make without one of them that is
        slow; then they wait for it. With 0 they always do, and a fixed `random_state`
        gives the same bits whatever the pace of the workers, if there are as many, with
        as many threads, and none is lost.
    n_threads : int, default=None
        Threads; None takes all cores, or what Dask has given to a worker. On a cluster,
        a number is that of the client and of each worker.
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
        mask_block: int | str = "auto",
        batch_size: int | str = "auto",
        n_epochs: int = 10,
        tol: float = 1e-3,
        patience: int = 2,
        dict_init: str | ArrayLike = "samples",
        n_dict_passes: int = 1,
        weights: str = "fast",
        weight_exponent: float = PAPER_U,
        sample_weight_exponent: float = PAPER_V,
        code_tol: float = 1e-3,
        code_max_iter: int = 1000,
        shuffle: bool = True,
        missing: str = "error",
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_minutes: float = 10.0,
        checkpoint_steps: int | None = None,
        averages_folder: str | os.PathLike[str] | None = None,
        local_steps: int = 1,
        max_staleness: int = 4,
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
        self.missing = missing
        self.checkpoint = checkpoint
        self.checkpoint_minutes = checkpoint_minutes
        self.checkpoint_steps = checkpoint_steps
        self.averages_folder = averages_folder
        self.local_steps = local_steps
        self.max_staleness = max_staleness
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
    def fit(
        self, X: Any, y: Any = None, *, X_val: Any = None, client: Any = None
    ) -> Self:
        """Learn the dictionary from samples, in shuffled epochs.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), sparse matrix, path or source
            A C-ordered float array or memory map is read in place, never copied.
            Paths (.npy, .npz, .h5, .zarr, .nii), lists of paths, h5py, Zarr and Dask
            arrays, and sources of :mod:`somf.sources` are read batch by batch. With a
            client, a Dask array is computed once, in the memory of its workers.
        y : ignored
        X_val : like X, default=None
            Held-out samples that judge the run after each epoch.
        client : dask.distributed.Client, "local" or False, default=None
            Where to run: on the workers of a Dask cluster, on processes of this machine
            that are started for it, or here. None takes the client that is active if X
            is a Dask array or a list of paths or sources. See the guide to several
            machines.

        Returns
        -------
        self : object
        """
        before = self.__dict__.copy()
        try:
            check_parameters(self.get_params(deep=False))
            source = check_samples(self, X, reset=True)
            held_out = self._held_out(X_val, source.feature_order)
            self._check_against(source)
            checkpoints = self._checkpoints(fresh=True)
            with (
                self._cluster(X, client) as cluster,
                Team(resolve_n_threads(self.n_threads)) as team,
            ):
                if cluster is not None:
                    source = cluster.share(X, source)
                run = self._new_run(team, source, held_out, cluster)
                self._follow(run, X, y, checkpoints)
        except Exception:
            if not self._has_begun(before):
                self._restore(before)
            raise
        return self

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        X: Any,
        y: Any = None,
        *,
        X_val: Any = None,
        client: Any = None,
    ) -> Self:
        """Continue a fit that was stopped, to the same bits as if it had not been.

        Parameters
        ----------
        path : str or path
            Folder that was given as `checkpoint`, or one file of it. The newest
            checkpoint that is whole is used.
        X, X_val : as they were given to `fit`
        y : ignored
        client : as for `fit`; workers may be others, and more or fewer of them

        Returns
        -------
        model : the fitted estimator
        """
        model: Self
        model, attributes = read_newest(path, cls._read)
        if "run" not in attributes:
            raise ValueError(
                f"{os.fspath(path)} is a model, not a checkpoint of a fit: there is "
                "nothing to resume. SOMF.load reads it; partial_fit goes on from it."
            )
        model._resume(attributes, path, X, y, X_val, client)
        return model

    @with_callbacks  # type: ignore[untyped-decorator]
    def _resume(
        self,
        attributes: dict[str, Any],
        path: Any,
        X: Any,
        y: Any,
        X_val: Any,
        client: Any,
    ) -> None:
        state, order = self.state_, self.state_.sampler.order
        source = check_samples(self, X, feature_order=state.feature_order)
        held_out = self._held_out(X_val, state.feature_order)
        if order is None or source.shape[0] != order.n_samples:
            wanted = None if order is None else order.n_samples
            raise ValueError(
                f"X has {source.shape[0]} samples, but the run in {os.fspath(path)} "
                f"is one over {wanted}. Resume it with the data it was started with."
            )
        if fingerprint(source) != attributes["samples"]:
            raise ValueError(
                f"X holds other samples than those that the run in {os.fspath(path)} "
                "was started with. Resume it with the same data, in the same order."
            )
        if (held_out is not None) != attributes["held_out"]:
            had = "had" if attributes["held_out"] else "had no"
            raise ValueError(
                f"The run in {os.fspath(path)} {had} X_val: resume it in the same way."
            )
        folder = Path(path)
        self.checkpoint = folder if folder.is_dir() else folder.parent
        checkpoints = self._checkpoints(fresh=False)
        progress = Progress(**attributes["run"])
        with (
            self._cluster(X, client) as cluster,
            Team(resolve_n_threads(self.n_threads)) as team,
        ):
            if cluster is not None:
                source = cluster.share(X, source)
            run = self._run(team, source, held_out, progress, cluster)
            self._follow(run, X, y, checkpoints)

    def _held_out(self, X_val: Any, feature_order: Any) -> Source | None:
        if X_val is None:
            return None
        return check_samples(self, X_val, feature_order=feature_order)

    def _cluster(self, X: Any, client: Any) -> Any:
        """Return a context with the cluster to run on, or with None."""
        if client is None and "distributed" not in sys.modules:
            return nullcontext()  # nobody can have made a client
        from somf.distributed.cluster import cluster_for

        return cluster_for(X, client, resolve_n_threads(self.n_threads))

    def _new_run(
        self,
        team: Team,
        source: Source,
        held_out: Source | None,
        cluster: Cluster | None = None,
    ) -> Run:
        """Start anew, and return the run over a source."""
        self._start(source)
        choices, shuffle = self._choices(source), bool(self.shuffle)
        if cluster is None:
            order = sample_order(source, choices, shuffle)
        else:
            order = cluster.sample_order(source, choices, shuffle)
        self.state_.sampler.order = order
        return self._run(team, source, held_out, Progress(), cluster)

    def _run(
        self,
        team: Team,
        source: Source,
        held_out: Source | None,
        progress: Progress,
        cluster: Cluster | None,
    ) -> Run:
        """Return the run over a source from where the state stands."""
        order = self.state_.sampler.order
        assert order is not None, "fit draws it, and checkpoints keep it"
        choices = self._choices(source)
        tol = self.tol if self.reduction_schedule == "constant" else 0
        rule = StopRule(self.n_epochs, tol, self.patience)
        validate = self._validation(team, held_out, cluster)
        idle_limit = min(20, max(3, order.n_batches))
        pieces = choices.most_pieces
        if cluster is None:
            reader = make_reader(source, choices, order, requirements(self))
            solver = self._solver(team, idle_limit, pieces)
            return Run(solver, reader, rule, self._trace, validate, progress)
        from somf.distributed.ledger import Coordinator
        from somf.distributed.run import DistributedRun

        return DistributedRun(
            self._solver(
                team,
                idle_limit,
                pieces if self.local_steps == 1 else 1,  # draws are far ahead
                Coordinator,
                choices.dict_update,
            ),
            source,
            cluster,
            choices,
            requirements(self),
            rule,
            self._trace,
            validate,
            progress,
            n_threads=self.n_threads,
            local_steps=self.local_steps,
            max_staleness=self.max_staleness,
        )

    def _choices(self, source: Source) -> Choices:
        return self._choose(source, self.n_components_, self.reduction_)

    def _choose(
        self, source: Source, k: int | None, reduction: float | None = None
    ) -> Choices:
        parameters = self.get_params(deep=False)
        n_workers = getattr(source, "n_lanes", 1)
        return choose(parameters, source, k, reduction=reduction, n_workers=n_workers)

    def _validation(
        self, team: Team, held_out: Source | None, cluster: Cluster | None
    ) -> Callable[[], float] | None:
        if held_out is None:
            return None
        evaluation: Any = self._evaluation(team)
        if cluster is not None:
            from somf.distributed.codes import is_in_memory

            if not is_in_memory(held_out):
                evaluation = self._remote_evaluation(cluster)

        def objective() -> float:
            try:
                return float(evaluation.objective(held_out))
            except ValueError as error:
                raise ValueError(f"X_val cannot be used. {error}") from error

        return objective

    def _follow(
        self, run: Run, X: Any, y: Any, checkpoints: Checkpoints | None
    ) -> None:
        """Go through a run, with progress, callbacks and checkpoints."""
        callbacks = EpochCallbacks(self, X, y, self.n_epochs)
        samples = None
        if checkpoints is not None:
            samples = fingerprint(run.reader.source)

        def write(path: Path) -> None:
            held_out, progress = run.validate is not None, run.progress.as_dict()
            with run.complete():
                self._write(path, run=progress, samples=samples, held_out=held_out)

        with (
            ProgressBar(self.progress) as bar,
            catch_signals(checkpoints is not None) as signals,
            closing(iter(run)) as reports,  # also if somebody who watches raises
        ):
            for report in reports:
                bar.follow(report, run.workers)
                self.n_iter_ = run.progress.n_epochs_done
                self.objective_ = run.progress.objective
                if report.ends_epoch and callbacks.end_epoch(self._fitted_attributes()):
                    run.stop("a callback asked to stop")
                elif report.ends_epoch and not run.stop_reason:
                    callbacks.begin_epoch()
                tell_observers(self, report)
                if run.stop_reason:
                    run.settle()
                elif signals.received is not None:
                    run.hurry()
                if checkpoints is not None and run.settled:
                    checkpoints.after_step(
                        self.n_steps_,
                        write,
                        last=bool(run.stop_reason),
                        signal=signals.received,
                    )
        self.stop_reason_ = run.stop_reason
        callbacks.end(self._fitted_attributes())

    def _checkpoints(self, fresh: bool) -> Checkpoints | None:
        if self.checkpoint is None:
            return None
        checkpoints = Checkpoints(
            self.checkpoint, self.checkpoint_minutes, self.checkpoint_steps
        )
        checkpoints.begin(fresh)
        return checkpoints

    def partial_fit(
        self, X: Any, y: Any = None, *, sample_indices: ArrayLike | None = None
    ) -> Self:
        """Improve the dictionary with one mini-batch.

        Parameters
        ----------
        X : as for `fit`; all of it is one batch
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
            known = None if first else self.state_.feature_order
            source = check_samples(self, X, reset=first, feature_order=known)
            index = check_indices(sample_indices, source.shape[0])
            self._check_against(source)
            rows = np.arange(source.shape[0])
            read = read_batch(source, rows, requirements(self))
            with Team(resolve_n_threads(self.n_threads)) as team:
                if first:
                    self._start(source)
                    self.n_iter_ = 0
                else:  # `before` keeps what new parameters change
                    self.__dict__["state_"] = self.state_.copy()
                solver, sampler = self._solver(team), self.state_.sampler
                start = time.perf_counter()
                mask = sampler.masks.draw(self.reduction_, sampler.rng)
                drawing = {"mask": time.perf_counter() - start}
                X = np.ascontiguousarray(read.X, dtype=self.state_.D.dtype)
                batch = Batch(X, rows, index, read.missing)
                self.objective_ = record_step(solver, batch, mask, self._trace, drawing)
        except Exception:
            self._restore(before)
            raise
        return self

    def _start(self, source: Source) -> None:
        """Make the state of a new run."""
        rng = as_generator(self.random_state)
        n_features = source.shape[1]
        constraint = self._problem().constraint
        init, k = self.dict_init, None
        if not isinstance(init, str):
            init = check_atoms(init, self.n_components, n_features)
            k = len(init)
            if source.feature_order is not None:
                init = init[:, source.feature_order]
        choices = self._choose(source, k)
        wanted = requirements(self)
        k = choices.n_components
        atoms = initial_atoms(init, source, k, constraint, rng, wanted)
        masks = MaskSampler(n_features, self.mask, choices.mask_block)
        self.state_ = State.start(atoms, constraint, rng, masks, source.feature_order)
        # Atoms that are sparse because they have to be tell nothing of the samples.
        given = not isinstance(init, str) and self.dict_l1_ratio == 0
        alike = given or (isinstance(init, str) and init == "samples")
        self.state_.auto_reduction = auto_reduction(
            n_features, k, spread(atoms) if alike else math.inf
        )
        self._trace = Trace()
        self._workspace = Workspace()
        self.__dict__.pop("stop_reason_", None)

    def _solver(
        self,
        team: Team,
        idle_limit: int = 20,
        most_pieces: int = 1,
        kind: type[Factorization] = Factorization,
        dict_update: str | None = None,
    ) -> Any:
        masks = self.state_.sampler.masks
        block = masks.block
        if not isinstance(self.mask_block, str):
            block = self.mask_block
        if (masks.kind, masks.block) != (self.mask, block):
            new = MaskSampler(masks.n_features, self.mask, block)
            self.state_.sampler.masks = new
        settings = Settings(
            code_estimator=self.code_estimator,
            aggregation=self.aggregation,
            dict_update=dict_update
            or updated_features(
                self.get_params(deep=False),
                n_features=self.state_.D.shape[1],
                n_components=self.n_components_,
                reduction=self.reduction_,
            ),
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
            most_pieces=most_pieces,
            idle_limit=idle_limit,
            averages_folder=self.averages_folder,
        )
        return kind(self._problem(), settings, self.state_, team, self._workspace)

    def _problem(self) -> Problem:
        return Problem(
            CodePenalty(self.alpha, self.code_l1_ratio, bool(self.positive_code)),
            AtomConstraint(self.dict_l1_ratio, bool(self.positive_dict)),
        )

    # -- use -------------------------------------------------------------------------

    def transform(self, X: Any, *, client: Any = None) -> Any:
        """Return the codes of samples, (n_samples, n_components).

        Parameters
        ----------
        X : as for `fit`
        client : dask.distributed.Client, "local" or False, default=None
            Where to compute, as for `fit`.

        Returns
        -------
        codes : array of shape (n_samples, n_components)
            If workers compute them, a Dask array in the blocks of X. They begin when it
            is asked for: ``codes.to_zarr(path)`` lets them write it, and
            ``codes.persist()`` keep it. With "local", whose workers end with the call,
            it is a NumPy array.
        """
        check_is_fitted(self)
        source = self._known_samples(X)
        with self._evaluating(X, client) as evaluation:
            return evaluation.codes(source)

    def fit_transform(
        self, X: Any, y: Any = None, *, X_val: Any = None, client: Any = None
    ) -> Any:
        """Learn the dictionary, and return the codes: `fit`, then `transform`."""
        return self.fit(X, y, X_val=X_val, client=client).transform(X, client=client)

    def iter_transform(self, X: Any, *, client: Any = None) -> Iterator[Array]:
        """Yield the codes of samples in order, some hundreds at a time.

        Workers of a Dask cluster compute them if they would for `transform`. They are
        then as many at a time as X has in a block.
        """
        check_is_fitted(self)
        source = self._known_samples(X)
        with self._evaluating(X, client) as evaluation:
            yield from evaluation.stream(source)

    def impute(self, X: Any, *, client: Any = None) -> Any:
        """Return X with every NaN replaced by what codes and components say there.

        Needs ``missing="mask"``. It is a Dask array if codes would be one, see
        `transform`.
        """
        check_is_fitted(self)
        if self.missing != "mask":
            raise ValueError(
                f'missing={self.missing!r} must be "mask" to impute: set it before '
                'fit, so that NaN means "not known".'
            )
        source = self._known_samples(X)
        with self._evaluating(X, client) as evaluation:
            return self._in_original_order(evaluation.imputed(source))

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

    def score(self, X: Any, y: Any = None, *, client: Any = None) -> float:
        """Return minus the mean objective over the samples: higher is better.

        Parameters
        ----------
        X : as for `fit`
        y : ignored
        client : as for `fit`
        """
        check_is_fitted(self)
        source = self._known_samples(X)
        with self._evaluating(X, client) as evaluation:
            return -float(evaluation.objective(source))

    @contextmanager
    def _evaluating(self, X: Any, client: Any) -> Iterator[Any]:
        """Open what codes samples: an `Evaluation`, here or on the workers."""
        on_cluster = client is not None or is_source(X)
        with self._cluster(X, client) if on_cluster else nullcontext() as cluster:
            if cluster is not None:
                lasting = not isinstance(client, str)  # "local" ends with us
                yield self._remote_evaluation(cluster, lasting)
                return
            with Team(resolve_n_threads(self.n_threads)) as team:
                yield self._evaluation(team)

    def _remote_evaluation(self, cluster: Cluster, lasting: bool = True) -> Any:
        from somf.distributed.codes import RemoteEvaluation

        team = Team(self.n_threads or 1)  # a worker has tasks for all of its threads
        return RemoteEvaluation(self._evaluation(team), cluster.user_client, lasting)

    def _evaluation(self, team: Team) -> Evaluation:
        return Evaluation(
            self._problem(),
            self.state_.D,
            team,
            EXACT_TOL,
            self.code_max_iter,
            requirements(self),
        )

    def _known_samples(self, X: Any) -> Source:
        return check_samples(self, X, feature_order=self.state_.feature_order)

    def _in_original_order(self, A: Any) -> Any:
        """Undo a shuffling of the features: columns as in the data before it."""
        order = self.state_.feature_order
        return A if order is None else np.take(A, np.argsort(order), axis=1)

    @property
    def components_(self) -> Array:
        """The dictionary, an atom a row, as a read-only view."""
        check_is_fitted(self)
        view: Array = self._in_original_order(self.state_.D).view()
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
            return self.state_.auto_reduction
        return float(self.reduction)

    @property
    def trace_(self) -> dict[str, NDArray[np.float64]]:
        """What each iteration did, by column."""
        return self._trace.as_dict()

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    # -- for people ------------------------------------------------------------------

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        X: Any = None,
        atoms: Atoms | None = None,
    ) -> Page:
        """Return a page about the run: curves, atoms, and warnings with remedies.

        Needs the extra `report`.

        Parameters
        ----------
        path : str or path, default=None
            Where to write it, too.
        X : like X of `fit`, default=None
            Samples, of which up to 200 are coded to show which atoms they use and how
            well they are reconstructed.
        atoms : HeatMaps, PatchGrid or BrainMaps of :mod:`somf.report`, default=None
            How atoms are shown; None shows heat maps.

        Returns
        -------
        page : somf.report.Page
            With `html`, `save(path)`, and a view in notebooks.

        Examples
        --------
        >>> import numpy as np
        >>> from somf import SOMF
        >>> SOMF(2, random_state=0).fit(np.eye(10)).report()
        <somf report, ... MB>
        """
        check_is_fitted(self)
        from somf.report import code_samples, facts_of, make_report

        coded = None if X is None else code_samples(self, X)
        page = make_report(facts_of(self, coded=coded), atoms)
        if path is not None:
            page.save(path)
        return page

    # -- files -----------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model with its whole state to one file, atomically.

        The file is data (safetensors): reading it runs no code. What continues from it
        gives the same bits as what had never stopped. A `random_state` other than a
        number is not kept as a parameter; the state of its generator is.
        """
        check_is_fitted(self)
        self._write(path)

    def _write(self, path: str | os.PathLike[str], **more: Any) -> None:
        attributes = {n: getattr(self, n) for n in _FITTED if hasattr(self, n)}
        attributes |= more
        parameters = self.get_params(deep=False)
        if not isinstance(self.dict_init, str):
            parameters["dict_init"] = np.asarray(self.dict_init)
        write_model(path, parameters, attributes, self.state_, self._trace)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote, or a checkpoint."""
        return cls._read(path)[0]

    @classmethod
    def _read(cls, path: str | os.PathLike[str]) -> tuple[Self, dict[str, Any]]:
        """Return a model and all attributes of its file."""
        parameters, attributes, state, trace = read_model(path)
        model = cls(**parameters)
        model.state_ = state
        model._trace = trace
        model._workspace = Workspace()
        for name in _FITTED:
            if name in attributes:
                setattr(model, name, attributes[name])
        return model, attributes

    # -- checks ----------------------------------------------------------------------

    def _check_against(self, source: Source) -> None:
        """Raise for parameters that do not fit the data."""
        n_features = source.shape[1]
        if self.reduction != "auto" and float(self.reduction) > n_features:
            raise ValueError(
                f"reduction={self.reduction} must be between 1 (observe every feature) "
                f"and n_features={n_features} (observe one feature per iteration)."
            )
        if not isinstance(self.mask_block, str) and self.mask_block > n_features:
            raise ValueError(
                f"mask_block={self.mask_block} must be between 1 and n_features="
                f"{n_features}: a block is a run of neighbouring features."
            )
        if not isinstance(self.dict_init, str):
            check_atoms(self.dict_init, self.n_components, n_features)

    def _has_begun(self, before: dict[str, Any]) -> bool:
        """Whether a new fit has made an iteration: its model is then the model."""
        trace = self.__dict__.get("_trace", Trace())
        return trace is not before.get("_trace") and len(trace) > 0

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
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.missing == "mask"
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


_FITTED = (
    "n_features_in_",
    "feature_names_in_",
    "_feature_key",
    "n_iter_",
    "objective_",
    "stop_reason_",
)
