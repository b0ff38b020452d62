"""What a fit on several workers shows of each of them."""

import re
import sys
import time

import numpy as np
import pytest

from somf import SOMF
from somf.distributed.crew import Crew
from somf.progress import ProgressBar
from somf.rates import WorkerRates
from somf.solver.run import Report, WorkerProgress


class Clock:
    """Time that passes when a test says so."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def progress(*counts, behind=0):
    """Workers with these numbers of samples coded; the last may be behind."""
    workers = [WorkerProgress(f"tcp://w{i}", 500, n) for i, n in enumerate(counts[:-1])]
    last = len(counts) - 1
    return [*workers, WorkerProgress(f"tcp://w{last}", 500, counts[-1], behind)]


def test_speed_of_each_worker_and_who_is_behind(clock):
    rates = WorkerRates()
    clock.now += 2
    assert rates.follow(progress(200, 100)) == [
        "2 workers, 150 samples/s",
        "tcp://w0 100 samples/s",
        "tcp://w1 50 samples/s",
    ]
    clock.now += 2
    assert rates.follow(progress(6000, 100, behind=3)) == [
        "2 workers, 1,525 samples/s",
        "tcp://w0 1,500 samples/s",
        "tcp://w1 25 samples/s, 3 exchanges behind",
    ]
    assert rates.follow([]) == []


def test_a_worker_that_is_lost_is_named_and_counts_no_more(clock):
    rates = WorkerRates()
    clock.now += 1
    rates.follow(progress(100, 100))
    clock.now += 1
    both = [WorkerProgress("tcp://w0", 500, 200), WorkerProgress("tcp://w0", 500, 150)]
    assert rates.follow(both) == [
        "1 worker, 175 samples/s",
        "tcp://w0 125 samples/s",  # 100 + 100 of its own, 50 of the other
        "lost: tcp://w1",
    ]


def test_samples_that_are_shared_out_anew(clock):
    rates = WorkerRates()
    clock.now += 1
    rates.follow(progress(100, 100))
    clock.now += 1  # a third worker joins, and all lanes begin again
    assert rates.follow(progress(50, 50, 0))[:2] == [
        "3 workers, 150 samples/s",
        "tcp://w0 75 samples/s",
    ]
    clock.now += 2
    lines = rates.follow(progress(20, 50, 80))  # a lane began again
    assert lines[0] == "3 workers, 100 samples/s"
    assert lines[-1] == "tcp://w2 40 samples/s"  # since it is there


def test_many_workers_are_summarised(clock):
    rates = WorkerRates()
    clock.now += 1
    assert rates.follow(progress(*range(10, 30), behind=2)) == [
        "20 workers, 390 samples/s, 10 to 29 each",
        "behind (exchanges): tcp://w19 by 2",
    ]
    lines = rates.follow(progress(*range(10, 20)))
    assert lines[-1].endswith("tcp://w17 and 2 more")


def test_under_the_bar_and_at_the_end_of_a_line(monkeypatch, capsys):
    monkeypatch.setattr(ProgressBar, "DELAY", 0)
    workers = progress(10, 20, behind=1)
    with ProgressBar(True) as bar:
        bar.follow(Report(1, 10, 10, 0.5, False), workers)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"fit: iteration 1 of 10 \(10 %\), objective 0.5; 2 workers, [\d,]+ samples/s; "
        r"tcp://w0 [\d,]+ samples/s; tcp://w1 [\d,]+ samples/s, 1 exchange behind, 0 s",
        line,
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar(True) as bar:
        bar.follow(Report(1, 10, 10, 0.5, False), workers)
    lines = capsys.readouterr().err.splitlines()
    first = next(i for i, line in enumerate(lines) if "2 workers" in line)
    assert "objective 0.5" in lines[first - 1]
    assert lines[first + 1].strip().startswith("tcp://w0")
    assert lines[first + 2].strip().endswith("1 exchange behind")


def test_a_fit_here_shows_no_workers(monkeypatch, capsys):
    monkeypatch.setattr(ProgressBar, "DELAY", 0)
    X = np.eye(20, dtype=np.float32)
    SOMF(2, batch_size=5, n_epochs=1, progress=True).fit(X)
    shown = capsys.readouterr().err
    assert "objective" in shown
    assert "worker" not in shown


def test_workers_of_a_real_run(client, monkeypatch, capsys):
    monkeypatch.setattr(ProgressBar, "DELAY", 0)
    seen = []
    follow = ProgressBar.follow

    def following(self, report, workers=()):
        seen.append(workers)
        follow(self, report, workers)

    monkeypatch.setattr(ProgressBar, "follow", following)
    X = np.random.default_rng(0).standard_normal((400, 240), dtype=np.float32)
    model = SOMF(6, alpha=0.1, batch_size=50, n_epochs=2, n_threads=1, reduction=4)
    model.set_params(random_state=0, progress=True, max_staleness=0).fit(
        X, client=client
    )
    addresses = list(client.scheduler_info(n_workers=-1)["workers"])
    last = seen[-1]
    assert {worker.address for worker in last} == set(addresses)
    assert [worker.n_rows for worker in last] == [200, 200]
    assert [worker.n_samples for worker in last] == [400, 400]
    assert [worker.behind for worker in last] == [0, 0]
    assert [worker.n_samples for worker in seen[0]] == [25, 25]
    shown = capsys.readouterr().err
    assert "2 workers" in shown
    assert all(address in shown for address in addresses)


def test_a_worker_that_has_not_answered_is_behind():
    class Seat:
        def __init__(self, number, waiting):
            self.address, self.n_samples = "tcp://a", 7
            self.setup = type("Setup", (), {"n_rows": 9})
            self.task = number and type("Task", (), {"number": number})
            self.future = waiting

    crew = object.__new__(Crew)
    crew.ledger = type("Ledger", (), {"number": 5})
    crew.seats = [Seat(5, None), Seat(3, object()), Seat(None, None)]
    assert [worker.behind for worker in crew.progress] == [0, 2, 0]
