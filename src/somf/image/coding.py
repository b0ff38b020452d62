"""Codes of patches for a fixed dictionary, and the penalty that makes them sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from somf.estimator import EXACT_TOL
from somf.problem import CodePenalty
from somf.solver.missing import known_grams
from somf.solver.products import correlate, gram
from somf.sources.base import Batch
from somf.threads import Team

Array = NDArray[Any]

MAX_SWEEPS = 1000
# Penalties for noise, as multiples of its size along an atom: from nearly a projection
# on all atoms to the penalty that pure noise does not pass.
FACTORS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
# An alpha is found when the share of non-zero codes is this close to the one wanted.
CLOSE = 0.02
MOST_HALVINGS = 30


class Coder:
    """Codes of patches (n, p) for the dictionary `D` (k, p), which stays as it is."""

    def __init__(self, D: Array, l1_ratio: float, positive: bool, team: Team) -> None:
        self.D = np.ascontiguousarray(D)
        self.l1_ratio = l1_ratio
        self.positive = positive
        self.team = team
        self.G = gram(self.D, team)

    def codes(
        self, X: Array, alpha: float, missing: NDArray[np.bool_] | None = None
    ) -> Array:
        """Return exact codes; entries that are missing count for nothing."""
        if missing is not None:
            X = np.where(missing, X.dtype.type(0), X)
        beta, energy = correlate(Batch.of(X), self.D, self.team)
        grams = self.G[None]
        if missing is not None:
            grams = known_grams(self.D, self.G, missing, self.team)
        return self._solve(grams, beta, energy, alpha)

    def reconstruct(self, codes: Array) -> Array:
        """Return codes times dictionary."""
        out = np.empty((len(codes), self.D.shape[1]), self.D.dtype)

        def part(start: int, stop: int) -> None:
            out[:, start:stop] = codes @ self.D[:, start:stop]

        self.team.share(part, self.D.shape[1], smallest=1024)
        return out

    def alpha_for(self, X: Array, nonzero: float) -> float:
        """Return the alpha for which a share `nonzero` of the codes is not zero.

        By bisection on a logarithmic scale, below the smallest alpha that leaves none.
        """
        beta, energy = correlate(Batch.of(X), self.D, self.team)
        top = float((beta if self.positive else np.abs(beta)).max(initial=0))
        high = max(top, float(np.finfo(np.float32).tiny)) / self.l1_ratio
        low = high * 1e-6
        for _ in range(MOST_HALVINGS):
            alpha = float(np.sqrt(low * high))
            codes = self._solve(self.G[None], beta, energy, alpha)
            share = np.count_nonzero(codes) / codes.size
            if abs(share - nonzero) <= CLOSE * nonzero:
                break
            low, high = (alpha, high) if share > nonzero else (low, alpha)
        return alpha

    def alpha_for_noise(self, X: Array, sigma: float) -> float:
        """Return the alpha whose reconstructions are nearest to X without its noise.

        Stein's estimate of that distance, |x − Da|² + 2·sigma²·(number of non-zero
        codes), is unbiased for the l1 penalty, and needs no image without noise.
        """
        length = float(np.sqrt(np.median(np.diagonal(self.G))))
        risks = []
        for factor in FACTORS:
            codes = self.codes(X, factor * sigma * length / self.l1_ratio)
            residual = X - self.reconstruct(codes)
            square = np.einsum("ij,ij->", residual, residual, dtype=np.float64)
            risks.append(square + 2 * sigma**2 * np.count_nonzero(codes))
        return FACTORS[int(np.argmin(risks))] * sigma * length / self.l1_ratio

    def _solve(self, grams: Array, beta: Array, energy: Array, alpha: float) -> Array:
        codes = np.zeros_like(beta)
        CodePenalty(alpha, self.l1_ratio, self.positive).solve(
            grams,
            beta,
            energy,
            codes,
            self.team,
            tol=EXACT_TOL,
            max_sweeps=MAX_SWEEPS,
        )
        return codes
