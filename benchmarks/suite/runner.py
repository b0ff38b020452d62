"""A race: solvers advance by turns to the same points of time on their own clocks.

The first seconds are one turn: dictionaries are kept and judged at its end. A judge who
looked every few milliseconds would leave cold caches and sleeping threads behind, and a
fit that takes a tenth of a second would seem to take half as long again.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.suite.objective import Objective

RESULTS = Path(__file__).parent.parent / "results"
RATIO = 1.3  # between two points of time
FIRST = 0.02  # seconds
# Seconds before a turn: the BLAS threads of the judge, or of a solver that has just
# warmed up, hold a core for a while.
REST = 0.3
LONGEST_GAP = 20.0  # seconds: late points are evenly spaced
UNDISTURBED = 1.0  # seconds of the first turn
PACKAGES = (
    "somf",
    "numpy",
    "scipy",
    "scikit-learn",
    "numba",
    "spams-bin",
    "nilearn",
    "tensorly",
)


@dataclass
class Curve:
    """What a solver did in a race; times are seconds on its own clock."""

    solver: str
    warm_up: float = 0.0
    times: list[float] = field(default_factory=list)
    objectives: list[float] = field(default_factory=list)
    n_seen: list[int] = field(default_factory=list)

    @property
    def clock(self):
        return self.times[-1]

    def add(self, seconds, objective, n_seen):
        self.times.append(float(seconds))
        self.objectives.append(float(objective))
        self.n_seen.append(int(n_seen))

    def has_settled(self):
        """Whether nothing was gained while the time doubled, or all is lost."""
        if not np.isfinite(self.objectives[-1]):
            return True
        half = np.searchsorted(self.times, self.clock / 2)
        if self.clock < 2 or len(self.times) - half < 4:
            return False
        before = min(self.objectives[:half], default=np.inf)
        return min(self.objectives[half:]) > before * (1 - 1e-5)


class Runner:
    """One solver of a race, with its clock and its curve."""

    def __init__(self, solver, X, dataset, seed, n_threads, init, budget):
        self.curve = Curve(solver.name)
        self.budget = budget * solver.budget_factor
        self.curve.warm_up = warm_up(solver, X, dataset, seed, n_threads, init)
        self.solver = solver.fresh()
        self.solver.start(X, dataset, seed, n_threads, init)
        self.clock = 0.0

    @property
    def finished(self):
        past = self.clock >= self.budget
        return past or self.solver.done or self.curve.has_settled()

    def take_turn(self, points, objective):
        """Work until the clock shows each of `points`, then be judged off the clock."""
        if self.finished:
            return
        time.sleep(REST)
        kept = []
        for point in points:
            if not self.finished and self.clock < min(point, self.budget):
                self.advance_to(point)
                dictionary = np.array(self.solver.dictionary())
                kept.append((self.clock, self.solver.n_seen, dictionary))
        for seconds, n_seen, dictionary in kept:
            self.curve.add(seconds, objective.evaluate(dictionary), n_seen)

    def advance_to(self, point):
        """Work until the clock shows `point`."""
        while self.clock < min(point, self.budget) and not self.solver.done:
            elapsed = self.solver.advance()
            self.clock = elapsed if self.solver.whole else self.clock + elapsed
            if self.solver.whole:
                break  # each fit is a point of its own


def warm_up(solver, X, dataset, seed, n_threads, init):
    """Compile and load what the solver needs; returns the seconds that it took."""
    if solver.whole:
        return 0.0
    start = time.perf_counter()
    trial = solver.fresh()
    trial.start(X[: 2 * trial.batch_size], dataset, seed, n_threads, init)
    trial.advance()
    trial.advance()
    trial.dictionary()
    return time.perf_counter() - start


def turns(end):
    """Return the points of time of each turn, evenly spaced on a logarithmic axis."""
    points = [FIRST]
    while points[-1] < end:
        points.append(min(points[-1] * RATIO, points[-1] + LONGEST_GAP))
    early = [point for point in points if point <= UNDISTURBED]
    return [early, *([point] for point in points[len(early) :])]


def race(dataset, solvers, seed, budget, n_threads, watch=lambda *_: None):
    """Let solvers run against each other.

    Returns them, and the processor seconds that other processes took meanwhile.
    """
    X, X_test = dataset.load(seed)
    init = dataset.init(X, seed)
    objective = Objective(dataset.problem, X_test)
    first = objective.evaluate(init)
    rng = np.random.default_rng(seed)
    with threadpool_limits(n_threads, user_api="blas"):
        runners = [
            Runner(solver, X, dataset, seed, n_threads, init, budget)
            for solver in solvers
        ]
        for runner in runners:
            runner.curve.add(0.0, first, 0)
        busy = foreign_seconds()
        for points in turns(max(runner.budget for runner in runners)):
            for i in rng.permutation(len(runners)):
                runners[i].take_turn(points, objective)
                watch(runners)
    return runners, foreign_seconds() - busy


def foreign_seconds():
    """Return the processor seconds of all other processes since the start."""
    try:
        user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    except (OSError, ValueError):
        return 0.0
    ticks = int(user) + int(nice) + int(system)
    own = os.times()
    return ticks / os.sysconf("SC_CLK_TCK") - own.user - own.system


def machine():
    """Return what the numbers depend on."""
    return {
        "cpu": cpu_model(),
        "n_cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def cpu_model():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if "model name" in x), "")


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def record(experiment, dataset, seed, n_threads, curves, **more):
    """Append the result of a race to the file of the experiment."""
    result = {
        "experiment": experiment,
        "dataset": dataset.name,
        "seed": seed,
        "small": dataset.small,
        "k": dataset.k,
        "n_threads": n_threads,
        "curves": [asdict(curve) for curve in curves],
        **more,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "command": "python -m benchmarks.suite " + " ".join(sys.argv[1:]),
        "machine": machine(),
    }
    RESULTS.mkdir(exist_ok=True)
    with open(RESULTS / f"{experiment}.jsonl", "a") as file:
        file.write(json.dumps(result) + "\n")
