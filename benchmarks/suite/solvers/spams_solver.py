"""SPAMS: trainDL, the reference implementation of online dictionary learning.

`trainDL` continues from a model, but not where it stopped: each call draws the same
permutation (its generator is seeded with 0), starts at the first sample of it, and
derives its forgetting from the number of samples it was given. So `Spams` gives every
call the next batches only, tells it the forgetting that the uninterrupted run would
have at that iteration, and drops statistics of the epoch before last, as that run does.
`SpamsWhole` makes uninterrupted runs of growing length, to check that the two agree.

Its threads wait for each other by spinning, many times in an iteration. A scheduler
may keep them on one core while another is idle, and then a step takes 50 times as long
(seen with Linux 6.18); so each is given a core of its own during a call.

Its Euclidean ball has radius 1, see scikit.py for the scaling; its l1 ball is ours.
Columns are samples: the transpose of our X, the same memory.
"""

from __future__ import annotations

import importlib.util
import os
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.suite.solvers.base import Solver

L2_BALL, L1_BALL = 0, 3
PENALTY = 2
FIXED_FORGETTING = 2
INSIDE = np.float32(1 - 5e-6)
PIECE = 0.3  # seconds of work in a call
SINGLE = 12  # iterations at the start that are made one by one


workers = []  # ids of its threads, which live as long as the process


def train(X, n_threads, **options):
    """Call trainDL with samples as rows, every thread on a core of its own."""
    import spams

    before = thread_ids()
    with own_cores():
        result = spams.trainDL(X.T, numThreads=n_threads, verbose=False, **options)
    workers.extend(thread_ids() - before)
    return result


def thread_ids():
    """Return the ids of the threads of this process, where they are known."""
    folder = Path("/proc/self/task")
    return {int(path.name) for path in folder.iterdir()} if folder.exists() else set()


@contextmanager
def own_cores():
    """Put the caller and the threads of SPAMS on different cores for a while."""
    if not workers:
        yield
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    for i, worker in enumerate(workers, start=1):
        os.sched_setaffinity(worker, {cores[i % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


class SpamsBase(Solver):
    """What both ways to call it share."""

    def __init__(self, batch_size=200, budget_factor=4.0):
        self.batch_size = batch_size
        self.budget_factor = budget_factor

    def supports(self, dataset):
        if importlib.util.find_spec("spams") is None:
            return "spams-bin is not installed"
        if dataset.dict_l1_ratio not in (0, 1):
            return "its elastic-net ball is another one"
        return None

    def prepare(self, init, seed):
        dataset = self.dataset
        euclidean = dataset.dict_l1_ratio == 0
        self.root = np.float32(np.sqrt(2) if euclidean else 1)
        self.D = np.asfortranarray((init / self.root).T)
        penalty = dataset.problem.penalty
        self.options = {
            "lambda1": penalty.l1 / float(self.root),
            "lambda2": max(penalty.l2 / float(self.root) ** 2, 1e-9),
            "mode": PENALTY,
            "modeD": L2_BALL if euclidean else L1_BALL,
            "gamma1": 0.0 if euclidean else 1.0,
            "posAlpha": dataset.positive_code,
            "posD": dataset.positive_dict,
            # It replaces atoms with |d|² below 1e-4: a map of 10 000 voxels has less.
            "clean": euclidean,
            "batchsize": self.batch_size,
        }
        self.options["n_threads"] = min({1, self.n_threads}, key=self.trial)

    def trial(self, n_threads):
        """Return the seconds of a few iterations: small ones are faster on one."""
        X = self.X[: 3 * self.batch_size]
        seconds = []
        for _ in range(4):  # the first starts its threads
            start = time.perf_counter()
            train(X, D=self.D, iter=3, **(self.options | {"n_threads": n_threads}))
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    def dictionary(self):
        return self.D.T * self.root


class Spams(SpamsBase):
    """Pieces of a few batches; what a call costs without any is taken off its clock."""

    def __init__(self, batch_size=200, budget_factor=4.0, most_epochs=np.inf):
        super().__init__(batch_size, budget_factor)
        self.most_epochs = most_epochs
        self.name = "spams" if batch_size == 200 else f"spams b={batch_size}"

    def prepare(self, init, seed):
        super().prepare(init, seed)
        self.permutation = self.rng.permutation(len(self.X))
        self.next_row = 0
        self.n_iter = 0
        self.seconds = []  # of an iteration, lately
        self.n_epochs = 0
        zeros = [np.zeros((len(init), len(init)), np.float32), np.zeros_like(self.D)]
        self.odd = [np.asfortranarray(a) for a in zeros]  # A and B of the last epoch
        self.even = [a.copy(order="F") for a in self.odd]  # and of this one
        self.call_seconds = np.median([self.empty_call() for _ in range(3)])

    def empty_call(self):
        """Return the seconds of a call that makes no iteration."""
        start = time.perf_counter()
        self.call(self.X[: self.batch_size], self.even, 1, 0, 1.0)
        return time.perf_counter() - start

    def call(self, X, statistics, n_done, n_iter, forgetting):
        A, B = statistics
        # It projects what it is given. For a sparse atom on the border of the l1 ball
        # this takes 50 times as long as a step; an atom just inside is left alone.
        D = self.D if self.options["modeD"] == L2_BALL else self.D * INSIDE
        model = {"A": A, "B": B, "iter": n_done} if n_done else None
        return train(
            X,
            D=D,
            model=model,
            return_model=True,
            iter=n_iter,
            modeParam=FIXED_FORGETTING,
            rho=forgetting,
            **self.options,
        )

    def advance(self):
        n_iter = self.piece_length()
        X = np.concatenate([self.next_full_batch() for _ in range(n_iter)])
        self.drop_old_statistics()
        keep = self.forgetting(self.n_iter + (n_iter - 1) // 2)
        given = [a + b for a, b in zip(self.odd, self.even, strict=True)]
        start = time.perf_counter()
        self.D, model = self.call(X, given, self.n_iter, n_iter, keep)
        elapsed = max(time.perf_counter() - start - self.call_seconds, 1e-6)
        self.add_statistics(model, np.float32(keep**n_iter))
        self.n_iter += n_iter
        self.n_seen += len(X)
        self.done = self.n_seen >= self.most_epochs * len(self.X)
        self.seconds = [*self.seconds[-4:], elapsed / n_iter]
        return elapsed

    def piece_length(self):
        if self.n_iter < SINGLE:
            return 1
        return int(np.clip(PIECE / np.median(self.seconds), 1, 10))

    def next_full_batch(self):
        """Full batches across the ends of epochs, in one order for all of them."""
        rows = (self.next_row + np.arange(self.batch_size)) % len(self.X)
        self.next_row += self.batch_size
        return self.X[self.permutation[rows]]

    def forgetting(self, i):
        """What the uninterrupted run multiplies its statistics by at iteration i."""
        b, n = self.batch_size, len(self.X)
        n_elements = min(2 * n, i * b if i < b else b * b + i - b)
        return max(0.0, (n_elements + 1 - b) / (n_elements + 1))

    def drop_old_statistics(self):
        if self.n_seen // len(self.X) > self.n_epochs:
            self.n_epochs = self.n_seen // len(self.X)
            self.odd, self.even = self.even, [np.zeros_like(a) for a in self.even]

    def add_statistics(self, model, keep):
        """Split what the call returned into this epoch's part and the last one's."""
        for i, name in enumerate("AB"):
            self.odd[i] *= keep
            self.even[i] = np.asfortranarray(model[name]) - self.odd[i]


class SpamsWhole(SpamsBase):
    """Uninterrupted runs with more and more iterations, each on a clock of its own."""

    name = "spams whole"
    whole = True

    def prepare(self, init, seed):
        super().prepare(init, seed)
        self.first = self.D
        self.n_iter = 4
        # It takes the samples in an order of its own, which is the same for all seeds.
        self.X = self.X[self.rng.permutation(len(self.X))]

    def step(self):
        self.D = train(self.X, D=self.first, iter=self.n_iter, **self.options)
        self.n_seen = self.n_iter * self.batch_size
        self.n_iter = int(self.n_iter * 1.6)
