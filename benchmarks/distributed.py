"""SOMF on the workers of a Dask cluster, against one worker, and against none.

    python -m benchmarks.distributed                  # all parts
    python -m benchmarks.distributed workers bytes    # some of:

workers   time to the same objective with two worker processes and with one, one thread
          each; what an exchange costs beside the work, and how long it would take if it
          cost nothing
bytes     bytes on the wire of an exchange with one feature in 12 and with all, counted
          by the system on the loopback device, and told by the cost model
quality   two workers against the local solver: time to 1 %, and where they end
scaling   4 to 256 workers, simulated: measured compute times, a network as stated by
          --bandwidth and --latency

Ratios are between medians of fits that were made by turns, in one run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from threadpoolctl import threadpool_limits

from benchmarks.bounds import batch_size
from benchmarks.iteration import demand, make_maps
from benchmarks.suite.datasets import DATASETS
from benchmarks.suite.objective import Objective
from benchmarks.suite.report import time_to
from somf import SOMF
from somf.distributed.costs import Compute, Network, Sizes, exchange_bytes, predict
from somf.progress import observed_by

RATIO = 1.25  # between two points of time
FIRST = 0.05  # seconds
LEVELS = (10, 5, 2)  # per cent above the best objective
# Dask samples the stacks of its workers and its own loops many times a second, which
# takes a twentieth of two cores; see docs/distributed.md.
UNWATCHED = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
}


class BudgetUsedError(Exception):
    """The budget of a fit is used up."""


class Watch:
    """Keeps the dictionary at some points of the solver's own time."""

    def __init__(self, budget):
        self.budget = budget
        self.points = []
        self.next = FIRST

    def __call__(self, model, report):
        now = model._trace.last("time")
        if now >= self.next or now >= self.budget:
            self.points.append((now, np.array(model.components_)))
            self.next = max(self.next * RATIO, now)
        if now >= self.budget:
            raise BudgetUsedError


def fit(parameters, X, client, budget):
    """Fit for some seconds; returns [(seconds, dictionary)] and the seconds before."""
    watch = Watch(budget)
    settings = {"n_epochs": 10**6, "tol": 0, "progress": False, "n_threads": 1}
    model = SOMF(**(settings | parameters))
    start = time.perf_counter()
    with observed_by(watch), suppress(BudgetUsedError):
        model.fit(X, client=client)
    rest = time.perf_counter() - start - model._trace.last("time")
    return watch.points, rest, model


def as_blocks(X, folder, n_blocks=8):
    """Write samples to files, and return them as a Dask array that reads them."""
    blocks = []
    for i, part in enumerate(np.array_split(X, n_blocks)):
        path = Path(folder) / f"{i}.npy"
        np.save(path, part)
        block = dask.delayed(np.load)(str(path))
        blocks.append(da.from_delayed(block, part.shape, part.dtype))
    return da.concatenate(blocks)


@contextmanager
def workers(n):
    """Start a cluster of processes with one thread each; gives its client."""
    with (
        dask.config.set(UNWATCHED),
        LocalCluster(
            n_workers=n, threads_per_worker=1, dashboard_address=":0", memory_limit=0
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def warm_up(parameters, client=False):
    """Let the workers of a client, or the local solver, load the kernels."""
    X = np.random.default_rng(0).standard_normal((600, 3000)).astype(np.float32)
    X = np.abs(X) if parameters.get("positive_code") else X
    small = parameters | {"n_components": 20, "reduction": 2.0, "batch_size": 200}
    small.pop("dict_init", None)
    X = da.from_array(X, chunks=(100, -1)) if client else X
    fit(small, X, client, budget=0.5)


def curves(points, objective):
    times = [seconds for seconds, _ in points]
    return {"times": times, "objectives": [objective.evaluate(D) for _, D in points]}


def problem(name, seed):
    """Return the samples, the judge, and the parameters of a data set."""
    dataset = DATASETS[name](False)
    X, X_test = dataset.load(seed)
    parameters = dataset.settings | {
        "dict_init": dataset.init(X, seed),
        "random_state": seed,
    }
    return X, Objective(dataset.problem, X_test), parameters


WORKLOADS = (  # data, settings, seconds of a fit, what is asked for
    ("fmri-simulated", {"batch_size": 1260, "local_steps": 4}, 22.0, 0.6),
    ("hyperspectral", {"batch_size": 3000, "local_steps": 2}, 8.0, 0.6),
    # For comparison: exchanges of 60 ms, in which there is little to share.
    ("hyperspectral", {}, 6.0, None),
)


def bench_workers(arguments):
    for name, settings, budget, most in WORKLOADS:
        settings = {"dict_update": "observed"} | settings
        words = ", ".join(f"{key}={value}" for key, value in settings.items())
        print(f"\n== workers: {name}, one thread each, {words}")
        X, objective, parameters = problem(name, arguments.seed)
        parameters |= settings
        found = {1: [], 2: []}
        with tempfile.TemporaryDirectory() as folder:
            blocks = as_blocks(X, folder)
            for turn in range(arguments.turns):
                parameters["random_state"] = turn
                for n in (1, 2) if turn % 2 else (2, 1):
                    with workers(n) as client:  # an idle cluster takes its part, too
                        warm_up(parameters, client)
                        points, rest, model = fit(
                            parameters, blocks, client, arguments.budget or budget
                        )
                    found[n].append(curves(points, objective))
                    tell(turn, n, parameters, rest, model)
            floor(parameters | {"batch_size": batch_size(model)}, folder)
        report_workers(found, most)


def tell(turn, n_workers, parameters, rest, model):
    """Print what an exchange of a fit took."""
    trace, steps = model.trace_, parameters.get("local_steps", 1)
    step = 1e3 * steps * np.median(np.diff(trace["time"]))
    passes = 1e3 * steps * np.median(trace["seconds_dictionary"])
    print(
        f"turn {turn}, {n_workers} workers: {len(trace['time']) // steps} exchanges, "
        f"{step:.0f} ms each, of which {passes:.0f} ms at the client; "
        f"{rest:.1f} s to start and end"
    )


def floor(parameters, folder, seconds=4.0):
    """Print how long two processes take that have half a batch each, and no client."""
    paths = sorted(Path(folder).glob("*.npy"))
    parameters = parameters | {"dict_init": "samples"}  # not an array, which travels
    half = parameters | {"batch_size": parameters["batch_size"] // 2}
    with workers(2) as client:
        one = client.submit(batch_seconds, paths, parameters, seconds).result()
        places = client.scheduler_info()["workers"]
        two = [
            client.submit(batch_seconds, paths[i::2], half, seconds, workers=[place])
            for i, place in enumerate(places)
        ]
        ratio = np.mean(client.gather(two)) / one
    print(f"two processes that exchange nothing, half a batch each / one: {ratio:.2f}")


def batch_seconds(paths, parameters, budget):
    """Return how long the codes and statistics of a batch take on one thread."""
    X = np.concatenate([np.load(path) for path in paths])
    _, _, model = fit(parameters, X, False, budget)
    phases = ("gather", "code", "aggregate")
    return np.median(sum(model.trace_[f"seconds_{name}"] for name in phases))


def report_workers(found, most):
    """Print the ratios of times to the same objectives, turn by turn."""
    for level in LEVELS:
        ratios, at_once = [], False
        for one, two in zip(found[1], found[2], strict=True):
            best = min(min(one["objectives"]), min(two["objectives"]))
            target = best * (1 + level / 100)
            times = time_to(two, target), time_to(one, target)
            if np.isfinite(times).all():
                ratios.append(times[0] / times[1])
                at_once |= one["objectives"][0] <= target
        if not ratios:
            continue
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        words = f"time to {level} %, two workers / one ({spread})"
        if most is None:
            print(f"  {words}: {np.median(ratios):.2f}, for comparison")
        elif at_once:  # which tells how they start, not how they go on
            print(f"  {words}: {np.median(ratios):.2f}, after the first exchange")
        else:
            demand(words, np.median(ratios), most)


def loopback_bytes():
    """Return the bytes that the loopback device has carried."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split()[1])
    raise RuntimeError("There is no loopback device in /proc/net/dev.")


def bench_bytes(arguments):
    n, p, k, b = 1200, 50_000, 70, 200
    print(f"\n== bytes: p = {p}, k = {k}, batches of {b}, two workers")
    X = make_maps(n, p, k, np.random.default_rng(0))
    measured = {}
    with tempfile.TemporaryDirectory() as folder, workers(2) as client:
        blocks = as_blocks(X, folder)
        for r in (1, 12):
            parameters = {
                "n_components": k,
                "alpha": 1e-4,
                "code_l1_ratio": 0.0,
                "dict_l1_ratio": 1.0,
                "reduction": r,
                "batch_size": b,
                "random_state": 0,
            }
            short, long = (
                wire_bytes(parameters, blocks, client, n_epochs) for n_epochs in (1, 9)
            )
            n_exchanges = 8 * n // b
            measured[r] = (long - short) / n_exchanges
            sizes = Sizes(n, p, k, b, r, n_workers=2)
            told = 2 * exchange_bytes(sizes).total
            print(
                f"r = {r}: {measured[r] / 1e6:.2f} MB an exchange on the wire, "
                f"{told / 1e6:.2f} by the cost model"
            )
    demand("bytes at r = 12 / r = 1", measured[12] / measured[1], 1 / 8)


def wire_bytes(parameters, X, client, n_epochs):
    """Return the bytes that a fit of some epochs sends."""
    before = loopback_bytes()
    model = SOMF(**parameters, n_epochs=n_epochs, tol=0, progress=False, n_threads=1)
    model.fit(X, client=client)
    return loopback_bytes() - before


QUALITY = {  # whether on two workers of one thread, or here on two threads; settings
    "two workers": (True, {}),
    'two workers, dict_update="observed"': (True, {"dict_update": "observed"}),
    'two workers, dict_update="all"': (True, {"dict_update": "all"}),
    "local": (False, {"n_threads": 2}),
    'local, dict_update="observed"': (
        False,
        {"dict_update": "observed", "n_threads": 2},
    ),
}


def bench_quality(arguments):
    for name, budget in (("hyperspectral", 8.0), ("fmri-simulated", 30.0)):
        budget = arguments.budget or budget
        print(f"\n== quality: {name}, local on 2 threads and two workers, {budget:g} s")
        X, objective, parameters = problem(name, arguments.seed)
        found = {who: [] for who in QUALITY}
        with tempfile.TemporaryDirectory() as folder, workers(2) as client:
            blocks = as_blocks(X, folder)
            warm_up(parameters)
            warm_up(parameters, client)
            for turn in range(arguments.turns):
                parameters["random_state"] = turn
                for who, (on_workers, settings) in QUALITY.items():
                    where = (blocks, client) if on_workers else (X, False)
                    points, _, _ = fit(parameters | settings, *where, budget)
                    found[who].append(curves(points, objective))
                tell_quality(turn, {who: turns[-1] for who, turns in found.items()})
        ends = {who: [min(c["objectives"]) for c in found[who]] for who in found}
        ratios = np.divide(ends["two workers"], ends["local"])
        demand("end of two workers / of the local solver", np.median(ratios), 1.01)


def tell_quality(turn, curves):
    """Print when each came within 1 % of the best of a turn, and where it ended."""
    best = min(min(c["objectives"]) for c in curves.values())
    for who, c in curves.items():
        above = 100 * (min(c["objectives"]) / best - 1)
        print(f"turn {turn}, {who}: 1 % in {time_to(c, 1.01 * best):.2f} s", end=", ")
        print(f"end {above:.2f} % above the best")


def measured_compute(p, k, r, batch_size):
    """Return the seconds of the parts of an iteration, on one thread each."""
    X = make_maps(3 * batch_size, p, k, np.random.default_rng(0))
    model = SOMF.sparse_components(
        k,
        alpha=1e-4,
        reduction=r,
        dict_update="observed",
        aggregation="full",
        batch_size=batch_size,
        n_epochs=3,
        tol=0,
        n_threads=1,
        progress=False,
        random_state=0,
    )
    trace = model.fit(X).trace_
    seconds = {
        name: float(np.median(trace[f"seconds_{name}"][3:]))
        for name in ("gather", "code", "aggregate", "dictionary")
    }
    q = round(p / r)
    answer = np.ones((k, q), np.float32)
    total = answer.copy()
    times = []
    for _ in range(10):
        start = time.perf_counter()
        total += answer
        times.append(time.perf_counter() - start)
    return Compute(
        sample=(seconds["gather"] + seconds["code"]) / batch_size,
        rest=seconds["aggregate"] / batch_size,
        update=seconds["dictionary"],
        merge=float(np.median(times)),
    )


def bench_scaling(arguments):
    p, k, each = 200_000, 70, 128
    network = Network(arguments.bandwidth, arguments.latency)
    print(
        f"\n== scaling, simulated: p = {p}, k = {k}, {each} samples a worker in an "
        f"exchange, {network.bandwidth / 1e9:g} GB/s at the client, "
        f"{1e3 * network.latency:g} ms"
    )
    for r in (1, 12):
        compute = measured_compute(p, k, r, 4 * each)
        print(
            f"r = {r}, measured: {1e6 * compute.sample:.0f} us to code a sample, "
            f"{1e6 * compute.rest:.0f} us to add it to B, "
            f"{1e3 * compute.update:.0f} ms for the pass at the client"
        )
        for steps in (1, 8):
            scaling_table(p, k, r, each, steps, compute, network)


def scaling_table(p, k, r, each, steps, compute, network):
    """Print efficiencies, and from where more workers do not pay."""
    sizes, speedups, last = (4, 8, 16, 32, 64, 128, 256), [], 1
    for n in sizes:
        told = predict(
            Sizes(
                10**7,
                p,
                k,
                batch_size=each * n,
                reduction=r,
                n_workers=n,
                local_steps=steps,
            ),
            compute,
            network,
        )
        speedups.append(told.speedup)
        if len(speedups) == 1 or told.speedup > 1.1 * speedups[-2]:
            last = n
    cells = ", ".join(
        f"{n}: {x:.1f} ({x / n:.2f})" for n, x in zip(sizes, speedups, strict=True)
    )
    print(f"  local_steps = {steps}: workers: speed-up (efficiency) {cells}")
    print(f"    the last doubling that gains 10 %: to {last} workers")


BENCHES = {
    "workers": bench_workers,
    "bytes": bench_bytes,
    "quality": bench_quality,
    "scaling": bench_scaling,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="*", metavar="|".join(BENCHES))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, help="seconds of a fit")
    parser.add_argument("--bandwidth", type=float, default=1e9, help="bytes a second")
    parser.add_argument("--latency", type=float, default=5e-4, help="seconds, one way")
    arguments = parser.parse_args()
    with threadpool_limits(2):
        for name in arguments.which or BENCHES:
            BENCHES[name](arguments)


if __name__ == "__main__":
    main()
