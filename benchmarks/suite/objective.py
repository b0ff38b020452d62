"""What dictionaries are judged by: the objective on held-out samples, exact codes."""

from __future__ import annotations

import numpy as np

from somf.threads import Team, resolve_n_threads

GAP = 1e-8  # duality gap of the codes, relative to the loss of a sample
MOST_SWEEPS = 20_000
CHUNK = 500  # samples


class Objective:
    """Mean of ½|x − aD|² + alpha·Ω(a) over `X_test`, every a the best one for D.

    Products are in the precision of the data and residuals are formed. Codes are
    computed in float64, because non-negative factors may leave less than a hundredth
    of |x|² over: a gap that float32 can reach would be seen there.
    """

    def __init__(self, problem, X_test):
        self.problem = problem
        self.X_test = X_test

    def evaluate(self, D):
        """Return the objective of a dictionary (k, p), once it is inside the ball."""
        D = np.ascontiguousarray(D, self.X_test.dtype)
        if not np.isfinite(D).all():
            return np.inf
        D = self.inside(D)
        G = (D @ D.T).astype(np.float64)
        starts = range(0, len(self.X_test), CHUNK)
        total = sum(self.losses(self.X_test[i : i + CHUNK], D, G) for i in starts)
        return float(total / len(self.X_test))

    def inside(self, D):
        """Return D without negative entries and with atoms scaled into the ball."""
        constraint = self.problem.constraint
        D = np.maximum(D, 0) if constraint.positive else D.copy()
        outside = constraint.norms(D) > 1
        D[outside] = constraint.rescale(D[outside])
        return D

    def losses(self, X, D, G):
        """Return the sum of the objectives of some samples."""
        penalty = self.problem.penalty
        codes = self.codes(X, D, G)
        residual = X - codes.astype(X.dtype) @ D
        square = np.einsum("ij,ij->i", residual, residual, dtype=np.float64)
        return float((0.5 * square + penalty(codes)).sum())

    def codes(self, X, D, G):
        """Return the exact codes of some samples, in float64."""
        beta = (X @ D.T).astype(np.float64)
        energy = np.einsum("ij,ij->i", X, X, dtype=np.float64)
        codes = np.zeros_like(beta)
        with Team(resolve_n_threads(None)) as team:
            self.problem.penalty.solve(
                G[None], beta, energy, codes, team, tol=GAP, max_sweeps=MOST_SWEEPS
            )
        return codes
