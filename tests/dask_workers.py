"""Clusters of real processes on this machine, and what the tests do with them."""

import os
import signal
import threading
import time
from contextlib import contextmanager

import dask
import numpy as np
from distributed import Client, LocalCluster

from somf.sources.base import ArraySource, Source

PATIENCE = 60  # seconds after which something hangs

SETTINGS = {
    "n_components": 6,
    "alpha": 0.2,
    "batch_size": 20,
    "n_epochs": 3,
    "tol": 0,
    "reduction": 3,
    "n_threads": 1,
    "random_state": 0,
}


def samples(n_samples, n_features):
    """Sparse mixtures of six atoms, with noise."""
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((n_samples, 6)) * (rng.random((n_samples, 6)) < 0.4)
    noise = rng.standard_normal((n_samples, n_features))
    return codes @ rng.standard_normal((6, n_features)) + 0.05 * noise


@contextmanager
def started(n_workers, *, restart=True):
    """A client of a cluster with one thread for each worker process."""
    # A cluster gives up a worker that is away after this time, and tests kill the next
    # one before the last is forgotten.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        await_workers(client, n_workers)
        if not restart:
            for nanny in cluster.workers.values():
                nanny.close_gracefully()
        yield client


def await_workers(client, n_workers):
    """Wait for workers, and until their nannies are ready to replace them."""
    client.wait_for_workers(n_workers, timeout=2 * PATIENCE)
    nannies = client.cluster.workers.values()
    until(lambda: all(nanny.status.name == "running" for nanny in nannies))
    until(lambda: all(nanny.process.status.name == "running" for nanny in nannies))


def until(condition):
    """Wait for something that other processes do."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "this has taken too long"
        time.sleep(0.02)


def kill(client, number=-1):
    """Kill one of the workers; returns where it was."""
    pids = client.run(os.getpid)
    address = sorted(pids)[number]
    os.kill(pids[address], signal.SIGKILL)
    return address


def assert_same_bits(model, other):
    """Two fits are one and the same."""
    for name in ("D", "B", "C", "norms"):
        a, b = getattr(model.state_, name), getattr(other.state_, name)
        np.testing.assert_array_equal(a, b, err_msg=name)
    for name in ("objective", "replaced_atoms", "density"):
        np.testing.assert_array_equal(model.trace_[name], other.trace_[name])
    assert model.n_steps_ == other.n_steps_


class Slow(ArraySource):
    """Rows of which some reads on a worker take long."""

    def __init__(self, X, seconds, reads=()):
        super().__init__(X)
        self.in_memory = False
        self.home = os.getpid()
        self.seconds = seconds
        self.reads = reads  # their numbers; all if there are none
        self.n_reads = 0

    def batch(self, rows, wanted):
        self.n_reads += 1
        due = not self.reads or self.n_reads in self.reads
        if due and os.getpid() != self.home:
            time.sleep(self.seconds)
        return super().batch(rows, wanted)


class Logged(Source):
    """Rows that workers read; each read adds the thread and the rows to a file."""

    def __init__(self, X, path=None):
        self.X, self.path = X, path
        self.shape, self.dtype = X.shape, X.dtype
        self.home = os.getpid()

    def read(self, rows):
        if self.path is not None and os.getpid() != self.home:
            with self.path.open("a") as file:
                file.write(f"{threading.current_thread().name} {rows.tolist()}\n")
        return self.X[rows]
