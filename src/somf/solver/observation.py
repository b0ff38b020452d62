"""What one iteration sees: a batch and the dictionary through a mask."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.kernels.gather import gather_features, scatter_features
from somf.sampling import Mask
from somf.solver.missing import impute, known_grams
from somf.solver.products import correlate, correlate_observed, gram
from somf.solver.workspace import Workspace
from somf.sources.base import Batch, ObservedBatch
from somf.threads import Team

Array = NDArray[Any]

FEWEST = 200_000  # numbers to gather that are worth a thread


class View:
    """The observed features of the dictionary, given as (k, p).

    D    (k, q)   observed part of the dictionary; all of it, not a copy, if q = p
    """

    def __init__(self, mask: Mask, D: Array, team: Team, workspace: Workspace) -> None:
        self.mask = mask
        self.team = team
        self.workspace = workspace
        self.D = self.gather("D", D)

    def gather(self, name: str, A: Array) -> Array:
        """Return the observed features of `A` (k, p) in the buffer `name`."""
        if self.mask.observes_all:
            return A
        rows, features = np.arange(len(A)), self.mask.features
        out = self.workspace.array(name, (len(A), len(features)), A.dtype)

        def gather(start: int, stop: int) -> None:
            gather_features(A, rows[start:stop], features, out[start:stop])

        self.team.share(gather, len(A), smallest=FEWEST // len(features))
        return out

    def scatter(
        self, A: Array, values: Array, rows: NDArray[np.intp], start: int, stop: int
    ) -> None:
        """Write rows of `values` (k, q) to the observed features start..stop of A."""
        if values is not A:  # else nothing is hidden and `gather` made no copy
            features = self.mask.features
            scatter_features(A, rows, features[start:stop], values[:, start:stop])

    @cached_property
    def gram(self) -> Array:
        """Dᵀ Pᵀ P D before the dictionary pass (ask before it)."""
        return gram(self.D, self.team)


class Observation(View):
    """The observed features of a batch and of the dictionary.

    X    (n, q)   observed part of the batch; absent if q = p

    Products are computed when first asked for and shared by the steps that need them.
    `keeps` tells whether X will be asked for beside β: if not, it is never there as a
    whole.
    """

    def __init__(
        self,
        batch: Batch | ObservedBatch,
        mask: Mask,
        D: Array,
        team: Team,
        workspace: Workspace,
        keeps: bool = True,
    ) -> None:
        super().__init__(mask, D, team, workspace)
        self.batch = batch
        self.keeps = keeps
        self.seconds_gathering = 0.0  # of those that β took

    @cached_property
    def X(self) -> Array:
        """The observed part of the batch."""
        batch, features = self.batch, self.mask.features
        if isinstance(batch, ObservedBatch):
            return batch.X
        X = self.workspace.array("X", (len(batch), len(features)), self.D.dtype)

        def gather(start: int, stop: int) -> None:
            gather_features(batch.X, batch.rows[start:stop], features, X[start:stop])

        self.team.share(gather, len(batch))
        return X

    @property
    def whole(self) -> Batch:
        """The batch with all features, which those have to be read for."""
        assert isinstance(self.batch, Batch), "only the observed features were read"
        return self.batch

    def grams(self) -> Array:
        """As `gram`, (1, k, k), or (n, k, k) if samples lack different entries.

        A new array: a second one of so many matrices would be noticed.
        """
        if self.missing is None:
            return self.gram[None].copy()
        return known_grams(self.D, self.gram, self.missing, self.team)

    @cached_property
    def missing(self) -> NDArray[np.bool_] | None:
        """Which of the observed entries are not known, (n, q)."""
        missing = self.batch.missing
        if missing is None or self.mask.observes_all:
            return missing
        if isinstance(self.batch, Batch):
            missing = missing[:, self.mask.features]
        return missing if missing.any() else None

    def impute(self, codes: Array, D: Array) -> None:
        """Let the samples be what `codes` say wherever they are missing."""
        batch = self.batch
        if batch.missing is None:
            return
        whole = isinstance(batch, Batch)
        impute(batch.X, batch.missing, codes, D if whole else self.D, self.team)
        self.__dict__.pop("X", None)  # to be gathered anew

    @cached_property
    def _products(self) -> tuple[Array, Array]:
        """(β, energy): one pass over the batch for both."""
        if self.mask.observes_all:
            return correlate(self.whole, self.D, self.team)
        batch, features, X = self.batch, self.mask.features, None
        if isinstance(batch, ObservedBatch):
            batch, features = Batch.of(batch.X), np.arange(len(features))
        elif self.keeps:
            shape = len(batch), len(features)
            X = self.X = self.workspace.array("X", shape, self.D.dtype)
        beta, energy, self.seconds_gathering = correlate_observed(
            batch, features, self.D, self.team, self.workspace, X
        )
        return beta, energy

    @property
    def beta(self) -> Array:
        """Dᵀ Pᵀ P x of every sample, (n_samples, n_components)."""
        return self._products[0]

    @property
    def energy(self) -> Array:
        """xᵀ Pᵀ P x of every sample."""
        return self._products[1]
