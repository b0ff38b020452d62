"""Workers that read their samples do so before they are asked for them."""

from itertools import pairwise

import dask.array as da
import numpy as np
import pytest
from dask_workers import SETTINGS, Logged, assert_same_bits, samples, until

from somf import SOMF
from somf.distributed.cluster import Cluster
from somf.sources.base import ArraySource
from somf.sources.chunked import DaskSource


@pytest.fixture
def tasks(monkeypatch):
    """The tasks that are sent, by the first row of the worker that gets them."""
    tasks, send = {}, Cluster.send

    def sending(self, seat, task):
        tasks.setdefault(seat.setup.first_row, []).append(task)
        return send(self, seat, task)

    monkeypatch.setattr(Cluster, "send", sending)
    return tasks


def test_a_batch_is_read_before_it_is_asked_for(two, tmp_path, monkeypatch):
    X, log, send, seen = samples(240, 90), tmp_path / "log", Cluster.send, []

    def sending(self, seat, task):
        if seat.setup.first_row in seen:
            rows = seat.setup.first_row + task.visits[0].rows
            until(lambda: f"{rows.tolist()}\n" in log.read_text())
        seen.append(seat.setup.first_row)
        return send(self, seat, task)

    monkeypatch.setattr(Cluster, "send", sending)
    SOMF(**SETTINGS).fit([Logged(X, log)], client=two)
    assert len(seen) == 2 * 36


@pytest.mark.parametrize("local_steps", [1, 3])
def test_every_batch_is_announced_and_read_once(two, tmp_path, tasks, local_steps):
    X = samples(240, 90)
    settings = SETTINGS | {"local_steps": local_steps, "max_staleness": 0}
    logs = [tmp_path / "0", tmp_path / "1"]
    parts = [Logged(X[:120], logs[0]), Logged(X[120:], logs[1])]
    model = SOMF(**settings).fit(parts, client=two)
    for first, log in zip((0, 120), logs, strict=True):
        for task, following in pairwise(tasks[first]):
            expected = following.visits[0].rows
            np.testing.assert_array_equal(task.ahead.rows, expected)
        assert tasks[first][-1].ahead is None
        visits = [visit for task in tasks[first] for visit in task.visits]
        reads = log.read_text().splitlines()
        assert len(reads) == len(visits)
        assert all(line.startswith("somf-reader") for line in reads)
    tasks.clear()
    halves = [ArraySource(X[:120]), ArraySource(X[120:])]
    held = SOMF(**settings).fit(halves, client=two)
    assert_same_bits(model, held)
    assert all(task.ahead is None for task in tasks[0])  # rows are there already


def test_dask_arrays_that_are_read(two):
    """A list of them is not held in memory: its blocks are computed batch by batch."""
    X = samples(240, 90)
    halves = [da.from_array(half, chunks=(40, 90)) for half in (X[:120], X[120:])]
    model = SOMF(**SETTINGS).fit([DaskSource(half) for half in halves], client=two)
    held = SOMF(**SETTINGS).fit(da.concatenate(halves), client=two)
    assert model.objective_ == pytest.approx(held.objective_, rel=0.1)
