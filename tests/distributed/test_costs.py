"""The costs of an exchange, against the messages of real runs."""

import dataclasses
import math

import numpy as np
import pytest

from somf import SOMF
from somf.distributed.cluster import Cluster
from somf.distributed.costs import (
    Compute,
    Network,
    Sizes,
    exchange_bytes,
    exchange_flops,
    predict,
)
from somf.distributed.messages import Answer

N, P, K, BATCH = 400, 240, 6, 50


def n_bytes(message):
    """Bytes of the arrays of a message, and of the numbers of an answer."""
    if isinstance(message, np.ndarray):
        return message.nbytes
    if dataclasses.is_dataclass(message):
        fields = dataclasses.fields(message)
        return sum(n_bytes(getattr(message, field.name)) for field in fields)
    if isinstance(message, tuple):
        return sum(n_bytes(item) for item in message)
    return 8 if isinstance(message, int | float) else 0


def arrays(task):
    """Bytes of a task without its scalars, which Dask packs with the message."""
    ahead = task.ahead is not None and task.ahead.features is not None
    return n_bytes(task) - 16 - sum(4 * 8 + 8 for _ in task.visits) - 16 * ahead


@pytest.fixture
def heard(monkeypatch):
    """Bytes of every task, answer and hand-over of the fits of a test."""
    heard = {"down": [], "up": [], "hand_over": []}
    send, end = Cluster.send, Cluster.end

    def sending(self, seat, task):
        heard["down"].append(arrays(task))
        return send(self, seat, task)

    def ending(self, seat, future):
        result = end(self, seat, future)
        if isinstance(result, Answer):
            heard["up"].append(n_bytes(result))
        elif isinstance(result, np.ndarray):
            heard["hand_over"].append(result.nbytes)
        return result

    monkeypatch.setattr(Cluster, "send", sending)
    monkeypatch.setattr(Cluster, "end", ending)
    return heard


@pytest.mark.parametrize(
    "parameters",
    [
        {"reduction": 4},
        {"reduction": 4, "local_steps": 2},
        {"reduction": 1},
        {"reduction": 4, "aggregation": "masked"},
        {"reduction": 4, "dict_update": "all"},
        {"reduction": 4, "code_estimator": "gram"},
    ],
    ids=str,
)
def test_bytes_are_those_of_messages(client, heard, parameters):
    X = np.random.default_rng(0).standard_normal((N, P), dtype=np.float32)
    model = SOMF(K, alpha=0.1, batch_size=BATCH, n_epochs=2, random_state=0)
    model.set_params(n_threads=1, max_staleness=0, **parameters)
    model.fit(X, client=client)
    sizes = Sizes(N, P, K, BATCH, n_workers=2, **parameters)
    told = exchange_bytes(sizes)
    n_exchanges = 2 * sizes.exchanges_per_epoch
    assert len(heard["up"]) == len(heard["down"]) == 2 * n_exchanges
    assert set(heard["up"]) == {told.up}
    assert set(heard["down"][2:]) == {told.down}  # the first has no news
    n_hand_overs = math.ceil(told.hand_overs * n_exchanges)  # and one at the end
    assert len(heard["hand_over"]) == 2 * n_hand_overs
    assert set(heard["hand_over"]) <= {told.hand_over}
    assert bool(heard["hand_over"]) == bool(told.hand_overs)


@pytest.mark.parametrize("chunk", [20, P])
def test_bytes_where_samples_are_read(client, heard, chunk, tmp_path):
    """Small chunks of features are read if they are observed, larger ones always."""
    zarr = pytest.importorskip("zarr")
    path = tmp_path / "X.zarr"
    chunks = (BATCH // 2, chunk)
    X = zarr.open(path, mode="w", shape=(N, P), chunks=chunks, dtype="f4")
    X[:] = np.random.default_rng(0).standard_normal((N, P))
    model = SOMF(K, alpha=0.1, batch_size=BATCH, n_epochs=1, random_state=0)
    parameters = {"reduction": 12, "aggregation": "masked", "mask_block": 20}
    model.set_params(n_threads=1, max_staleness=0, **parameters)
    model.fit(path, client=client)
    told = exchange_bytes(
        Sizes(
            *(N, P, K, BATCH, 12),
            n_workers=2,
            aggregation="masked",
            reads=True,
            reads_observed=chunk == 20,
        )
    )
    assert set(heard["down"][2:-2]) == {told.down}  # the last has nothing ahead


def test_bytes_fall_with_the_reduction():
    one, twelve = (
        exchange_bytes(Sizes(10**6, 200_000, 70, 1024, r, n_workers=4)).total
        for r in (1, 12)
    )
    assert one / twelve > 8


def test_flops_are_shared_but_for_the_gram_matrix():
    sizes = Sizes(10_000, 6000, 10, 500, reduction=6)
    one = exchange_flops(sizes)
    assert one.worker == 2 * 10 * 500 * (1000 + 6000) + 2 * 1000 * 10 * 10
    assert one.client == 2 * 1000 * 10 * 10 + 1000 * 10
    five = exchange_flops(dataclasses.replace(sizes, n_workers=5, local_steps=3))
    assert five.worker == 3 * (2 * 10 * 100 * 7000 + 2 * 1000 * 100)
    exact = exchange_flops(dataclasses.replace(sizes, code_estimator="exact"))
    assert exact.worker == 2 * 10 * 500 * 12_000


def test_prediction_adds_up():
    sizes = Sizes(10**6, 60_000, 10, 1000, reduction=6, n_workers=10, local_steps=2)
    sent = exchange_bytes(sizes)
    network = Network(bandwidth=1e8, latency=0.01, message=0.001)
    compute = Compute(sample=1e-3, update=0.5, batch=0.2, merge=0.02)
    told = predict(sizes, compute, network)
    assert told.coding == pytest.approx(0.2 + 100 * 1e-3)
    assert told.update == pytest.approx((0.5 + 10 * 0.02) / 2)
    assert told.transfer == pytest.approx(10 * sent.total / 1e8 / 2)
    trips, messages = 2 + 10 * sent.hand_overs, 2 * 10 * (1 + sent.hand_overs)
    assert told.latency == pytest.approx((trips * 0.01 + messages * 0.001) / 2)
    assert told.waiting == 0
    assert told.alone == pytest.approx(0.2 + 1000 * 1e-3 + 0.5 / 2)
    assert told.efficiency == told.alone / told.seconds / 10


def test_what_is_left_for_later_is_waited_for_only_if_it_is_long():
    sizes = Sizes(10**5, 1000, 10, 100, n_workers=2)
    network = Network(bandwidth=1e12, latency=0, message=0)
    short, long = (
        predict(sizes, Compute(1e-3, 0.1, rest=rest), network) for rest in (1e-3, 0.01)
    )
    assert short.waiting == 0
    assert long.waiting == pytest.approx(50 * 0.01 - 0.1, rel=1e-3)
    assert long.alone == pytest.approx(100 * 0.011 + 0.1)


def test_ideal_network_and_client_lose_nothing():
    ideal = Network(bandwidth=float("inf"), latency=0, message=0)
    sizes = Sizes(10**6, 1000, 10, 1000, n_workers=8)
    assert predict(sizes, Compute(1e-3, 0), ideal).efficiency == pytest.approx(1)
