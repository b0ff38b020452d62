"""`somf.SOMF`, with any of its parameters."""

from __future__ import annotations

import time

from benchmarks.suite.solvers.base import Solver
from somf import SOMF

PIECE = 0.02  # seconds between two looks at the clock
ENDLESS = 10**6  # epochs


class PausedSOMF(SOMF):
    """A SOMF whose `fit` checks and prepares all that it does, and makes no step.

    `partial_fit` would validate and copy each batch, which costs as much as a step at a
    high reduction; these are the steps of `fit` itself, by hand.
    """

    def _follow(self, run, X, y, batch_size):
        self.steps_ = iter(run)
        self.team_ = run.solver.team


class Ours(Solver):
    """Our estimator; parameters that are not given are the defaults."""

    def __init__(self, name="somf", budget_factor=1.0, **parameters):
        self.name = name
        self.budget_factor = budget_factor
        self.parameters = parameters

    def prepare(self, init, seed):
        defaults = {"n_epochs": ENDLESS, "tol": 0.0, "progress": False}
        self.model = PausedSOMF(
            **self.dataset.settings,
            **(defaults | self.parameters),
            dict_init=init,
            n_threads=self.n_threads,
            random_state=seed,
        )
        self.model.fit(self.X)

    def step(self):
        end = time.perf_counter() + PIECE
        with self.model.team_:  # BLAS is the team's while it works, and only then
            while not self.done and time.perf_counter() < end:
                self.done = next(self.model.steps_, None) is None
        self.n_seen = int(self.model.state_.n_seen)

    def dictionary(self):
        return self.model.components_
