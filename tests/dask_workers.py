"""Clusters of real processes on this machine, and what the tests do with them."""

import os
import signal
import time
from contextlib import contextmanager

import numpy as np
from distributed import Client, LocalCluster

PATIENCE = 30  # seconds after which something hangs


@contextmanager
def started(n_workers, **options):
    """A client of a cluster with one thread for each worker process."""
    with (
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            **options,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(n_workers, timeout=PATIENCE)
        yield client


def until(condition):
    """Wait for something that other processes do."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "this has taken too long"
        time.sleep(0.02)


def kill(client, number=-1):
    """Kill one of the workers for good or, with a nanny, until it is restarted."""
    pids = client.run(os.getpid)
    address = sorted(pids)[number]
    os.kill(pids[address], signal.SIGKILL)
    until(lambda: address not in client.nthreads())
    return address


def assert_same_bits(model, other):
    """Whether two fits are one and the same."""
    for name in ("D", "B", "C", "norms"):
        a, b = getattr(model.state_, name), getattr(other.state_, name)
        np.testing.assert_array_equal(a, b, err_msg=name)
    for name in ("objective", "replaced_atoms", "density"):
        np.testing.assert_array_equal(model.trace_[name], other.trace_[name])
    assert model.n_steps_ == other.n_steps_
