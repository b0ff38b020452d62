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
import time

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.iteration import demand, make_maps
from somf import SOMF

BATCH = 200
MB = 2**20


def measure(function):
    start = time.perf_counter()
    function()
    return 1e3 * (time.perf_counter() - start)


def median(times):
    return float(np.median(times[len(times) // 3 :]))


def steps_in_turns(models, X, n_steps, others=()):
    """Milliseconds of steps and of their dictionary update, for every model.

    `others` are functions that return milliseconds, and take their turn as well.
    """
    extra = [[] for _ in others]
    n_batches = len(X) // BATCH
    for step in range(n_steps):
        batch = X[step % n_batches * BATCH :][:BATCH]
        for model in models:
            model.partial_fit(batch)
        for times, other in zip(extra, others, strict=True):
            times.append(other())
        time.sleep(0.1)  # BLAS threads hold a core for a while after work
    steps = [1e3 * np.diff(m.trace_["time"], prepend=0) for m in models]
    updates = [1e3 * m.trace_["seconds_dictionary"] for m in models]
    return [*map(median, steps)], [*map(median, updates)], [*map(median, extra)]


def bench_pass(n_steps):
    p, k = 200_000, 70
    print(f"\n== every feature: p = {p}, k = {k}, ridge codes, l1 ball, batches of 200")
    rng = np.random.default_rng(0)
    X = make_maps(3 * BATCH, p, k, rng)
    models = [
        SOMF.sparse_components(
            k,
            reduction=1,
            alpha=1e-4,
            batch_size=BATCH,
            code_estimator=estimator,
            n_threads=n_threads,
            random_state=0,
        )
        for estimator, n_threads in (("masked", 2), ("masked", 1), ("exact", 2))
    ]
    D = rng.standard_normal((k, p), dtype=np.float32)
    C = rng.standard_normal((k, k), dtype=np.float32)
    out = np.empty_like(D)

    def product(left, right, out=None):
        with threadpool_limits(2, "blas"):
            return measure(lambda: np.matmul(left, right, out=out))

    bare = (lambda: product(C, D, out), lambda: product(D, D.T))
    steps, updates, (residual, gram) = steps_in_turns(models, X, n_steps, bare)
    print(f"bare products (ms): C D {residual:.1f}, Gram {gram:.1f}")
    print(f"pass {updates[0]:.1f} ms, with the Gram matrix {updates[2]:.1f} ms")
    demand("pass and Gram matrix / products", updates[2] / (residual + gram), 2.5)
    demand("pass / product C D", updates[0] / residual, 2.5)
    print(f"step {steps[0]:.1f} ms on two threads, {steps[1]:.1f} ms on one")
    demand("step, two threads / one", steps[0] / steps[1], 0.65)


def bench_features(n_steps):
    k, n_observed, block = 50, 5000, 16
    sizes = np.array([50_000, 100_000, 200_000, 400_000, 800_000])
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


def documented(n, p, k, b, reduction, n_threads, aggregation, whole_pass, per_sample):
    """Bytes by the table of docs/how-it-works.md, float32."""
    q = p if reduction == 1 else p / reduction
    numbers = 2 * p * k + 2 * k * k
    if reduction > 1:
        numbers += (b + k) * q + (0 if whole_pass else 2 * k * q)
    rows = 16 if k <= 128 else 64
    numbers += rows * (p if whole_pass else q)
    numbers += 4096 * (b + k) * n_threads
    numbers += n * per_sample
    return 4 * numbers + 8 * (2 * p + n) + (8 * p if aggregation == "masked" else 0)


def bench_memory(n_steps):
    n, p, k, b, n_threads = 1000, 200_000, 100, 200, 2
    print(f"\n== memory: n = {n}, p = {p}, k = {k}, batches of {b}")
    cases = {
        "default": (1, "async", True, 0, {}),
        "1 feature in 12, all updated": (12, "async", True, 0, {"reduction": 12}),
        "1 in 12, the paper's": (
            12,
            "async",
            False,
            0,
            {"reduction": 12, "dict_update": "observed"},
        ),
        "1 in 12, masked": (
            12,
            "masked",
            False,
            0,
            {"reduction": 12, "aggregation": "masked"},
        ),
        "1 in 12, averaged": (
            12,
            "async",
            False,
            k * k + 2 * k,
            {"reduction": 12, "code_estimator": "averaged"},
        ),
    }
    for name, (r, aggregation, whole_pass, per_sample, parameters) in cases.items():
        common = {"n_epochs": 1, "batch_size": b, "n_threads": 2, "random_state": 0}
        if name == "default":
            common["reduction"] = 1
        argument = json.dumps([n, p, k, common | parameters])
        run = [sys.executable, "-c", PEAK, argument]
        result = subprocess.run(run, capture_output=True, text=True, check=True)
        used = int(result.stdout)
        told = documented(n, p, k, b, r, n_threads, aggregation, whole_pass, per_sample)
        print(f"{name}: {used / MB:.0f} MB used, {told / MB:.0f} MB by the table")
        demand("used / told", used / told, 1.1)


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
