"""What one iteration sees: a batch and the dictionary through a mask."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.kernels.gather import gather_features, gather_samples, scatter_features
from somf.sampling import Mask
from somf.solver.missing import impute, known_grams
from somf.solver.products import correlate, gram
from somf.solver.workspace import Workspace
from somf.sources.base import Batch, ObservedBatch
from somf.threads import Team

Array = NDArray[Any]


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
            gather_features(A, rows, features, out, start, stop)

        self.team.share(gather, len(A))
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
    """

    X: Array

    def __init__(
        self,
        batch: Batch | ObservedBatch,
        mask: Mask,
        D: Array,
        team: Team,
        workspace: Workspace,
    ) -> None:
        super().__init__(mask, D, team, workspace)
        self.batch = batch
        if isinstance(batch, ObservedBatch):
            self.X = batch.X
            self._energy = np.einsum("ij,ij->i", self.X, self.X, dtype=np.float64)
        elif not mask.observes_all:
            self._gather_samples(batch)

    def _gather_samples(self, batch: Batch) -> None:
        features = self.mask.features
        X = self.workspace.array("X", (len(batch), len(features)), self.D.dtype)
        energy = np.empty(len(batch))

        def gather(start: int, stop: int) -> None:
            gather_samples(batch.X, batch.rows, features, X, energy, start, stop)

        self.team.share(gather, len(batch))
        self.X, self._energy = X, energy

    @property
    def whole(self) -> Batch:
        """The batch with all features, which those have to be read for."""
        assert isinstance(self.batch, Batch), "only the observed features were read"
        return self.batch

    @cached_property
    def grams(self) -> Array:
        """As `gram`, (1, k, k), or (n, k, k) if samples lack different entries."""
        if self.missing is None:
            return self.gram[None]
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
        if isinstance(batch, Batch) and not self.mask.observes_all:
            self._gather_samples(batch)

    @cached_property
    def _everything(self) -> tuple[Array, Array]:
        """(β, energy) where nothing is hidden: one pass over the batch for both."""
        return correlate(self.whole, self.D, self.team)

    @cached_property
    def beta(self) -> Array:
        """Dᵀ Pᵀ P x of every sample, (n_samples, n_components)."""
        if self.mask.observes_all:
            return self._everything[0]
        beta = np.empty((len(self.batch), len(self.D)), self.D.dtype)

        def multiply(start: int, stop: int) -> None:
            np.matmul(self.X[start:stop], self.D.T, out=beta[start:stop])

        self.team.share(multiply, len(beta), smallest=16)
        return beta

    @property
    def energy(self) -> Array:
        """xᵀ Pᵀ P x of every sample."""
        return self._everything[1] if self.mask.observes_all else self._energy
