"""Exact codes and the objective on given samples: what `transform` and `score` need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.problem import Problem
from somf.solver.missing import impute, known_grams
from somf.solver.products import TILE, correlate, read_tile
from somf.sources.ahead import read_ahead
from somf.sources.base import COMPLETE, Batch, Indices, Requirements, Source, read_batch
from somf.sources.chunked import read_in_order
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
    wanted: Requirements = COMPLETE
    G: Array | None = None  # D Dᵀ, if somebody knows it already

    def codes(self, source: Source) -> Array:
        """Return the exact codes of all samples, (n_samples, n_components)."""
        return np.concatenate(list(self.stream(source)))

    def stream(self, source: Source) -> Iterator[Array]:
        """Yield the codes of the samples in order, some at a time."""
        G = self.gram()
        for batch in self._batches(source):
            yield self._codes(batch, G)

    def imputed(self, source: Source) -> Array:
        """Return the samples with missing entries filled."""
        G, parts = self.gram(), []
        for batch in self._batches(source):
            codes = self._codes(batch, G)
            if batch.missing is not None:
                impute(batch.X, batch.missing, codes, self.D, self.team)
            parts.append(batch.X[batch.rows])
        return np.concatenate(parts)

    def losses(self, source: Source) -> NDArray[np.float64]:
        """Return ½‖x − D a‖² + alpha·Ω(a) of each sample."""
        return np.concatenate(list(self._stream_losses(source)))

    def objective(self, source: Source) -> float:
        """Return the mean of ½‖x − D a‖² + alpha·Ω(a) over the samples."""
        total = sum(float(losses.sum()) for losses in self._stream_losses(source))
        return total / source.shape[0]

    def _stream_losses(self, source: Source) -> Iterator[NDArray[np.float64]]:
        G = self.gram()
        for batch in self._batches(source):
            yield self._losses(batch, self._codes(batch, G))

    def gram(self) -> Array:
        """Return D Dᵀ."""
        return np.asarray(self.D @ self.D.T) if self.G is None else self.G

    def _batches(self, source: Source) -> Iterator[Batch]:
        n_samples = source.shape[0]
        starts = range(0, n_samples, CHUNK)
        parts = [np.arange(i, min(i + CHUNK, n_samples)) for i in starts]

        def read(rows: Indices) -> Batch:
            return read_batch(source, rows, self.wanted)

        depth = 0 if source.in_memory else 1
        source = read_in_order(source, CHUNK)
        for _, batch in read_ahead(read, parts, depth):
            if batch.X.dtype != self.D.dtype:
                X = batch.X[batch.rows].astype(self.D.dtype)
                batch = Batch(X, np.arange(len(X)), missing=batch.missing)
            yield batch

    def _codes(self, batch: Batch, G: Array) -> Array:
        beta, energy = correlate(batch, self.D, self.team)
        grams = G[None]
        if batch.missing is not None:
            grams = known_grams(self.D, G, batch.missing, self.team)
        codes = np.zeros_like(beta)
        self.problem.penalty.solve(
            grams,
            beta,
            energy,
            codes,
            self.team,
            tol=self.tol,
            max_sweeps=self.max_iter,
        )
        return codes

    def _losses(self, batch: Batch, codes: Array) -> NDArray[np.float64]:
        """Residuals are formed, not derived from G and β: nothing cancels."""

        def part(start: int, stop: int) -> NDArray[np.float64]:
            room = np.empty(len(batch) * min(TILE, stop - start), self.D.dtype)
            square = np.zeros(len(batch))
            for low in range(start, stop, TILE):
                high = min(low + TILE, stop)
                tile = read_tile(batch, low, high, room)
                residual = tile - codes @ self.D[:, low:high]
                if batch.missing is not None:
                    residual[batch.missing[:, low:high]] = 0
                square += np.einsum("ij,ij->i", residual, residual, dtype=np.float64)
            return square

        square = sum(self.team.share(part, self.D.shape[1], smallest=TILE))
        return np.asarray(0.5 * square + self.problem.penalty(codes))
