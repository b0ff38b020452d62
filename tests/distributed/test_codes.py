"""Codes and scores by the workers of a cluster: real processes, on loopback.

They are compared up to rounding with those of this process, whose kernels may have been
compiled by it, and not read from Numba's cache: their last digits may differ then.
"""

import os
import signal
from contextlib import contextmanager

import numpy as np
import pytest

from somf import SOMF
from somf.distributed.codes import cuts
from somf.solver.evaluation import Evaluation
from somf.sources import DaskSource, as_source
from somf.sources.base import ArraySource

cloudpickle = pytest.importorskip("cloudpickle", reason="the extra `dask`")
da = pytest.importorskip("dask.array", reason="the extra `dask`")
distributed = pytest.importorskip("distributed", reason="the extra `dask`")
h5py = pytest.importorskip("h5py", reason="the extra `chunked`")
zarr = pytest.importorskip("zarr", reason="the extra `chunked`")

N, P, K = 700, 60, 6
THREADS = 2  # of a worker, so that tasks meet on it


@pytest.fixture(scope="module")
def client():
    """A client that is not the active one."""
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=THREADS,
            processes=True,
            dashboard_address=":0",
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def active(client):
    """A client that is the active one during a test."""
    with distributed.Client(client.scheduler.address) as active:
        yield active


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((N, K)) * (rng.random((N, K)) < 0.4)
    return codes @ rng.standard_normal((K, P))


@pytest.fixture(scope="module")
def model(X):
    return learn(X)


def learn(X, **parameters):
    settings = {"alpha": 0.1, "n_epochs": 1, "n_threads": 1, "random_state": 0}
    return SOMF(K, **(settings | parameters)).fit(X, client=False)


def assert_same(actual, expected):
    assert isinstance(actual, da.Array)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    tolerance = 1e-10 if expected.dtype == np.float64 else 1e-5
    actual = actual.compute()
    assert actual.dtype == expected.dtype
    size = np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * size)


def sent_by_workers(client):
    """Bytes that workers have sent to one another and to the client."""
    sent = client.run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total)
    return sum(sent.values())


# -- codes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "chunks"),
    [
        pytest.param(np.float64, (512, P), id="like batches"),
        pytest.param(np.float32, (100, 25), id="of some features"),
        pytest.param(np.float64, ((0, 333, 0, 1, 366), P), id="uneven and empty"),
        pytest.param(np.int16, (300, P), id="integers"),
    ],
)
def test_codes_are_a_dask_array_in_the_blocks_of_the_samples(X, active, dtype, chunks):
    X = (X * 10).astype(dtype)
    model = learn(X)
    blocks = da.from_array(X, chunks)
    codes = model.transform(blocks)
    assert codes.chunks == (blocks.chunks[0], (K,))
    assert_same(codes, model.transform(X))


def test_nothing_is_computed_before_it_is_asked_for(model, active):
    def fail(block):
        raise AssertionError("computed")

    X = da.ones((N, P), chunks=100).map_blocks(fail, dtype=float, meta=np.empty((0, 0)))
    codes = model.transform(X)
    with pytest.raises(AssertionError, match="computed"):
        codes.compute()


def test_codes_stream_to_zarr(model, X, active, tmp_path):
    model.transform(da.from_array(X, (100, P))).to_zarr(str(tmp_path / "codes.zarr"))
    codes = zarr.open(str(tmp_path / "codes.zarr"), mode="r")
    assert codes.chunks == (100, K)
    np.testing.assert_allclose(codes[:], model.transform(X), rtol=1e-10, atol=1e-10)


def test_no_sample_leaves_its_worker(client):
    n_samples, n_features = 2000, 1000
    model = SOMF(2, alpha=0.1, n_epochs=1, n_threads=1).fit(np.eye(20, n_features))
    X = da.ones((n_samples, n_features), chunks=(500, n_features))
    model.score(X[:2], client=client)  # and now all workers know the functions
    before = sent_by_workers(client)
    model.score(X, client=client)
    client.compute(model.transform(X, client=client)).result()
    codes = 2 * n_samples * 8
    dictionary = 2 * n_features * 8
    sent = sent_by_workers(client) - before
    # Twice the codes, since one worker puts them together; twice the dictionary, if one
    # worker passes it on to the other.
    assert codes <= sent <= 1.2 * (2 * codes + 2 * dictionary)
    assert sent < X.nbytes / 50


@pytest.fixture
def sent(active, monkeypatch):
    """What the client sends to workers, with options."""
    sent = []
    scatter = distributed.Client.scatter

    def watch(self, data, **options):
        sent.append((data, options))
        return scatter(self, data, **options)

    monkeypatch.setattr(distributed.Client, "scatter", watch)
    return sent


def test_the_dictionary_is_sent_once_for_all_blocks(X, sent):
    wide = np.tile(X, 20)
    model = learn(wide)
    codes = model.transform(da.zeros(wide.shape, chunks=(10, wide.shape[1])))
    ((evaluation, options),) = sent
    assert options["broadcast"]
    np.testing.assert_array_equal(evaluation.D, model.components_)
    assert codes.numblocks == (70, 1)
    graph = cloudpickle.dumps(codes.dask.to_dict())
    assert len(graph) < model.components_.nbytes


@pytest.mark.parametrize(("n_threads", "expected"), [(None, 1), (2, 2)])
def test_a_task_has_one_thread_or_those_of_the_model(X, sent, n_threads, expected):
    learn(X, n_threads=n_threads).transform(da.from_array(X, 100))
    ((evaluation, _),) = sent
    assert evaluation.team.n_threads == expected


def test_what_is_learned_later_changes_no_codes():
    """In one process the dictionary is not sent, and would be the same array."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 8))
    model = SOMF(3, alpha=0.1, n_epochs=1, random_state=0).fit(X)
    with (
        distributed.LocalCluster(1, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        expected = model.transform(X)
        codes = model.transform(da.from_array(X, 20), client=client)
        model.partial_fit(X)
        assert not np.allclose(model.transform(X), expected)
        np.testing.assert_allclose(client.compute(codes).result(), expected)


# -- where codes are computed --------------------------------------------------------


def test_without_a_client_codes_are_a_numpy_array(model, X, active):
    blocks = da.from_array(X, 100)
    codes = model.transform(blocks, client=False)
    assert isinstance(codes, np.ndarray)
    np.testing.assert_allclose(codes, model.transform(X), rtol=1e-10)
    assert isinstance(model.transform(X), np.ndarray)
    assert isinstance(model.transform(X.tolist()), np.ndarray)
    assert isinstance(model.transform(X, client=active), da.Array)


def test_local_workers_end_with_the_call_and_leave_an_array(
    model, X, client, monkeypatch
):
    @contextmanager
    def local_client(n_workers):
        yield client

    monkeypatch.setattr("somf.distributed.cluster.local_client", local_client)
    codes = model.transform(X, client="local")
    assert isinstance(codes, np.ndarray)
    np.testing.assert_allclose(codes, model.transform(X), rtol=1e-10, atol=1e-10)
    assert model.score(X, client="local") == pytest.approx(model.score(X), rel=1e-12)


def test_fit_transform_does_both_in_one_place(X, client):
    model = SOMF(K, alpha=0.1, n_epochs=1, n_threads=1, random_state=0)
    codes = model.fit_transform(da.from_array(X, 100), client=client)
    assert isinstance(codes, da.Array)
    expected = model.transform(X)
    codes = client.compute(codes).result()
    np.testing.assert_allclose(codes, expected, rtol=1e-10, atol=1e-10)


# -- streaming -----------------------------------------------------------------------


def test_codes_are_streamed_a_few_blocks_ahead(model, X, active):
    parts = model.iter_transform(da.from_array(X, (35, P)))
    first = next(parts)
    waiting = [key for key in active.futures if str(key).startswith("finalize")]
    assert 1 <= len(waiting) <= 2 * THREADS + 1  # of 20
    codes = [first, *parts]
    assert [len(part) for part in codes] == [35] * 20
    np.testing.assert_allclose(
        np.concatenate(codes), model.transform(X), rtol=1e-10, atol=1e-10
    )


# -- sources -------------------------------------------------------------------------


def files(X, folder):
    np.save(folder / "a.npy", X[:300])
    with h5py.File(folder / "b.h5", "w") as file:
        file.create_dataset("X", data=X[300:520], chunks=(50, 20))
    array = zarr.open(
        str(folder / "c.zarr"), mode="w", shape=X[520:].shape, chunks=(64, 10)
    )
    array[:] = X[520:]
    return [folder / name for name in ("a.npy", "b.h5", "c.zarr")]


def sources(X, folder):
    dask = DaskSource(da.from_array(X[:300], (64, 20)))
    return [dask, ArraySource(X[300:520]), as_source(files(X, folder)[-1])]


@pytest.mark.parametrize("make", [files, sources])
def test_lists_of_files_and_sources(model, X, active, tmp_path, make, monkeypatch):
    data = make(X, tmp_path)
    monkeypatch.setattr("somf.distributed.codes.CHUNK", 100)
    monkeypatch.setattr("somf.distributed.codes.TASK_BYTES", 1)
    assert_same(model.transform(data), model.transform(X))
    assert model.transform(data).numblocks[0] >= 5
    assert model.score(data) == pytest.approx(model.score(X), rel=1e-12)


def test_tasks_begin_at_chunks():
    source = ArraySource(np.broadcast_to(np.float32(1), (2000, 2**16)))
    assert cuts(source).tolist() == [0, 512, 1024, 1536, 2000]
    source.row_chunks = np.array([0, 500, 700, 900, 1800, 2000])
    assert cuts(source).tolist() == [0, 700, 1800, 2000]
    assert cuts(as_source(np.ones((2000, 2)))).tolist() == [0, 2000]


# -- scores and held-out samples -----------------------------------------------------


def test_score(model, X, active):
    score = model.score(da.from_array(X, ((0, 333, 0, 1, 366), 25)))
    assert isinstance(score, float)
    assert score == pytest.approx(model.score(X), rel=1e-12)


def test_held_out_samples_are_judged_by_the_workers(X, active, monkeypatch):
    settings = {"n_epochs": 2, "tol": 0, "n_threads": 1, "random_state": 0}
    model = SOMF(K, alpha=0.1, **settings).fit(
        da.from_array(X, 100), X_val=da.from_array(X[:90], 40)
    )
    assert model.objective_ == pytest.approx(-model.score(X[:90]), rel=1e-10)

    monkeypatch.setattr(Evaluation, "objective", None)  # of this process only
    model.fit(da.from_array(X, 100), X_val=da.from_array(X[:90], 40))
    bad = X[:90].copy()
    bad[50] = np.nan
    with pytest.raises(ValueError, match=r"^X_val cannot be used. .*Samples \[50\]"):
        model.fit(da.from_array(X, 100), X_val=da.from_array(bad, 40))


# -- bad samples, missing values, order of features ----------------------------------


def test_other_features_are_an_error_at_once(model, active):
    X = da.ones((N, P + 1), chunks=100)
    for use in (model.transform, model.score, lambda X: next(model.iter_transform(X))):
        with pytest.raises(ValueError, match="expecting 60 features"):
            use(X)


@pytest.mark.parametrize("make", [None, files, sources])
def test_errors_name_the_worker_and_the_rows(model, X, active, make, tmp_path):
    X = X.copy()
    X[[610, 615], 3] = np.nan
    data = da.from_array(X, (100, P)) if make is None else make(X, tmp_path)
    message = r"Worker tcp://\S+, rows \d+ to 6\d\d of X: Samples \[610, 615\].* NaN"
    with pytest.raises(ValueError, match=message):
        model.transform(data).compute()
    with pytest.raises(ValueError, match=message):
        model.score(data)


def test_files_that_workers_do_not_find(model, X, active, tmp_path):
    sources = [as_source(path) for path in files(X, tmp_path)]
    (tmp_path / "a.npy").unlink()
    message = r"Worker tcp://\S+, rows 0 to 699 of X: .*a.npy.* under the path"
    with pytest.raises(OSError, match=message):
        model.score(sources)


def test_negative_samples_are_refused_by_nmf(X, active):
    model = SOMF.nmf(K, n_epochs=1, n_threads=1, random_state=0).fit(abs(X))
    X = abs(X)
    assert_same(model.transform(da.from_array(X, 100)), model.transform(X))
    X[3, 5] = -1
    with pytest.raises(ValueError, match=r"rows 0 to 99 .*\[3\].* non-negative"):
        model.transform(da.from_array(X, 100)).compute()


def test_missing_values(X, active):
    X = X.copy()
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    model = learn(X, missing="mask")
    blocks = da.from_array(X, (100, 25))
    assert_same(model.transform(blocks), model.transform(X))
    filled = model.impute(blocks)
    assert filled.chunks == (blocks.chunks[0], (P,))
    assert_same(filled, model.impute(X))
    assert model.score(blocks) == pytest.approx(model.score(X), rel=1e-12)


def test_features_in_another_order(X, active, tmp_path):
    """The model has learned from shuffled features, and Dask has them as they were."""
    order = np.random.default_rng(0).permutation(P)
    group = zarr.open_group(str(tmp_path / "X.zarr"), mode="w")
    samples = group.create_array if hasattr(group, "create_array") else group.create
    samples("samples", shape=X.shape, dtype=X.dtype)[:] = X[:, order]
    samples("features", shape=order.shape, dtype=order.dtype)[:] = order
    model = learn(tmp_path / "X.zarr", missing="mask")
    assert model.state_.feature_order is not None
    X = X.copy()
    X[5, 7] = np.nan
    blocks = da.from_array(X, (100, 25))
    assert_same(model.transform(blocks), model.transform(X))
    assert_same(model.impute(blocks), model.impute(X))
    shuffled = model.transform([tmp_path / "X.zarr"] * 2)
    assert_same(shuffled[:N], model.transform(tmp_path / "X.zarr"))


# -- last, since the worker that follows starts cold ----------------------------------


def test_codes_survive_a_worker(model, X, active):
    codes = model.transform(da.from_array(X, (35, P)))
    places = {str(key): where for key, where in active.who_has().items()}
    (holders,) = (places[key] for key in places if key.startswith("Evaluation"))
    os.kill(active.run(os.getpid)[holders[0]], signal.SIGKILL)
    assert_same(codes, model.transform(X))
    active.wait_for_workers(2)
