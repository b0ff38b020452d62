"""Online matrix factorization as the paper's authors had it: the baseline it beat.

Codes and statistics come from matrix products, as in our solver. The dictionary update
takes one atom at a time: either one matrix-vector product for each, or, as the authors'
package does it, a residual that is kept by two rank-one updates for each. Features are
the rows of D (p, k).
"""

from __future__ import annotations

import numpy as np
from scipy.linalg.blas import sger

from benchmarks.suite.solvers.base import Solver
from somf.solver.schedule import PAPER_U
from somf.threads import Team

CODE_GAP, CODE_SWEEPS = 1e-3, 1000


def exact_codes(X, D, G, penalty, n_threads):
    """Return the codes of a batch (n, p) for atoms D (k, p) with Gram matrix G."""
    beta = X @ D.T
    energy = np.einsum("ij,ij->i", X, X).astype(np.float64)
    codes = np.zeros_like(beta)
    with Team(n_threads) as team:
        penalty.solve(
            G[None], beta, energy, codes, team, tol=CODE_GAP, max_sweeps=CODE_SWEEPS
        )
    return codes


class MatrixVectorOMF(Solver):
    """OMF with the paper's weights and one atom at a time."""

    def __init__(self, update="gemv", budget_factor=4.0):
        self.name = f"omf {update}"
        self.update = update
        self.budget_factor = budget_factor

    def prepare(self, init, seed):
        self.D = np.ascontiguousarray(init.T)
        k = len(init)
        self.B = np.zeros_like(self.D)
        self.C = np.zeros((k, k), self.D.dtype)
        self.t = 0

    def step(self):
        X = self.next_batch()
        penalty = self.dataset.problem.penalty
        G = self.D.T @ self.D
        codes = exact_codes(X, self.D.T, G, penalty, self.n_threads)
        self.t += 1
        w = self.D.dtype.type(self.t**-PAPER_U)
        codes_w = codes * (w / len(X))
        self.C *= 1 - w
        self.C += codes.T @ codes_w
        self.B *= 1 - w
        self.B += X.T @ codes_w
        order = self.rng.permutation(len(self.C))
        if self.update == "gemv":
            self.update_by_products(order)
        else:
            self.update_by_rank_one(order)

    def update_by_products(self, order):
        for j in order:
            if self.C[j, j] > 0:
                direction = self.B[:, j] - self.D @ self.C[j]
                self.D[:, j] = self.project(self.D[:, j] + direction / self.C[j, j])

    def update_by_rank_one(self, order):
        R = self.B - self.D @ self.C
        for j in order:
            if self.C[j, j] > 0:
                self.add_outer(R, 1, self.D[:, j].copy(), self.C[j])
                atom = self.project(R[:, j] / self.C[j, j])
                self.D[:, j] = atom
                self.add_outer(R, -1, atom, self.C[j])

    @staticmethod
    def add_outer(R, scale, atom, row):
        # BLAS wants columns: the transpose of a row-major R is the same memory.
        sger(scale, row, atom, a=R.T, overwrite_a=True)

    def project(self, atom):
        return self.dataset.problem.constraint.project(atom[None])[0]

    def dictionary(self):
        return self.D.T
