"""What a solver is: it starts from a dictionary and advances in short pieces."""

from __future__ import annotations

import copy
import time

import numpy as np

from somf.sampling import SampleOrder

BATCH = 200


class Solver:
    """A way to learn a dictionary; `start` is off the clock, `advance` is on it."""

    name = ""
    budget_factor = 1.0  # how many times the budget of the race it may use
    whole = False  # whether `advance` is a whole fit, on a clock that starts again
    batch_size = BATCH

    def fresh(self):
        """Return a solver with the same settings that has not started."""
        return copy.copy(self)

    def supports(self, dataset):
        """Return why the problem of `dataset` is not the solver's, or None."""
        return None

    def start(self, X, dataset, seed, n_threads, init):
        """Get ready to learn from X (n, p), from the dictionary `init` (k, p)."""
        self.X = X
        self.dataset = dataset
        self.n_threads = n_threads
        self.rng = np.random.default_rng(seed)
        self.order = SampleOrder(len(X), min(self.batch_size, len(X)))
        self.n_seen = 0
        self.done = False
        self.prepare(np.array(init), seed)

    def prepare(self, init, seed):
        """Do the part of `start` that is the solver's own."""
        raise NotImplementedError

    def advance(self):
        """Do one short piece of work; return its seconds."""
        start = time.perf_counter()
        self.step()
        return time.perf_counter() - start

    def step(self):
        """Do one short piece of work: a mini-batch or a few."""
        raise NotImplementedError

    def dictionary(self):
        """Return the dictionary (k, p)."""
        raise NotImplementedError

    def next_batch(self):
        """Return the samples of the next batch, as a new array."""
        rows = self.order.draw(self.rng)
        self.n_seen += len(rows)
        return self.X[rows]


def is_dictionary_learning(dataset):
    """Whether the problem is: l1 penalty on codes, Euclidean ball for atoms."""
    return dataset.code_l1_ratio == 1 and dataset.dict_l1_ratio == 0


def has_sparse_maps(dataset):
    """Whether the problem is: ridge penalty on codes, l1 ball for atoms."""
    return dataset.code_l1_ratio == 0 and dataset.dict_l1_ratio == 1
