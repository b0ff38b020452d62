"""How an iteration grows: with threads, features and atoms, in time and in memory.

    python -m benchmarks.growth                # all parts
    python -m benchmarks.growth pass features  # some of: pass, features, memory

pass      the dictionary update where nothing is hidden, against its bare products, and
          a whole step on two threads against one
features  the step at a fixed number of observed features, from 50 000 to 800 000
memory    the highest resident memory of a fit against the table of how-it-works.md

Ratios are between medians of times that were measured in turns, in one run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import numpy as np

from benchmarks.iteration import (
    BATCH,
    Bare,
    demand,
    make_maps,
    print_times,
    run_in_turns,
)
from somf import SOMF, plan

MB = 2**20
SIZES = (50_000, 100_000, 200_000, 400_000, 800_000)  # features


def median(times):
    return float(np.median(times[len(times) // 3 :]))


def bench_pass(n_steps, p=200_000, k=70):
    print(f"\n== every feature: p = {p}, k = {k}, ridge codes, l1 ball, batches of 200")
    rng = np.random.default_rng(0)
    X = make_maps(3 * BATCH, p, k, rng)
    models = {
        name: SOMF.sparse_components(
            k,
            reduction=1,
            alpha=1e-4,
            batch_size=BATCH,
            code_estimator=estimator,
            n_threads=n_threads,
            random_state=0,
        )
        for name, estimator, n_threads in (
            ("two threads", "masked", 2),
            ("one thread", "masked", 1),
            ("with Gram", "exact", 2),
        )
    }
    bare = Bare(X, k, 1, 2, rng)
    times, alone = run_in_turns(X, models, bare, n_steps)
    print_times(times, alone)
    update = times["with Gram"]["dictionary"]
    demand(
        "pass and Gram matrix / products", update / (alone["C D"] + alone["gram"]), 2.5
    )
    demand("pass / product C D", times["two threads"]["dictionary"] / alone["C D"], 2.5)
    ratio = times["two threads"]["step"] / times["one thread"]["step"]
    demand("step, two threads / one", ratio, 0.65)


def bench_features(n_steps, n_observed=5000, sizes=SIZES):
    k, block = 50, 16
    print(
        f"\n== features: {n_observed} observed in blocks of {block}, k = {k}, "
        "ridge codes, l1 ball"
    )
    X = np.random.default_rng(0).standard_normal((BATCH, sizes[-1]), dtype=np.float32)
    times = {}
    for aggregation in ("masked", "full"):
        models = [
            SOMF.sparse_components(
                k,
                reduction=p / n_observed,
                alpha=1e-4,
                batch_size=BATCH,
                aggregation=aggregation,
                dict_update="observed",
                mask_block=block,
                random_state=0,
            )
            for p in sizes
        ]
        parts = [np.ascontiguousarray(X[:, :p]) for p in sizes]
        for _ in range(n_steps):
            for model, part in zip(models, parts, strict=True):
                model.partial_fit(part)
        times[aggregation] = [
            1e3 * median(np.diff(m.trace_["time"], prepend=0)) for m in models
        ]
        cells = ", ".join(
            f"{p} {t:.1f}" for p, t in zip(sizes, times[aggregation], strict=True)
        )
        print(f"{aggregation}: features and ms of a step: {cells}")
    slopes = {
        name: np.polyfit(np.log(sizes), np.log(values), 1)[0]
        for name, values in times.items()
    }
    demand("slope of log time against log p, masked", slopes["masked"], 0.1)
    print(f"  full: {slopes['full']:.2f}")


PEAK = """
import json, sys
import numpy as np
from somf import SOMF
n, p, k, parameters = json.loads(sys.argv[1])
X = np.random.default_rng(0).standard_normal((n, p), dtype=np.float32)
SOMF(k, **parameters).fit(X[:200, :2000])
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM")) * 1024
before = peak()
SOMF(k, **parameters).fit(X)
print(peak() - before)
"""


def bench_memory(n_steps):
    n, p, k, b, n_threads = 1000, 200_000, 100, 200, 2
    print(f"\n== memory: n = {n}, p = {p}, k = {k}, batches of {b}")
    common = {"n_epochs": 1, "batch_size": b, "n_threads": n_threads, "random_state": 0}
    for parameters in (
        {"reduction": 1},
        {"reduction": 12},
        {"reduction": 12, "dict_update": "observed"},
        {"reduction": 12, "aggregation": "masked"},
        {"reduction": 12, "code_estimator": "averaged"},
    ):
        argument = json.dumps([n, p, k, common | parameters])
        run = [sys.executable, "-c", PEAK, argument]
        result = subprocess.run(run, capture_output=True, text=True, check=True)
        used = int(result.stdout)
        X = np.zeros((n, p), np.float32)  # nobody reads it: it takes no memory
        told = plan(X, SOMF(k, **(common | parameters)), seconds=0).memory_bytes
        words = ", ".join(f"{name}={value}" for name, value in parameters.items())
        print(f"{words}: {used / MB:.0f} MB used, {told / MB:.0f} MB by the table")
        demand("used / told, or told / used", max(used / told, told / used), 1.1)


BENCHES = {"pass": bench_pass, "features": bench_features, "memory": bench_memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="*", metavar="|".join(BENCHES))
    parser.add_argument("--steps", type=int, default=24)
    arguments = parser.parse_args()
    for name in arguments.which or BENCHES:
        BENCHES[name](arguments.steps)


if __name__ == "__main__":
    main()
