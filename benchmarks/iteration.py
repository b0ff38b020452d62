"""Seconds of each step of an iteration, against the bare products it cannot avoid.

    python benchmarks/iteration.py             # both problems and the start-up times
    python benchmarks/iteration.py maps codes  # some of: maps, codes, startup

Every ratio is between medians of times that were measured in turns, in one run. The
bare products are single BLAS calls on as many threads as the solver uses; the bare
gathers are the copies of the observed features, on as many threads.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from threadpoolctl import threadpool_limits

from somf import SOMF
from somf.kernels.gather import gather_features, mix_features, scatter_features
from somf.sampling import MaskSampler
from somf.threads import Team, resolve_n_threads

BATCH = 200
PHASES = ("mask", "gather", "code", "aggregate", "dictionary")


def make_maps(n_samples, n_features, k, rng):
    """Smooth sparse maps with dense loadings and noise, as in fMRI."""
    maps = np.zeros((k, n_features), np.float32)
    width = 3 * n_features // k
    bump = np.hanning(width).astype(np.float32)
    for j, start in enumerate(rng.integers(n_features - width, size=k)):
        maps[j, start : start + width] = bump
    loadings = rng.standard_normal((n_samples, k), dtype=np.float32)
    X = loadings @ maps
    for row in X:
        row += rng.standard_normal(n_features, dtype=np.float32)
    return X


def make_sparse(n_samples, n_features, k, rng):
    """Samples with 3 % of k dense atoms, and noise."""
    atoms = rng.standard_normal((k, n_features), dtype=np.float32)
    codes = rng.standard_normal((n_samples, k), dtype=np.float32)
    codes *= rng.random((n_samples, k)) < 0.03
    X = codes @ atoms
    for row in X:
        row += rng.standard_normal(n_features, dtype=np.float32)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


class Bare:
    """The products and copies of one iteration, alone."""

    def __init__(self, X, k, reduction, n_threads, rng, block=1):
        p = X.shape[1]
        self.n_threads = n_threads
        self.features = MaskSampler(p, block=block).draw(reduction, rng).features
        q = len(self.features)
        f32 = np.float32
        self.X, self.Xq = X, np.ascontiguousarray(X[:BATCH, self.features])
        self.D = rng.standard_normal((k, p), dtype=f32)
        self.Dq = np.ascontiguousarray(self.D[:, self.features])
        self.A = rng.standard_normal((BATCH, k), dtype=f32)
        self.C = self.A.T @ self.A
        self.Bq, self.B = np.empty((k, q), f32), np.empty((k, p), f32)
        self.Xout = np.empty((BATCH, q), f32)
        self.Dout = np.empty((k, q), f32)
        self.batch = 0

    def _gather(self, A, rows, out):
        def part(start, stop):
            gather_features(A, rows[start:stop], self.features, out[start:stop])

        return self._share(part, len(rows))

    def _mix(self):
        weights = np.full(len(self.features), 0.5, np.float32)

        def part(start, stop):
            mixed = weights, weights, self.Dq, self.Dout
            mix_features(self.B, self.features, *mixed, start, stop)

        return self._share(part, len(self.B))

    def _scatter(self):
        def part(start, stop):
            scatter_features(self.B, np.arange(start, stop), self.features, self.Dq)

        return self._share(part, len(self.B))

    def _share(self, part, n):
        with Team(self.n_threads) as team:
            start = time.perf_counter()
            team.share(part, n)
            return time.perf_counter() - start

    def _product(self, left, right, out=None):
        with threadpool_limits(self.n_threads, "blas"):
            start = time.perf_counter()
            np.matmul(left, right, out=out)
            return time.perf_counter() - start

    def measure(self):
        """Seconds of each piece; the batch is another one each time."""
        n_batches = len(self.X) // BATCH
        self.batch = (self.batch + 1) % n_batches
        rows = np.arange(self.batch * BATCH, (self.batch + 1) * BATCH)
        X = self.X[rows[0] : rows[-1] + 1]
        return {
            "gather X": self._gather(self.X, rows, self.Xout),
            "gather D": self._gather(self.D, np.arange(len(self.D)), self.Dout),
            "update B": self._mix(),
            "write D": self._scatter(),
            "gram": self._product(self.Dq, self.Dq.T),
            "beta": self._product(self.Xq, self.Dq.T),
            "B observed": self._product(self.A.T, self.Xq, self.Bq),
            "B all": self._product(self.A.T, X, self.B),
            "C D": self._product(self.C, self.Dq, self.Bq),
        }


def run_in_turns(X, models, bare, n_steps):
    """Steps of every model and the bare pieces, one after the other, repeated."""
    pieces = []
    n_batches = len(X) // BATCH
    turns = [*models.values(), bare]
    order = np.random.default_rng(0)
    for step in range(n_steps):
        start = step % n_batches * BATCH
        order.shuffle(turns)  # nobody is always the first after a pause
        for turn in turns:
            if turn is bare:
                pieces.append(bare.measure())
                time.sleep(0.1)  # BLAS threads hold a core for a while after work
            else:
                turn.partial_fit(X[start : start + BATCH])
    skip = n_steps // 3  # compilation, and the first iterations from a raw dictionary
    times = {}
    for name, model in models.items():
        trace = model.trace_
        times[name] = {
            phase: 1e3 * float(np.median(trace[f"seconds_{phase}"][skip:]))
            for phase in PHASES
        }
        steps = np.diff(trace["time"], prepend=0)[skip:]
        times[name]["step"] = 1e3 * float(np.median(steps))
        times[name]["density"] = float(np.median(trace["density"][skip:]))
    alone = {
        name: 1e3 * statistics.median(piece[name] for piece in pieces[skip:])
        for name in pieces[0]
    }
    return times, alone


def print_times(times, alone):
    print("\nbare pieces (ms): " + ", ".join(f"{n} {t:.1f}" for n, t in alone.items()))
    print(f"{'ms':<28}" + "".join(f"{p:>12}" for p in (*PHASES, "step", "density")))
    for name, row in times.items():
        cells = [f"{row[p]:>12.2f}" for p in (*PHASES, "step")]
        print(f"{name:<28}" + "".join(cells) + f"{row['density']:>11.1%}")


def demand(text, value, limit):
    print(f"  {text}: {value:.2f} (at most {limit}) {'ok' if value <= limit else 'NO'}")


def bench_maps(n_threads, n_steps):
    rng = np.random.default_rng(0)
    X = make_maps(5 * BATCH, 200_000, 70, rng)
    for block in (1, 16):
        bench_masks(X, 70, 12, block, n_threads, n_steps, rng)


def bench_masks(X, k, reduction, block, n_threads, n_steps, rng):
    print(
        f"\n== maps: p = {X.shape[1]}, k = {k}, r = {reduction}, ridge codes, l1 ball, "
        f"masks of blocks of {block}"
    )
    common = dict(
        reduction=reduction,
        mask_block=block,
        random_state=0,
        n_threads=n_threads,
        alpha=1e-4,
        batch_size=BATCH,
        dict_update="observed",
    )
    models = {
        f"{estimator}, {aggregation}": SOMF.sparse_components(
            k, code_estimator=estimator, aggregation=aggregation, **common
        )
        for estimator, aggregation in (
            ("masked", "masked"),
            ("masked", "full"),
            ("masked", "async"),
            ("gram", "masked"),
        )
    }
    bare = Bare(X, k, reduction, n_threads, rng, block)
    times, alone = run_in_turns(X, models, bare, n_steps)
    print_times(times, alone)
    copies = alone["gather X"] + alone["gather D"]
    observed = alone["gram"] + alone["beta"] + alone["C D"]
    demand(
        "dictionary update / (two Gram products + C D)",
        times["gram, masked"]["dictionary"] / (2 * alone["gram"] + alone["C D"]),
        3,
    )
    demand(
        "step, masked aggregation / bare",
        times["masked, masked"]["step"] / (copies + observed + alone["B observed"]),
        1.5,
    )
    needed = copies + observed + alone["B observed"]
    least = needed + alone["update B"] + alone["write D"]
    print(
        f"  with B read and written and D written, which that leaves out: "
        f"{times['masked, masked']['step'] / least:.2f} (bound {least / needed:.2f})"
    )
    for rule in ("full", "async"):
        demand(
            f"step, {rule} aggregation / bare",
            times[f"masked, {rule}"]["step"] / (copies + observed + alone["B all"]),
            1.25,
        )


def bench_codes(n_threads, n_steps, n_features=51_200, k=256, reduction=12):
    print(f"\n== codes: p = {n_features}, k = {k}, r = {reduction}, l1 codes, l2 ball")
    rng = np.random.default_rng(0)
    X = make_sparse(10 * BATCH, n_features, k, rng)
    common = dict(
        alpha=0.1,
        random_state=0,
        n_threads=n_threads,
        batch_size=BATCH,
        dict_update="observed",
    )
    models = {
        f"r = {r}, {rule}": SOMF.dictionary_learning(
            k, reduction=r, aggregation=rule, **common
        )
        for r, rule in ((reduction, "async"), (reduction, "full"), (1, "full"))
    }
    bare = Bare(X, k, reduction, n_threads, rng)
    times, alone = run_in_turns(X, models, bare, n_steps)
    print_times(times, alone)
    row = times[f"r = {reduction}, async"]
    demand("codes / step at r = 12", row["code"] / row["step"], 0.25)
    row = times["r = 1, full"]
    dense, share = alone["B all"], row["density"]
    print(
        f"  aggregation of all of B: {row['aggregate']:.1f} ms with {share:.1%} of the "
        f"codes, {dense:.1f} ms dense ({row['aggregate'] / dense:.0%})"
    )


FIT = """
import time, numpy as np
from somf import SOMF
X = np.random.default_rng(0).standard_normal((400, 2000))
start = time.perf_counter()
SOMF({preset}, reduction=4, tol=0, n_epochs=2, random_state=0).fit(X)
print(time.perf_counter() - start)
"""
PRESETS = {
    "dictionary learning": "20",
    "sparse components": "20, code_l1_ratio=0.0, dict_l1_ratio=1.0",
    "averaged codes": '20, code_estimator="averaged", aggregation="masked"',
}
IMPORT = "import time; s = time.perf_counter(); import {}; print(time.perf_counter()-s)"


def run_python(code, cache):
    environment = os.environ | {"NUMBA_CACHE_DIR": cache}
    command = [sys.executable, "-c", code]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    )
    return float(result.stdout)


def bench_startup(n_threads, n_steps):
    print("\n== start-up")
    for name, preset in PRESETS.items():
        code = FIT.format(preset=preset)
        with tempfile.TemporaryDirectory() as cache:
            cold = run_python(code, cache)
            warm = min(run_python(code, cache) for _ in range(3))
        demand(f"first fit without a cache, {name} (s)", cold, 25)
        demand(f"first fit of a process, {name} (s)", warm, 2)
    seconds = {"sklearn": [], "sklearn, somf": []}
    for _ in range(7):
        for modules, values in seconds.items():
            values.append(run_python(IMPORT.format(modules), ""))
    both = statistics.median(seconds["sklearn, somf"])
    demand("import somf after sklearn (s)", both - min(seconds["sklearn"]), 0.3)


BENCHES = {"maps": bench_maps, "codes": bench_codes, "startup": bench_startup}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="*", metavar="|".join(BENCHES))
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    n_threads = resolve_n_threads(arguments.threads)
    print(f"{platform.processor() or platform.machine()}, {n_threads} threads")
    for name in arguments.which or BENCHES:
        BENCHES[name](n_threads, arguments.steps)


if __name__ == "__main__":
    main()
