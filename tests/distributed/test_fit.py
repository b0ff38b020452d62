"""A fit on workers is the fit here: to the bit on one, to rounding on several."""

import logging
import re
from dataclasses import replace
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
import reference
from dask_workers import SETTINGS, assert_same_bits, samples, started

import somf.estimator
from somf import SOMF
from somf.distributed.crew import Crew
from somf.distributed.ledger import Coordinator, Ledger
from somf.distributed.run import FEWEST
from somf.progress import observed_by
from somf.sampling import Mask, SampleOrder, StratifiedOrder
from somf.solver import schedule
from somf.solver.iteration import Factorization, Settings
from somf.sources import as_source
from somf.sources.chunked import DaskSource


@pytest.fixture(scope="module")
def one():
    with started(1) as client:
        yield client


@pytest.fixture(scope="module")
def X():
    return samples(110, 90)


def with_gaps(X):
    X = X.copy()
    X[np.random.default_rng(1).random(X.shape) < 0.05] = np.nan
    return X


IDLE = {"n_components": 20, "alpha": 10.0, "dict_init": "random", "batch_size": 10}
CASES = {
    "default": {},
    "everything in view": {"reduction": 1},
    "observed": {"dict_update": "observed"},
    "masked": {"aggregation": "masked"},
    "full": {"aggregation": "full", "dict_update": "observed"},
    "averaged": {"code_estimator": "averaged"},
    "gram": {"code_estimator": "gram"},
    "exact": {"code_estimator": "exact"},
    "sparse atoms": {"code_l1_ratio": 0, "dict_l1_ratio": 0.5, "alpha": 0.01},
    "nmf": {"positive_code": True, "positive_dict": True},
    "gaps": {"missing": "mask", "dict_update": "observed"},
    "idle atoms": {**IDLE, "dict_update": "observed"},
    "idle atoms, all": {**IDLE, "dict_update": "all"},
    "idle atoms, gram": {**IDLE, "code_estimator": "gram"},
    "float32": {"dict_update": "observed", "reduction_schedule": "decreasing"},
}


def data_of(name, X):
    if name == "nmf":
        return np.abs(X)
    if name == "gaps":
        return with_gaps(X)
    return X.astype(np.float32) if name == "float32" else X


@pytest.mark.parametrize("name", CASES)
def test_one_worker_gives_the_same_bits(one, X, name):
    settings, X = SETTINGS | CASES[name], data_of(name, X)
    here = SOMF(**settings).fit(X)
    there = SOMF(**settings).fit(da.from_array(X, chunks=(55, 45)), client=one)
    assert_same_bits(there, here)
    assert there.components_.dtype == X.dtype
    assert there.stop_reason_ == here.stop_reason_
    assert (here.trace_["replaced_atoms"][-1] > 0) == ("idle" in name)


def test_pieces_of_batches_give_the_same_bits(one, monkeypatch):
    monkeypatch.setattr(schedule, "SMALLEST_PIECE", 10)
    monkeypatch.setattr(schedule, "LONG_WAY", 4)
    X = samples(320, 90)
    settings = SETTINGS | {"batch_size": "auto", "n_epochs": 12}
    here = SOMF(**settings).fit(X)
    assert here.n_steps_ > 12 * here.state_.sampler.order.n_batches
    assert_same_bits(SOMF(**settings).fit(X, client=one), here)
    whole = SOMF(**settings, local_steps=2).fit(X, client=one)
    assert whole.n_steps_ == 12 * here.state_.sampler.order.n_batches


def test_files_and_arrays_on_one_worker(one, X, tmp_path):
    zarr = pytest.importorskip("zarr")
    stored = zarr.open_array(
        str(tmp_path / "X.zarr"), mode="w", shape=X.shape, chunks=(16, 30), dtype="f8"
    )
    stored[:] = X
    parts = [tmp_path / "first.npy", tmp_path / "second.npy"]
    for part, rows in zip(parts, np.split(X, [30]), strict=True):
        np.save(part, rows)
    settings = SETTINGS | {"dict_update": "observed"}
    for data in (str(tmp_path / "X.zarr"), parts, X):
        there = SOMF(**settings).fit(data, client=one)
        assert_same_bits(there, SOMF(**settings).fit(data, client=False))


def fit_here(X, settings, n_rows, monkeypatch):
    """A fit without workers that draws what workers with so many rows draw."""

    def order(source, choices, shuffle):
        parts = [SampleOrder(n, choices.batch_size, shuffle) for n in n_rows]
        return StratifiedOrder(parts, choices.batch_size)

    with monkeypatch.context() as patch:
        patch.setattr(somf.estimator, "sample_order", order)
        return SOMF(**settings).fit(X)


def assert_close(model, other):
    for name in ("D", "B", "C", "norms"):
        a, b = getattr(model.state_, name), getattr(other.state_, name)
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8, err_msg=name)
    np.testing.assert_allclose(model.trace_["objective"], other.trace_["objective"])


TWO = ("observed", "masked", "full", "gram", "nmf", "gaps", "idle atoms")


@pytest.mark.parametrize("name", [*TWO, "idle atoms, all", "averaged", "exact"])
def test_two_workers_are_one_solver(two, X, name, monkeypatch):
    exact = {"max_staleness": 0, "code_tol": 1e-12, "dict_update": "observed"}
    settings, X = SETTINGS | exact | CASES[name], data_of(name, X)
    chunks = ((30, 25, 0, 55), 90)
    there = SOMF(**settings).fit(da.from_array(X, chunks=chunks), client=two)
    assert_close(there, fit_here(X, settings, [55, 55], monkeypatch))
    assert (there.trace_["replaced_atoms"][-1] > 0) == ("idle" in name)


def settling(step):
    """Update all features of the dictionary until it has settled, then the observed."""

    def settling_step(self, batch, mask):
        t = self.state.n_steps
        settled = t >= FEWEST and self.state.pace.has_settled(t)
        update = "observed" if settled else "all"
        self.settings = replace(self.settings, dict_update=update)
        return step(self, batch, mask)

    return settling_step


@pytest.mark.parametrize("n_steps", [1, 2, 4])
def test_a_head_start_with_all_features(
    two, head_start, X, n_steps, monkeypatch, caplog
):
    settings = SETTINGS | head_start | {"max_staleness": 0, "code_tol": 1e-12}
    settings["n_epochs"] *= n_steps
    masks, starts, absorb = [], [], Ledger.absorb

    def note(self, mask, answers):
        masks.append(mask.observes_all)
        starts.append(self.state.n_steps)
        return absorb(self, mask, answers)

    monkeypatch.setattr(Ledger, "absorb", note)
    with caplog.at_level(logging.INFO, "somf"):
        there = SOMF(**settings, local_steps=n_steps).fit(
            da.from_array(X, chunks=(55, 90)), client=two
        )
    n_whole = sum(masks)
    assert masks == [True] * n_whole + [False] * (len(masks) - n_whole)
    assert FEWEST <= n_whole <= len(masks) // 2
    assert "dict_update='observed', all features at first" in caplog.text
    n_first = int(re.search(r"exchanged for (\d+) iterations", caplog.text)[1])
    assert starts[n_whole - 1] < n_first <= starts[n_whole]
    if n_steps == 1:
        monkeypatch.setattr(Factorization, "step", settling(Factorization.step))
        assert_close(there, fit_here(X, settings, [55, 55], monkeypatch))
    else:
        assert there.state_.pace.exponent == schedule.SETTLED_U


def test_a_head_start_ends_once():
    solver = object.__new__(Coordinator)
    solver.head_start = 4
    solver.settings = Settings(schedule=schedule.Schedule(reduction=3.0))
    solver.state = SimpleNamespace(pace=schedule.Pace(), n_steps=0)
    mask = Mask(np.arange(3), 9, 3.0)
    for t, objective in enumerate([1.0, 0.5, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2] + 8 * [0.1]):
        assert solver.exchanged(mask).observes_all == (t < 8)
        solver.state.n_steps += 1
        solver.note_pace(t + 1, objective)
    assert solver.exchanged(mask) is mask
    assert solver.state.pace.exponent == schedule.SETTLED_U
    solver.state = SimpleNamespace(pace=schedule.Pace(), n_steps=0)
    for t in range(1, 1026):  # it falls and falls
        assert solver.exchanged(mask).observes_all == (t <= 1024)
        solver.state.n_steps += 1
        solver.note_pace(t, 1 / t)
        assert (solver.state.pace.exponent < schedule.SETTLED_U) == (1 < t < 1024)


def test_who_has_told_everything():
    def seat(whole, awaited=False):
        return SimpleNamespace(
            task=SimpleNamespace(whole=whole), future=object() if awaited else None
        )

    crew = object.__new__(Crew)
    for seats, told in (
        ([seat(True), seat(True)], True),
        ([seat(True), seat(True, awaited=True)], False),
        ([seat(True), seat(False)], False),  # late with less, and not asked since
    ):
        crew.seats = seats
        assert crew.has_told_all == told


def local_steps_by_hand(X, settings, n_rows):
    """Groups of batches are coded with the same atoms; then one pass over these."""
    model = SOMF(**settings)
    model._start(as_source(X))
    state, steps = model.state_, settings["local_steps"]
    parts = [SampleOrder(n, settings["batch_size"]) for n in n_rows]
    state.sampler.order = StratifiedOrder(parts, settings["batch_size"])
    D, B, C = state.D.T, state.B.T, state.C
    norms, G = state.norms, D.T @ D
    n_batches = state.sampler.order.n_batches
    for t in range(settings["n_epochs"] * n_batches):
        draw = state.sampler.draw(settings["reduction"])
        here = draw.mask.features
        grams = draw.mask.scale * D[here].T @ D[here]
        betas = draw.mask.scale * X[np.ix_(draw.rows, here)] @ D[here]
        codes = np.array(
            [reference.solve_code(grams, b, settings["alpha"], 1.0) for b in betas]
        )
        w = (t + 1) ** -0.917
        C = (1 - w) * C + w * codes.T @ codes / len(codes)
        B = (1 - w) * B + w * X[draw.rows].T @ codes / len(codes)
        batch = t % n_batches + 1
        if batch % steps == 0 or batch == n_batches:
            orders = [state.rng.permutation(len(C))]
            D, norms, G = reference.partial_dictionary_update(
                D, B, C, norms, G, here, orders, 0.0, False
            )
    return D.T, B.T, C


def test_local_steps_as_documented(two, X):
    more = {"local_steps": 4, "max_staleness": 0, "code_tol": 1e-13}
    more |= {"dict_update": "observed", "n_epochs": 1, "weights": "paper"}
    settings = SETTINGS | more
    there = SOMF(**settings).fit(da.from_array(X, chunks=(55, 90)), client=two)
    D, B, C = local_steps_by_hand(X, settings, [55, 55])
    np.testing.assert_allclose(there.state_.C, C, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(there.state_.B, B, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(there.components_, D, rtol=1e-6, atol=1e-9)
    assert there.n_steps_ == 6


@pytest.mark.parametrize("name", ["default", "observed", "masked", "idle atoms"])
def test_the_constraint_holds_after_every_exchange(two, X, name):
    norms = []

    def look(model, report):
        atoms = model.state_.D
        norms.append([reference.enet_norm(atom, model.dict_l1_ratio) for atom in atoms])
        np.testing.assert_allclose(model.state_.norms, norms[-1], rtol=1e-9)

    settings = SETTINGS | CASES[name] | {"dict_l1_ratio": 0.3}
    with observed_by(look):
        SOMF(**settings).fit(da.from_array(X, chunks=(30, 90)), client=two)
    n_batches = -(-len(X) // settings["batch_size"])
    assert len(norms) == 3 * n_batches
    assert np.max(norms) <= 1 + 1e-9


def test_nobody_gathers_the_samples(two, monkeypatch):
    X = samples(600, 40)
    n_read = []
    read = DaskSource.read
    monkeypatch.setattr(
        DaskSource,
        "read",
        lambda self, rows: n_read.append(len(rows)) or read(self, rows),
    )
    gathered = []
    gather = type(two)._gather

    async def counted(self, futures, *args, **options):
        gathered.append(futures)
        return await gather(self, futures, *args, **options)

    monkeypatch.setattr(type(two), "_gather", counted)
    X = da.from_array(X, chunks=(50, 40))
    SOMF(**SETTINGS).fit(X, client=two)
    assert 0 < sum(n_read) <= SETTINGS["n_components"]
    assert len(gathered) <= 2 + len(n_read) * X.numblocks[0]


@pytest.mark.parametrize("name", ["observed", "default", "masked", "gram"])
def test_atoms_that_were_in_use_are_replaced(one, two, X, name, monkeypatch):
    """In the middle of an epoch, at its end, where lanes hand over, and at the last."""

    def idle_atoms(self, used, n_samples):
        self.n_calls = getattr(self, "n_calls", 0) + 1
        return np.array([0, 3] if self.n_calls in (4, 6, 18) else [], np.intp)

    monkeypatch.setattr(Factorization, "idle_atoms", idle_atoms)
    settings = SETTINGS | {"max_staleness": 0, "code_tol": 1e-12} | CASES[name]
    data = da.from_array(X, chunks=(55, 90))
    there = SOMF(**settings).fit(data, client=one)
    assert_same_bits(there, SOMF(**settings).fit(X))
    settings["dict_update"] = "observed"
    there = SOMF(**settings).fit(data, client=two)
    here = fit_here(X, settings, [55, 55], monkeypatch)
    np.testing.assert_allclose(there.state_.B, here.state_.B, rtol=1e-5, atol=1e-7)
    assert there.trace_["replaced_atoms"][-1] == 6


def test_local_workers_have_one_thread_each(X, monkeypatch):
    threads = []
    take_seats = Crew.take_seats

    def noted(crew, memory):
        take_seats(crew, memory)
        threads.extend(seat.setup.n_threads for seat in crew.seats)

    monkeypatch.setattr(Crew, "take_seats", noted)
    model = SOMF(**(SETTINGS | {"n_threads": 2, "n_epochs": 1}))
    model.fit(da.from_array(X, chunks=(55, 90)), client="local")
    assert threads == [1, 1]
