"""
Two workers, and one that dies
==============================

Learn from files on the workers of a Dask cluster, compare with a fit in this process,
and see what happens when a worker is killed half-way.
"""

# %%
# Files
# -----
# Four files of 800 samples each, 50 MB in all; together they are one data set. On a
# cluster they would lie where all machines see them.
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from somf import SOMF
from somf.progress import observed_by

folder = tempfile.TemporaryDirectory()
rng = np.random.default_rng(0)
n_features, n_sources = 4000, 20
atoms = rng.standard_normal((n_sources, n_features), dtype=np.float32)


def draw(n_samples):
    """Return samples that have a few of the atoms each."""
    codes = rng.standard_normal((n_samples, n_sources))
    codes *= rng.random(codes.shape) < 0.2
    noise = rng.standard_normal((n_samples, n_features), dtype=np.float32)
    return (codes @ atoms + noise).astype(np.float32)


paths = [Path(folder.name) / f"part-{i}.npy" for i in range(4)]
for path in paths:
    np.save(path, draw(800))
held_out = draw(200)

# %%
# A cluster
# ---------
# A cluster is a scheduler, here in this process, and workers, each a command that is
# given the address of the scheduler. On several machines it is the same command. For
# workers on one machine, ``dask.distributed.Client()`` in a notebook, or
# ``fit(X, client="local")``, does all of this in one line.
from distributed import Client, LocalCluster

cluster = LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=logging.ERROR)
command = [sys.executable, "-m", "dask", "worker", cluster.scheduler_address]
options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
workers = [
    subprocess.Popen(
        [*command, *options, "--local-directory", folder.name],
        stderr=subprocess.DEVNULL,
    )
    for _ in range(2)
]
client = Client(cluster)
client.wait_for_workers(2)

# %%
# The same fit, here and there
# ----------------------------
# While a client is active, a list of files is learned from on its workers: the call is
# the same. ``client=False`` stays here. Workers exchange all features of the
# dictionary until it has settled, and then those that they observed.
settings = dict(
    n_components=n_sources,
    alpha=10.0,
    batch_size=160,
    n_epochs=6,
    tol=0,
    n_threads=1,
    random_state=0,
)
SOMF(**settings | {"n_epochs": 1}).fit(paths)  # so that nothing is compiled below

here = SOMF(**settings).fit(paths, X_val=held_out, client=False)
there = SOMF(**settings).fit(paths, X_val=held_out)

# %%
# A worker is killed
# ------------------
# In the middle of the third epoch. Its rows go to the worker that is left, which makes
# the batch that was lost again. The log tells.
log = logging.getLogger("somf")
log.setLevel(logging.INFO)
log.addHandler(logging.StreamHandler(sys.stdout))
KILLED_AT = 50


def kill(model, report):
    """Kill the first worker, once."""
    if report.step == KILLED_AT:
        workers[0].kill()


with observed_by(kill):
    survived = SOMF(**settings).fit(paths, X_val=held_out)

# %%
# What it looks like
# ------------------
# Against the samples seen, two workers learn about what the local fit learns. Against
# time they win nothing here: an iteration takes a few milliseconds, an exchange too.
# That changes with the size of the data; the guide to several machines tells when.
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4))
runs = {
    "local": (here, "0.6", "-"),
    "two workers": (there, "C1", "--"),
    "two, then one": (survived, "C3", ":"),
}
for name, (model, color, line) in runs.items():
    trace = model.trace_
    ends = np.isfinite(trace["validation_objective"])
    objective = trace["validation_objective"][ends]
    style = dict(color=color, ls=line, marker=".", label=name)
    left.plot(trace["epoch"][ends], objective, **style)
    middle.plot(trace["time"][ends], objective, **style)
left.set(xlabel="epoch", ylabel="objective of held-out samples")
middle.set(xlabel="seconds", xlim=(0, None))
left.legend(fontsize="small")

for name in ("two workers", "two, then one"):
    model, color, _ = runs[name]
    seconds = np.diff(model.trace_["time"], prepend=0)
    right.plot(model.trace_["step"], 1000 * seconds, color=color, lw=1, label=name)
right.axvline(KILLED_AT, color="0.8", zorder=0)
right.annotate(
    "a worker\nis killed",
    (KILLED_AT, 0.95),
    (-4, 0),
    xycoords=("data", "axes fraction"),
    textcoords="offset points",
    ha="right",
    va="top",
    fontsize="small",
    bbox=dict(fc="white", ec="none", alpha=0.8),
)
right.set(xlabel="iteration", ylabel="milliseconds of an iteration", yscale="log")
figure.tight_layout()
plt.show()

# %%
# Nothing else was lost: the run has as many iterations as the others, and ends where
# they end.
for name, (model, _, _) in runs.items():
    print(f"{name}: {model.n_steps_} iterations, objective {model.objective_:.1f}")

client.close()
for worker in workers:
    worker.terminate()
    worker.wait()
cluster.close()
folder.cleanup()
