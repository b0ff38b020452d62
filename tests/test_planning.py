"""A plan tells what a fit will need."""

import json
import subprocess
import sys

import numpy as np
import pytest

from somf import SOMF, plan
from somf.planning import show_bytes, show_time
from somf.sources.base import Source


@pytest.fixture
def X():
    return np.random.default_rng(0).standard_normal((500, 3000), dtype=np.float32)


def test_what_a_plan_tells(X):
    told = plan(X, SOMF(10, alpha=1.0, batch_size=50, reduction=3), seconds=0.2)
    assert (told.n_samples, told.n_features, told.n_components) == (500, 3000, 10)
    assert told.iterations_per_epoch == 10
    assert told.data_bytes == X.nbytes
    assert told.read_bytes_per_epoch == 0  # nothing to read: it is in memory
    assert told.averages_bytes == told.reading_bytes == 0
    assert told.seconds_per_epoch > 0
    k, b, p, q = 10, 50, 3000, 1000
    products = 2 * q * k * b + 2 * q * k * k + 2 * p * k * b + 2 * p * k * k
    assert told.flops_per_iteration == products
    assert json.loads(json.dumps(told.as_dict()))["settings"]["reduction"] == 3
    for word in ("500 samples", "10 iterations", "memory", "reduction=3"):
        assert word in str(told)


def test_settings_are_those_of_the_fit(X):
    model = SOMF(10, alpha=1.0, random_state=0)
    told = plan(X, model, seconds=0)
    assert not hasattr(model, "state_")
    assert told.seconds_per_epoch is None
    model.set_params(n_epochs=1).fit(X)
    told = plan(X, model, seconds=0)
    assert told.settings["reduction"] == model.reduction_
    assert told.iterations_per_epoch == model.n_steps_
    assert set(told.reasons) == set(told.settings)


def test_the_model_is_left_alone(X, tmp_path):
    model = SOMF(10, checkpoint=tmp_path / "run", progress=True)
    before = model.get_params()
    plan(X, model, seconds=0.01)
    assert model.get_params() == before
    assert vars(model) == vars(SOMF(10, checkpoint=tmp_path / "run", progress=True))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("parameters", "coded", "added", "updated"),
    [
        ({}, 1000, 3000, 3000),
        ({"dict_update": "observed"}, 1000, 3000, 1000),
        ({"aggregation": "masked"}, 1000, 1000, 1000),
        ({"code_estimator": "exact"}, 3000, 3000, 1000),
        ({"reduction": 1}, 3000, 3000, 3000),
    ],
    ids=str,
)
def test_flops_of_the_products(X, parameters, coded, added, updated):
    settings = {"batch_size": 50, "reduction": 3} | parameters
    told = plan(X, SOMF(10, **settings), seconds=0)
    n_observed = 3000 / settings["reduction"]
    products = 2 * 10 * 50 * (coded + added) + 2 * 100 * (n_observed + updated)
    assert told.flops_per_iteration == products


def test_memory_of_masked_aggregation_without_a_mask(X):
    one, two = (
        plan(X, SOMF(10, reduction=1, aggregation=name), seconds=0).memory_bytes
        for name in ("full", "masked")
    )
    assert two - one == 4 * 2 * 10 * 3000 + 8 * 3000


def test_what_the_user_set_is_said_so(X):
    told = plan(X, SOMF(10, aggregation="masked", mask_block=7), seconds=0)
    assert told.reasons["aggregation"] == told.reasons["mask_block"] == "as you set it"
    assert told.reasons["reduction"] != "as you set it"


@pytest.mark.parametrize(
    ("estimator", "numbers"), [("averaged", 10 * 10 + 2 * 10), ("gram", 2 * 10)]
)
def test_memory_of_averages(X, estimator, numbers):
    model = SOMF(10, code_estimator=estimator)
    told = plan(X, model, seconds=0)
    assert told.averages_bytes == 4 * 500 * numbers
    assert told.memory_bytes > told.averages_bytes
    assert "averages of samples" in str(told)


class Huge(Source):
    """More than any memory; never read."""

    def __init__(self, feature_chunk):
        self.shape, self.dtype = (10**8, 200_000), np.dtype(np.float32)
        self.feature_chunk = feature_chunk
        self.row_chunks = np.arange(0, 10**8 + 1, 50_000)


def test_advice_for_data_larger_than_memory(monkeypatch):
    monkeypatch.setattr("somf.planning.available_memory", lambda: 10**11)
    chunked, rows = Huge(1024), Huge(None)
    told = plan(chunked, SOMF(50), seconds=0)
    assert any('aggregation="masked" reads only' in line for line in told.advice)
    assert told.read_bytes_per_epoch == told.data_bytes == 8 * 10**13
    longest = 50_000 * 200_000 * 4
    assert told.reading_bytes > 2 * longest  # chunks that are kept
    assert told.memory_bytes > told.reading_bytes
    told = plan(chunked, SOMF(50, aggregation="masked"), seconds=0)
    assert told.advice == []
    assert told.reading_bytes == 3 * told.settings["batch_size"] * 200_000 * 4 // 12
    assert told.settings["mask_block"] == 1024
    assert told.read_bytes_per_epoch == told.data_bytes // 12
    told = plan(rows, SOMF(50), seconds=0)
    assert any("somf convert" in line for line in told.advice)


def test_advice_if_memory_is_short(X, monkeypatch):
    monkeypatch.setattr("somf.planning.available_memory", lambda: 10**5)
    told = plan(X, SOMF(10), seconds=0)
    assert any("fewer components" in line for line in told.advice)


def test_what_the_fit_would_refuse_or_choose(X):
    with pytest.raises(ValueError, match="reduction=4000"):
        plan(X, SOMF(10, reduction=4000), seconds=0)
    assert plan(X, SOMF(dict_init=X[:7]), seconds=0).n_components == 7


def test_no_trial_where_memory_is_short(X, monkeypatch):
    monkeypatch.setattr("somf.planning.available_memory", lambda: 10**5)
    assert plan(X, SOMF(10), seconds=0.1).seconds_per_epoch is None


def test_chunks_longer_than_a_batch_are_counted():
    source = Huge(1024)
    settings = {"n_components": 50, "aggregation": "masked"}
    told = plan(source, SOMF(**settings, batch_size=10_000), seconds=0)
    assert told.read_bytes_per_epoch == 5 * told.data_bytes // 12
    told = plan(source, SOMF(**settings), seconds=0)
    assert told.settings["batch_size"] == 50_000


def test_missing_values_take_a_gram_matrix_each(X):
    one, two = (
        plan(X, SOMF(10, batch_size=50, missing=how), seconds=0).memory_bytes
        for how in ("error", "mask")
    )
    assert two - one == 4 * 50 * 10 * 10


def test_bad_parameters_and_data_are_refused(X):
    with pytest.raises(ValueError, match="alpha=-1"):
        plan(X, SOMF(10, alpha=-1))
    with pytest.raises(ValueError, match="NaN"):
        plan(np.full((5, 5), np.nan), SOMF(2))


PEAK = """
import json, sys
import numpy as np
import somf
path, kind, parameters = json.loads(sys.argv[1])
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM")) * 1024
X = np.load(path) if kind == "memory" else path
warm = np.random.default_rng(0).standard_normal((300, 2000), dtype=np.float32)
if kind != "memory":
    np.save(path + ".warm.npy", warm)
    warm = path + ".warm.npy"
somf.SOMF(**parameters).fit(warm)
model = somf.SOMF(**parameters)
told = somf.plan(X, model, seconds=0).memory_bytes
before = peak()
model.fit(X)
print(json.dumps([told, peak() - before]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak memory")
@pytest.mark.parametrize("kind", ["memory", "map", "hdf5"])
@pytest.mark.parametrize(
    "parameters", [{}, {"reduction": 4, "aggregation": "masked"}], ids=str
)
def test_memory_is_within_a_fifth(tmp_path, kind, parameters):
    # Large beside what a process takes anyway, and few samples in a batch: how many of
    # them wait at a time depends on who is faster.
    X = np.random.default_rng(0).standard_normal((600, 60_000), dtype=np.float32)
    path = tmp_path / "X.npy"
    if kind == "hdf5":
        h5py = pytest.importorskip("h5py", reason="the extra `chunked`")
        path = tmp_path / "X.h5"
        with h5py.File(path, "w") as file:
            file["X"] = X
    else:
        np.save(path, X)
    settings = {"n_components": 150, "alpha": 10.0, "batch_size": 50, "n_epochs": 1}
    settings |= {"n_threads": 2, "random_state": 0} | parameters
    command = [sys.executable, "-c", PEAK, json.dumps([str(path), kind, settings])]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    told, used = json.loads(result.stdout)
    assert 0.8 * told <= used <= 1.2 * told


@pytest.mark.parametrize(
    ("size", "words"), [(12, "12 B"), (1500, "1.5 kB"), (2e9, "2 GB"), (8e13, "80 TB")]
)
def test_sizes_in_words(size, words):
    assert show_bytes(size) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.5, "0.5 s"), (90, "90 s"), (600, "10 min"), (9000, "2.5 h")],
)
def test_times_in_words(seconds, words):
    assert show_time(seconds) == words
