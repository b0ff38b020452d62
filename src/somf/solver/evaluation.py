"""Exact codes and the objective on given samples: what `transform` and `score` need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.problem import Problem
from somf.solver.products import TILE, correlate, read_tile
from somf.sources.base import Batch, SampleSource, read_batch
from somf.threads import Team

Array = NDArray[Any]

CHUNK = 512  # samples coded at a time


@dataclass(frozen=True)
class Evaluation:
    """Codes and objective for a fixed dictionary `D` (k, p)."""

    problem: Problem
    D: Array
    team: Team
    tol: float
    max_iter: int

    def codes(self, source: SampleSource) -> Array:
        """Return the exact codes of all samples, (n_samples, n_components)."""
        G = self._gram()
        parts = [self._codes(batch, G) for batch in self._batches(source)]
        return np.concatenate(parts)

    def objective(self, source: SampleSource) -> float:
        """Return the mean of ½‖x − D a‖² + alpha·Ω(a) over the samples."""
        G = self._gram()
        total = sum(
            float(self._losses(batch, self._codes(batch, G)).sum())
            for batch in self._batches(source)
        )
        return total / source.shape[0]

    def _gram(self) -> Array:
        return np.asarray(self.D @ self.D.T)

    def _batches(self, source: SampleSource) -> Iterator[Batch]:
        n_samples = source.shape[0]
        for start in range(0, n_samples, CHUNK):
            rows = np.arange(start, min(start + CHUNK, n_samples))
            batch = read_batch(source, rows)
            if batch.X.dtype != self.D.dtype:
                batch = Batch.of(batch.X[batch.rows].astype(self.D.dtype))
            yield batch

    def _codes(self, batch: Batch, G: Array) -> Array:
        beta, energy = correlate(batch, self.D, self.team)
        codes = np.zeros_like(beta)
        return self.problem.penalty.solve(
            G[None],
            beta,
            energy,
            codes,
            self.team,
            tol=self.tol,
            max_sweeps=self.max_iter,
        )

    def _losses(self, batch: Batch, codes: Array) -> NDArray[np.float64]:
        """Residuals are formed, not derived from G and β: nothing cancels."""

        def part(start: int, stop: int) -> NDArray[np.float64]:
            room = np.empty(len(batch) * min(TILE, stop - start), self.D.dtype)
            square = np.zeros(len(batch))
            for low in range(start, stop, TILE):
                high = min(low + TILE, stop)
                tile = read_tile(batch, low, high, room)
                residual = tile - codes @ self.D[:, low:high]
                square += np.einsum("ij,ij->i", residual, residual, dtype=np.float64)
            return square

        square = sum(self.team.share(part, self.D.shape[1], smallest=TILE))
        return np.asarray(0.5 * square + self.problem.penalty(codes))
