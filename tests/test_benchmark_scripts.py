"""The benchmarks run, in a small way: what they time is not looked at."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import benchmarks
from benchmarks import bounds, growth, iteration
from benchmarks.suite import experiments, report, runner
from benchmarks.suite.datasets.simulated import SparseMixtures
from benchmarks.suite.experiments import EXPERIMENTS
from benchmarks.suite.objective import Objective
from benchmarks.suite.solvers import SGD, MatrixVectorOMF
from somf.distributed.costs import Network


class Tiny(SparseMixtures):
    """300 samples of 400 features, 8 atoms."""

    name = "tiny"
    k = 8
    n_train = 300
    n_features = 400
    budget = 0.15  # seconds


@pytest.fixture
def results(tmp_path, monkeypatch):
    for module in (experiments, report, runner):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    return tmp_path


def race(name, wanted):
    """Run one race of an experiment; returns its report and its record."""
    experiment = EXPERIMENTS[name]
    experiment.run(Tiny(), 0, Tiny.budget, 2, wanted, lambda runners: None)
    return experiment.report(), report.read(name)[-1]


def rows(table):
    """Return the cells of the rows of Markdown tables, by their first cell."""
    lines = re.findall(r"^\|(.*)\|$", table, re.MULTILINE)
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells}


def test_a_race_is_run_and_reported(results):
    solvers = ["somf", "omf paper weights", "scikit-learn", "sgd"]
    text, record = race("peers", solvers)
    for curve in record["curves"]:
        assert min(curve["objectives"]) < curve["objectives"][0]
        assert curve["n_seen"][-1] >= 200
    assert {curve["solver"] for curve in record["curves"]} == set(solvers)
    assert set(solvers) <= set(rows(text))
    assert (results / "peers.png").stat().st_size > 10_000


RACE = """
import os, sys, time
from pathlib import Path
from benchmarks.suite.races import in_own_process

def race(path):
    Path(path).write_text(str(os.getpid()))
    time.sleep(60)

if __name__ == "__main__":
    in_own_process(race, sys.argv[1])
"""


@pytest.mark.skipif(os.name != "posix", reason="processes are ended by a signal")
def test_a_race_ends_with_the_process_that_began_it(tmp_path):
    script, told = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(RACE)
    root = str(Path(benchmarks.__path__[0]).parent)
    environment = os.environ | {"PYTHONPATH": root}
    parent = subprocess.Popen([sys.executable, script, told], env=environment)
    while not (told.exists() and told.read_text()):
        assert parent.poll() is None
        time.sleep(0.05)
    parent.terminate()
    assert parent.wait() == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


def test_an_omf_built_as_in_the_paper():
    """Both ways to update one atom at a time are the same iteration."""
    dataset = Tiny()
    X, X_test = dataset.load(0)
    init = dataset.init(X, 0)
    objective = Objective(dataset.problem, X_test)
    found = []
    for update in ("gemv", "rank-one"):
        solver = MatrixVectorOMF(update).fresh()
        solver.start(X, dataset, 0, 2, init)
        for _ in range(4):
            solver.advance()
        found.append(solver.dictionary())
    assert_allclose(*found, atol=1e-4)
    assert objective.evaluate(found[0]) < 0.9 * objective.evaluate(init)


def test_a_race_against_spams(results):
    pytest.importorskip("spams", reason="spams-bin is an optional peer (extra bench)")
    _, record = race("quality", ["somf", "spams"])
    for curve in record["curves"]:
        assert min(curve["objectives"]) < curve["objectives"][0]


def test_the_profile_tells_the_phases(results):
    text, _ = race("profile", ["paper r=1", "paper r=4"])
    cells = rows(text[text.index("by phase") :])
    for solver in ("paper r=1", "paper r=4"):
        *phases, total = map(float, cells[solver])
        assert total == pytest.approx(sum(phases), abs=0.005 * (len(phases) + 1))
        assert total > 0


def ratios(printed):
    """Return the values that demands were held against."""
    return [float(x) for x in re.findall(r": ([\d.]+) \(at most", printed)]


def test_steps_against_bare_products(capsys):
    rng = np.random.default_rng(0)
    X = iteration.make_maps(2 * iteration.BATCH, 900, 6, rng)
    iteration.bench_masks(X, 6, 3, 1, 2, 3, rng)
    iteration.bench_codes(2, 3, n_features=900, k=12, reduction=3)
    found = ratios(capsys.readouterr().out)
    assert len(found) == 5
    assert np.isfinite(found).all()


def test_growth_with_threads_and_features(capsys):
    growth.bench_pass(3, p=900, k=6)
    growth.bench_features(3, n_observed=100, sizes=(200, 400, 800))
    found = ratios(capsys.readouterr().out)
    assert len(found) >= 3  # a slope may be negative
    assert np.isfinite(found).all()


def test_pieces_that_an_iteration_cannot_be_without(capsys, monkeypatch):
    monkeypatch.setattr(bounds, "TURNS", 2)
    bounds.bench(Tiny(), SGD(), [0], Tiny.budget, 2)
    line = capsys.readouterr().out.splitlines()[-2]
    pieces, total = re.match(r"(.*) ms: ([\d.]+) ms", line).groups()
    values = [float(x) for x in re.findall(r" ([\d.]+)(?:,|$)", pieces)]
    assert len(values) == 8
    assert float(total) == pytest.approx(sum(values), abs=0.1)


def test_scaling_of_workers(capsys):
    distributed = pytest.importorskip("benchmarks.distributed")
    compute = distributed.measured_compute(900, 6, 3, 60)
    assert min(compute.sample, compute.update, compute.merge) > 0
    distributed.scaling_table(900, 6, 3, 20, 1, compute, Network(1e9, 5e-4))
    told = re.findall(r"(\d+): ([\d.]+) \(", capsys.readouterr().out)
    assert [int(n) for n, _ in told] == [4, 8, 16, 32, 64, 128, 256]
    assert all(0 < float(speedup) <= int(n) for n, speedup in told)


def test_budget_ends_a_fit_that_is_watched():
    distributed = pytest.importorskip("benchmarks.distributed")
    X, _ = Tiny().load(0)
    points, _, _ = distributed.fit(Tiny().settings, X, False, 0.2)
    assert points[-1][0] >= 0.2
    assert points[-1][1].shape == (8, 400)


def test_two_processes_that_exchange_nothing(capsys, tmp_path):
    distributed = pytest.importorskip("benchmarks.distributed")
    X, _ = Tiny().load(0)
    distributed.as_blocks(X, tmp_path)
    parameters = Tiny().settings | {"batch_size": 20}
    distributed.floor(parameters, tmp_path, seconds=0.2)
    assert float(capsys.readouterr().out.rsplit(": ")[-1]) > 0
