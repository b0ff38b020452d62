"""Time and bytes of reading: memory maps, slow disks, chunks of features, memory.

`python benchmarks/reading.py [plan|map|slow|bytes|resident ...]`; all take some minutes
and 25 GB of disk for `resident` (`--folder` says where).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from somf import SOMF, plan
from somf.conversion import convert

COMMON = {"n_epochs": 1, "tol": 0, "random_state": 0, "progress": False}


def make_data(n, p, rank=30, seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.standard_normal((n, rank), dtype=np.float32)
    codes *= rng.random((n, rank)) < 0.2
    X = codes @ rng.standard_normal((rank, p), dtype=np.float32)
    X += 0.1 * rng.standard_normal((n, p), dtype=np.float32)
    return X


def epoch_seconds(X, **parameters):
    """Seconds of the iterations of an epoch, with the waiting for data."""
    model = SOMF(**(COMMON | parameters)).fit(X)
    return model.trace_["time"][-1] / model.n_iter_


def fit_seconds(X, **parameters):
    """Seconds of a whole fit, with its checks of the data."""
    start = time.perf_counter()
    SOMF(**(COMMON | parameters)).fit(X)
    return time.perf_counter() - start


def by_turns(tasks, n_turns):
    """Return the seconds of each task, in rounds that all of them take part in."""
    seconds = {name: [] for name in tasks}
    for turn in range(n_turns + 1):
        for name, task in tasks.items():
            elapsed = task()
            if turn:  # the first round compiles and fills caches
                seconds[name].append(elapsed)
    return seconds


def demand(what, value, limit):
    print(
        f"  {what}: {value:.3f} (limit {limit:g}) {'' if value <= limit else 'MISSED'}"
    )


def bench_map(folder, n_turns):
    """Three epochs from a memory map in the page cache, and from memory."""
    X = make_data(4000, 50_000)
    np.save(folder / "map.npy", X)
    settings = {
        "sparse codes": {"n_components": 50, "alpha": 20.0, "batch_size": 200},
        "sparse maps": {
            "n_components": 50,
            "alpha": 1e-3,
            "code_l1_ratio": 0.0,
            "dict_l1_ratio": 1.0,
        },
        "sparse codes, r = 1": {
            "n_components": 50,
            "alpha": 20.0,
            "batch_size": 200,
            "reduction": 1,
        },
    }
    for name, parameters in settings.items():
        parameters |= {"n_epochs": 3}
        seconds = by_turns(
            {
                "memory": lambda p=parameters: fit_seconds(X, **p),
                "map": lambda p=parameters: fit_seconds(folder / "map.npy", **p),
            },
            n_turns,
        )
        medians = {place: np.median(times) for place, times in seconds.items()}
        print(f"{name}: {', '.join(f'{k} {v:.2f} s' for k, v in medians.items())}")
        demand("map / memory", medians["map"] / medians["memory"], 1.15)


class Slow:
    """Samples that come from a disk which takes `seconds` for a batch."""

    def __init__(self, X, seconds):
        self.X, self.shape, self.dtype = X, X.shape, X.dtype
        self.seconds = seconds

    def read(self, rows):
        start = time.perf_counter()
        X = self.X[rows]
        time.sleep(max(0.0, self.seconds - (time.perf_counter() - start)))
        return X


def bench_slow(folder, n_turns):
    """A source that takes as long to read as to compute."""
    X = make_data(4000, 50_000)
    parameters = {"n_components": 50, "alpha": 20.0, "batch_size": 200, "n_epochs": 3}
    n_batches = 20
    compute = np.median([epoch_seconds(X, **parameters) for _ in range(n_turns + 1)])
    for factor in (0.5, 1.0, 2.0):
        source = Slow(X, factor * compute / n_batches)
        took = [epoch_seconds(source, **parameters) for _ in range(n_turns)]
        longer = compute * max(1.0, factor)
        print(f"reading {factor:g} times as long as computing ({compute:.2f} s)")
        demand("epoch / the longer", np.median(took) / longer, 1.25)


def read_characters():
    """Bytes that this process has asked the system to read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(x.split()[1] for x in lines if x.startswith("rchar")))


def bench_bytes(folder, n_turns):
    """Bytes read of a Zarr array in chunks of features, against the reduction."""
    X = make_data(3200, 49_152)
    target = folder / "X.zarr"
    convert(X, target, chunk_samples=50, chunk_features=512, shuffle_features=True)
    read = {}
    for reduction in (1, 4, 12, 24):
        parameters = {
            "n_components": 50,
            "alpha": 20.0,
            "batch_size": 200,
            "aggregation": "masked",
            "reduction": reduction,
            "dict_init": "random",
        }
        before = read_characters()
        SOMF(**(COMMON | parameters)).fit(target)
        read[reduction] = (read_characters() - before) / len(X)
        print(f"r = {reduction}: {read[reduction] / 1e3:.1f} kB a sample")
    demand("bytes at r = 12 / bytes at r = 1", read[12] / read[1], 0.1)


RESIDENT = """
import json, sys
import numpy as np
from somf import SOMF, plan
path, parameters = json.loads(sys.argv[1])
def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith(key)) * 1024
peaks = []
model = SOMF(**parameters).fit(path)
print(json.dumps([status("VmHWM"), float(model.trace_["time"][-1]), model.n_steps_]))
"""


def bench_resident(folder, n_turns):
    """Peak memory of a fit of a memory map of 20 GB."""
    n, p = 100_000, 50_000
    path = folder / "large.npy"
    X = np.lib.format.open_memmap(path, "w+", np.float32, (n, p))
    block = make_data(2000, p)
    for start in range(0, n, len(block)):
        X[start : start + len(block)] = np.roll(block, start, axis=1)
    del X
    print(f"{path.stat().st_size / 1e9:.1f} GB written")
    parameters = COMMON | {"n_components": 50, "alpha": 20.0, "n_epochs": 2}
    command = [sys.executable, "-c", RESIDENT, json.dumps([str(path), parameters])]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, seconds, n_steps = json.loads(result.stdout)
    print(f"2 epochs, {n_steps} iterations, {seconds:.0f} s")
    demand("peak resident GB", peak / 1e9, 2)
    path.unlink()


def bench_plan(folder, n_turns):
    """Time of an epoch as `somf.plan` tells it, and as it is."""
    X = make_data(20_000, 30_000)
    np.save(folder / "plan.npy", X)
    for name, parameters in {
        "sparse codes": {"n_components": 50, "alpha": 20.0},
        "sparse maps": {
            "n_components": 50,
            "alpha": 1e-3,
            "code_l1_ratio": 0.0,
            "dict_l1_ratio": 1.0,
        },
        "sparse codes, observed features": {
            "n_components": 50,
            "alpha": 20.0,
            "aggregation": "masked",
        },
    }.items():
        for data in (X, folder / "plan.npy"):
            told = plan(data, SOMF(**(COMMON | parameters))).seconds_per_epoch
            took = epoch_seconds(data, **parameters)
            place = "memory" if data is X else "map"
            print(f"{name}, {place}: told {told:.2f} s, took {took:.2f} s")
            demand("factor", max(told / took, took / told), 1.5)


BENCHES = {
    "plan": bench_plan,
    "map": bench_map,
    "slow": bench_slow,
    "bytes": bench_bytes,
    "resident": bench_resident,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="*", metavar="|".join(BENCHES))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", help="where files are written, then removed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for name in arguments.which or BENCHES:
            print(f"\n== {name}: {BENCHES[name].__doc__}")
            BENCHES[name](Path(folder), arguments.turns)


if __name__ == "__main__":
    main()
