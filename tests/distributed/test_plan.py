"""A plan for several workers tells what each of them, and the client, will need."""

import json

import numpy as np
import pytest
import scipy.sparse
from commands import somf

from somf import SOMF, plan
from somf.distributed.costs import Sizes, exchange_bytes, exchange_flops
from somf.sources.base import Source

K, P, Q, BATCH = 10, 3000, 1000, 50


@pytest.fixture
def X():
    return np.random.default_rng(0).standard_normal((500, P), dtype=np.float32)


@pytest.fixture
def enough_memory(monkeypatch):
    """Whatever else runs on the machine."""
    monkeypatch.setattr("somf.planning.available_memory", lambda: 10**10)


def make_model(**parameters):
    settings = {"alpha": 1.0, "batch_size": BATCH, "reduction": 3, "n_threads": 1}
    return SOMF(K, **settings | parameters)


def test_costs_are_those_of_the_model(X):
    told = plan(X, make_model(local_steps=2), seconds=0, n_workers=4)
    workers = told.workers
    sizes = Sizes(500, P, K, BATCH, 3, n_workers=4, local_steps=2)
    sent, flops = exchange_bytes(sizes), exchange_flops(sizes)
    assert workers.n_workers == 4
    assert workers.bytes_up == int(sent.up)
    assert workers.bytes_down == int(sent.down)
    assert workers.hand_over_bytes == 4 * K * P
    assert workers.exchanges_per_epoch == 5
    assert workers.hand_overs_per_epoch == pytest.approx(5 / 12)  # one in 4 cycles
    assert workers.flops_of_worker == int(flops.worker)
    assert workers.flops_of_client == int(flops.client)
    each = 5 * (workers.bytes_up + workers.bytes_down) + 4 * K * P * 5 / 12
    assert workers.bytes_per_epoch == 4 * each
    assert workers.seconds_per_epoch is told.seconds_per_epoch is None
    assert 125 <= workers.n_samples <= 127


def test_settings_are_those_of_a_fit_on_workers(X, client):
    model = make_model(n_epochs=1, max_staleness=0)
    told = plan(X, model, seconds=0, n_workers=2)
    assert told.settings["dict_update"] == "observed"
    assert told.reasons["dict_update"] != "as you set it"
    assert plan(X, model, seconds=0).settings["dict_update"] == "all"
    alone = plan(X, model, seconds=0, n_workers=1)
    assert alone.settings["dict_update"] == "all"
    model.fit(X, client=client)
    assert told.iterations_per_epoch == model.n_steps_
    assert told.workers.exchanges_per_epoch == model.n_steps_


def test_a_head_start(X):
    model = SOMF(K, alpha=1.0, batch_size=BATCH, n_threads=1)
    told = plan(X, model, seconds=0, n_workers=4)
    assert told.settings["dict_update"] == "observed"
    assert "until they have settled" in told.reasons["dict_update"]
    given = plan(X, make_model(), seconds=0, n_workers=4).workers
    assert told.workers.bytes_up == given.bytes_up
    both = exchange_bytes(Sizes(500, P, K, BATCH, 3, n_workers=4, dict_update="all"))
    assert told.workers.head_start_bytes == int(both.up + both.down)
    assert given.head_start_bytes == 0
    words = "both ways until the dictionary has settled"
    assert any(words in line for line in told.workers.lines())
    assert not any(words in line for line in given.lines())
    more = told.workers.client_memory_bytes - given.client_memory_bytes
    assert more > 4 * (both.up + both.down) / 2  # answers of all workers at a time
    for settings in ({"dict_update": "observed"}, {"aggregation": "masked"}):
        strict = plan(X, SOMF(K, **settings), seconds=0, n_workers=4)
        assert strict.workers.head_start_bytes == 0
    assert plan(X, model, seconds=0, n_workers=1).workers.head_start_bytes == 0


def test_memory_is_shared_but_for_the_dictionary(X):
    two, four = (plan(X, make_model(), seconds=0, n_workers=n).workers for n in (2, 4))
    assert two.samples_bytes == two.n_samples * P * 4
    assert four.samples_bytes < 0.52 * two.samples_bytes
    masked = plan(X, make_model(aggregation="masked"), seconds=0, n_workers=4).workers
    assert masked.hand_over_bytes == masked.hand_overs_per_epoch == 0
    more = four.memory_bytes - masked.memory_bytes
    assert more == 4 * K * P - 8 * P  # the B that is on its way; clocks of features
    assert masked.client_memory_bytes < four.client_memory_bytes
    few, many = (
        plan(X, make_model(reduction=60), seconds=0, n_workers=n).workers
        for n in (4, 8)
    )
    grown = many.client_memory_bytes - few.client_memory_bytes
    assert grown < 4 * K * P  # however many there are, they hand over by twos


def test_memory_of_averages_is_shared(X):
    plain, averaged = (
        plan(X, make_model(code_estimator=name), seconds=0, n_workers=2).workers
        for name in ("masked", "averaged")
    )
    more = averaged.memory_bytes - plain.memory_bytes
    assert more == 4 * plain.n_samples * (K * K + 2 * K)


class OnDisk(Source):
    """Rows in chunks of 50,000, never read."""

    def __init__(self):
        self.shape, self.dtype = (10**8, 20_000), np.dtype(np.float32)
        self.row_chunks = np.arange(0, 10**8 + 1, 50_000)


def test_samples_on_disk_take_chunks_and_not_all_rows():
    workers = plan(OnDisk(), SOMF(50), seconds=0, n_workers=100).workers
    assert workers.samples_bytes == 0
    chunk = 50_000 * 20_000 * 4
    assert 2 * chunk < workers.reading_bytes < workers.memory_bytes < 4 * chunk


def test_sparse_samples_take_what_is_stored(X):
    matrix = scipy.sparse.csr_matrix(X * (X > 2))
    told = plan(matrix, make_model(), seconds=0, n_workers=2).workers
    stored = matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
    assert told.samples_bytes == pytest.approx(stored / 2, rel=0.02)


@pytest.mark.usefixtures("enough_memory")
def test_blocks_of_dask_arrays_are_the_pieces(X):
    array = pytest.importorskip("dask.array").from_array(X, chunks=(200, 1000))
    told = plan(array, make_model(), seconds=0, n_workers=8)
    assert told.workers.n_workers == 3
    assert told.workers.samples_bytes == 200 * P * 4  # computed once, and held
    assert any("3 pieces" in line and "8 workers" in line for line in told.advice)
    assert not plan(array, make_model(), seconds=0, n_workers=3).advice


@pytest.mark.usefixtures("enough_memory")
def test_time_is_measured_and_the_network_added(X):
    fast = plan(X, make_model(), seconds=0.1, n_workers=2, latency=0, bandwidth=1e15)
    slow = plan(X, make_model(), seconds=0.1, n_workers=2, latency=1.0)
    assert fast.workers.coding_seconds > 0
    assert fast.workers.client_seconds > 0
    assert fast.workers.network_seconds < 0.1
    parts = ("coding_seconds", "client_seconds", "network_seconds")
    total = sum(getattr(slow.workers, name) for name in parts)
    assert slow.seconds_per_epoch == slow.workers.seconds_per_epoch
    assert slow.seconds_per_epoch == pytest.approx(total)
    trips = 2 * (10 + 10 / 12)  # exchanges, and hand-overs after every 12
    assert slow.workers.network_seconds == pytest.approx(trips, rel=0.01)
    assert slow.workers.speedup < fast.workers.speedup <= 2


def test_what_is_short_of_memory_is_told(X, monkeypatch):
    monkeypatch.setattr("somf.planning.available_memory", lambda: 10**5)
    told = plan(X, make_model(), seconds=0.1, n_workers=2)
    assert told.seconds_per_epoch is None
    assert any("fewer components" in line for line in told.advice)


@pytest.mark.parametrize("n_workers", [0, -1])
def test_bad_numbers_of_workers(X, n_workers):
    with pytest.raises(ValueError, match=f"n_workers={n_workers}"):
        plan(X, make_model(), seconds=0, n_workers=n_workers)
    with pytest.raises(ValueError, match="bandwidth=0"):
        plan(X, make_model(), seconds=0, n_workers=2, bandwidth=0)
    with pytest.raises(ValueError, match="latency=-1"):
        plan(X, make_model(), seconds=0, n_workers=2, latency=-1)


@pytest.mark.usefixtures("enough_memory")
def test_the_command(X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    options = ["--n-components", K, "--batch-size", BATCH, "--reduction", 3]
    options += ["--n-threads", 1, "--workers", 4, "--bandwidth", 0.1, "--latency", 20]
    result = somf("plan", tmp_path / "X.npy", *options)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout
    for words in (
        "4 workers",
        "memory of a worker",
        "memory of the client",
        "network of an exchange",
        "for a network of 100 MB/s and 20 ms, with 0.5 ms of Dask for a message",
        "times as fast as one such worker",
        "dict_update=observed",
    ):
        assert words in lines
    facts = json.loads(somf("plan", tmp_path / "X.npy", *options, "--json").stdout)
    assert facts["workers"]["n_workers"] == 4
    assert facts["workers"]["bandwidth"] == 1e8
    assert facts["workers"]["latency"] == 0.02
    assert facts["workers"]["memory_bytes"] > 0
    options[-5:] = [0]
    assert somf("plan", tmp_path / "X.npy", *options).exit_code == 2
