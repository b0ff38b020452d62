"""Projected stochastic gradient on the dictionary, with exact codes."""

from __future__ import annotations

import numpy as np

from benchmarks.suite.solvers.base import Solver
from benchmarks.suite.solvers.omf_gemv import exact_codes
from somf.kernels.projection import project_rows
from somf.threads import Team

# Best of STEPS on a split of its own: `run sgd --first-seed 1000`; a data set that the
# experiment leaves out has the step of the one that it is most like.
STEPS = (0.3, 1.0, 3.0, 10.0)
BEST_STEP = {
    "hyperspectral": 1.0,
    "hyperspectral-256": 1.0,
    "hyperspectral-nmf": 3.0,
    "hyperspectral-nmf-256": 3.0,
    "fmri-simulated": 3.0,
    "fmri-real": 3.0,
    "photos": 3.0,
}


class SGD(Solver):
    """D ← Π[D + η_t·mean(a (x − aD))], with η_t = c / (L·√(1 + t/10)).

    L is the largest eigenvalue of mean(aaᵀ) in the first batch, so that c, the only
    number to tune, has no unit.
    """

    def __init__(self, c=None, budget_factor=3.0):
        self.name = "sgd" if c is None else f"sgd c={c:g}"
        self.c = c
        self.budget_factor = budget_factor

    def prepare(self, init, seed):
        self.D = np.ascontiguousarray(init)
        self.t = 0
        self.lipschitz = None
        if self.c is None:
            self.c = BEST_STEP.get(self.dataset.name, 1.0)

    def step(self):
        X = self.next_batch()
        G = self.D @ self.D.T
        problem = self.dataset.problem
        codes = exact_codes(X, self.D, G, problem.penalty, self.n_threads)
        if self.lipschitz is None:
            C = codes.T @ codes / len(X)
            self.lipschitz = max(float(np.linalg.eigvalsh(C)[-1]), 1e-12)
        step = self.c / (self.lipschitz * np.sqrt(1 + self.t / 10))
        residual = X - codes @ self.D
        self.D += (codes * np.float32(step / len(X))).T @ residual
        self.project(problem.constraint)
        self.t += 1

    def project(self, constraint):
        l1, l2 = float(constraint.l1_ratio), float(constraint.l2_ratio)

        def part(start, stop):
            project_rows(self.D[start:stop], l1, l2, 1.0, constraint.positive)

        with Team(self.n_threads) as team:
            team.share(part, len(self.D))

    def dictionary(self):
        return self.D
