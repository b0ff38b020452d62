"""How fast could it be? The pieces that an iteration cannot be without.

    python -m benchmarks.bounds                        # photos, hyperspectral
    python -m benchmarks.bounds photos --seeds 5

A race against a rival tells how many of our iterations it takes to come within 1 % of
the best, and how long the rival takes. Then the pieces that an iteration cannot be
without are timed alone, on as many threads, with the data and the dictionary of the
last race: products by BLAS, codes and sums by our kernels, with data in the cache, and
samples and matrices read once. If an iteration took no longer than their sum, we would
be so many times as fast as the rival: what this algorithm can reach on this machine.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.suite.datasets import DATASETS
from benchmarks.suite.experiments import OMF_PAPER
from benchmarks.suite.report import time_to
from benchmarks.suite.runner import REST, race
from benchmarks.suite.solvers import Ours, Spams
from somf.kernels.gather import copy_tile, gather_features
from somf.solver.codes import ByAtom, Codes
from somf.solver.products import SAMPLES
from somf.threads import Team, resolve_n_threads

RIVALS = {"photos": Spams(), "hyperspectral": OMF_PAPER}
TURNS, CALLS = 16, 3
CACHED = 65_536  # numbers that are read at a time


class Pieces:
    """The pieces of one iteration of a model that has been fitted to X."""

    def __init__(self, model, X, dataset, n_threads, rng):
        self.n_threads = n_threads
        self.penalty = dataset.problem.penalty
        self.X, self.D = X, np.array(model.components_)
        self.B = np.zeros_like(self.D)
        self.C = np.array(model.state_.C)
        n, p = X.shape
        self.rows = rng.choice(n, batch_size(model), replace=False)
        q = round(p / model.reduction_)
        self.features = np.sort(rng.choice(p, q, replace=False))
        self.Xq = np.ascontiguousarray(X[np.ix_(self.rows, self.features)])
        self.Dq = np.ascontiguousarray(self.D[:, self.features])
        scale = X.dtype.type(model.reduction_)
        self.G = (self.Dq @ self.Dq.T * scale)[None]
        self.beta = self.Xq @ self.Dq.T * scale
        self.energy = scale * np.einsum("ij,ij->i", self.Xq, self.Xq, dtype=np.float64)

    def gather(self, start, stop):
        """The observed features of the samples, a few of which fit the cache."""
        room = np.empty((SAMPLES, len(self.features)), self.X.dtype)
        for low in range(start, stop, SAMPLES):
            rows = self.rows[low : min(low + SAMPLES, stop)]
            gather_features(self.X, rows, self.features, room)

    def read(self, start, stop):
        """All features of the samples, which B needs once the codes are known."""
        p = self.X.shape[1]
        some = max(1, CACHED // p)
        room = np.empty((some, p), self.X.dtype)
        for low in range(start, stop, some):
            copy_tile(self.X, self.rows[low : min(low + some, stop)], 0, p, room)

    def matrices(self, start, stop):
        """B and D, read and written."""
        some = slice(start, stop)
        self.B[some] *= np.float32(0.5)
        self.D[some] += self.B[some] * np.float32(0)

    def solve(self, team):
        """The codes, from the products of the observed features."""
        codes = np.zeros_like(self.beta)
        self.penalty.solve(
            self.G, self.beta, self.energy, codes, team, tol=1e-3, max_sweeps=999
        )
        return codes

    def add(self, start, stop):
        """The sums of B, as if all samples were in the cache: they are one."""
        same = np.zeros_like(self.rows)
        if isinstance(self.new, ByAtom):
            self.new.add_to(self.B, 1, self.X, same, start, stop)
        else:
            np.matmul(self.new.T, self.X[: len(same), start:stop])

    def measure(self):
        """Return the seconds of each piece."""
        with Team(self.n_threads) as team:
            self.new = Codes.of(self.solve(team)).weighted(1.0, len(self.rows))
            found = {
                "gather": fastest(team.share, self.gather, len(self.rows)),
                "samples for B": fastest(team.share, self.read, len(self.rows)),
                "B and D": fastest(team.share, self.matrices, len(self.D)),
                "codes": fastest(self.solve, team),
                "sums of B": fastest(team.share, self.add, self.D.shape[1]),
            }
        with threadpool_limits(self.n_threads, "blas"):
            found |= {
                "correlations": fastest(np.matmul, self.Xq, self.Dq.T),
                "Gram matrix": fastest(np.matmul, self.Dq, self.Dq.T),
                "C D": fastest(np.matmul, self.C, self.D),
            }
        time.sleep(REST)
        return found


def batch_size(model):
    order = model.state_.sampler.order
    return round(order.n_samples / order.n_batches)


def fastest(task, *arguments):
    """Return the seconds of a call, the shortest of some."""
    seconds = []
    for _ in range(CALLS):
        start = time.perf_counter()
        task(*arguments)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def bench(dataset, rival, seeds, budget, n_threads):
    """Print the race, the pieces and the bound for one data set."""
    print(f"\n== {dataset.name}, against {rival.name}, {n_threads} threads")
    ratios, steps = [], []
    for seed in seeds:
        runners, _ = race(dataset, [Ours(), rival], seed, budget, n_threads)
        curves = [vars(runner.curve) for runner in runners]
        target = 1.01 * min(min(curve["objectives"]) for curve in curves)
        mine, theirs = (time_to(curve, target) for curve in curves)
        model = runners[0].solver.model
        step = float(np.median(np.diff(model.trace_["time"])))
        ratios.append(theirs / mine)
        steps.append(step)
        print(
            f"seed {seed}: to 1 % {mine:.3f} s, {mine / step:.1f} iterations of "
            f"{batch_size(model)} samples at {1e3 * step:.1f} ms; "
            f"{rival.name} {theirs:.2f} s"
        )
    X, _ = dataset.load(seeds[-1])
    pieces = Pieces(model, X, dataset, n_threads, np.random.default_rng(0))
    found = [pieces.measure() for _ in range(TURNS)][1:]
    least = {name: float(np.median([x[name] for x in found])) for name in found[0]}
    words = ", ".join(f"{name} {1e3 * x:.2f}" for name, x in least.items())
    total, step = sum(least.values()), np.median(steps)
    print(f"{words} ms: {1e3 * total:.1f} ms, and a step {1e3 * step:.1f} ms")
    most = np.median(np.multiply(ratios, steps)) / total
    print(
        f"  times as fast: {np.median(ratios):.1f}; "
        f"with nothing but these pieces: {most:.1f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("datasets", nargs="*", metavar="|".join(RIVALS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--budget", type=float, help="seconds of a fit")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    n_threads = resolve_n_threads(arguments.threads)
    for name in arguments.datasets or RIVALS:
        dataset = DATASETS[name]()
        budget = arguments.budget or dataset.budget
        bench(dataset, RIVALS[name], seeds, budget, n_threads)


if __name__ == "__main__":
    main()
