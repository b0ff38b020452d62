"""Workers that die, lag, come late or cannot read: the run goes on, or says why not."""

import logging
import re
import subprocess
import sys

import dask.array as da
import numpy as np
import pytest
from dask_workers import (
    SETTINGS,
    Logged,
    Slow,
    assert_same_bits,
    await_workers,
    kill,
    samples,
    started,
    until,
)

import somf.distributed.crew as crew
from somf import SOMF
from somf.distributed.cluster import Cluster
from somf.distributed.crew import Crew
from somf.distributed.ledger import Coordinator, Ledger
from somf.distributed.run import DistributedRun
from somf.progress import observed_by

ROWS = 240


@pytest.fixture(scope="module")
def X():
    return samples(ROWS, 90)


@pytest.fixture(scope="module")
def mortals():
    with started(2) as client:
        yield client


@pytest.fixture
def mortal(mortals):
    """Workers that a test may kill: they are back before the next one."""
    await_workers(mortals, 2)
    return mortals


def at_step(number, do):
    """Do something in the middle of a fit."""

    def observer(model, report):
        if report.step == number:
            do()

    return observed_by(observer)


def noted(monkeypatch, kind, name):
    """Note who calls a method, with which arguments and results."""
    calls, method = [], getattr(kind, name)

    def observed(self, *args):
        result = method(self, *args)
        calls.append((self, args, result))
        return result

    monkeypatch.setattr(kind, name, observed)
    return calls


def taken_over(caplog):
    pattern = (
        r"Worker (\S+) was lost .*; its rows (\d+) to (\d+) are taken over by (\S+)\."
    )
    return [match.groups() for match in re.finditer(pattern, caplog.text)]


LOSSES = {
    "observed": {"dict_update": "observed"},
    "masked": {"aggregation": "masked"},
    "gram": {"code_estimator": "gram"},
    "head start": {"reduction": "auto"},
}


@pytest.mark.parametrize("name", ["observed", "gram"])
def test_a_worker_that_dies_is_replaced(mortal, X, name, caplog, monkeypatch):
    """Its nanny starts another one, which gets its share back."""
    settings = SETTINGS | LOSSES[name] | {"n_epochs": 6}
    X = da.from_array(X, chunks=(60, 90))
    whole = SOMF(**settings).fit(X, client=mortal)
    seated = noted(monkeypatch, Crew, "take_seats")
    killed = []
    with (
        caplog.at_level(logging.WARNING, "somf"),
        at_step(19, lambda: killed.append(kill(mortal))),
        at_step(48, lambda: until(lambda: len(mortal.nthreads()) == 2)),
    ):
        model = SOMF(**settings).fit(X, client=mortal)
    lost, first, last, successor = taken_over(caplog)[0]
    assert lost == killed[0] != successor
    assert (first, last) in (("0", "119"), ("120", "239"))
    assert ("begins anew" in caplog.text) == (name == "gram")
    assert model.n_steps_ == whole.n_steps_ == 72
    if name != "gram":
        assert model.objective_ == pytest.approx(whole.objective_, rel=0.05)
    assert len(seated) > 1  # shared out again
    assert len({seat.setup.first_row for seat in seated[-1][0].seats}) == 2


def test_one_worker_is_left(X, caplog):
    settings = SETTINGS | {"dict_update": "observed", "n_epochs": 6}
    X = da.from_array(X, chunks=(60, 90))
    with started(2, restart=False) as client:
        whole = SOMF(**settings).fit(X, client=client)
        with (
            caplog.at_level(logging.WARNING, "somf"),
            at_step(20, lambda: kill(client)),
        ):
            model = SOMF(**settings).fit(X, client=client)
        until(lambda: len(client.nthreads()) == 1)
    assert len(taken_over(caplog)) == 1
    assert model.objective_ == pytest.approx(whole.objective_, rel=0.05)


def blocks(X, size):
    return da.from_array(X, chunks=(size, 90))


def files(X, size):
    """Rows that workers read, batch by batch."""
    return [Logged(X[row : row + size]) for row in range(0, len(X), size)]


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("kind", [blocks, files])
def test_statistics_survive_a_loss(mortal, X, n_steps, kind, monkeypatch):
    """With atoms that stay as they are, what is made again is what was lost."""
    monkeypatch.setattr(DistributedRun, "_must_settle", lambda self: False)
    monkeypatch.setattr(Coordinator, "minimize", lambda self: None)
    settings = SETTINGS | {"dict_update": "observed", "local_steps": n_steps}
    X = kind(X, 60)
    whole = SOMF(**settings).fit(X, client=mortal)
    with at_step(18, lambda: kill(mortal)):
        model = SOMF(**settings).fit(X, client=mortal)
    np.testing.assert_allclose(model.state_.B, whole.state_.B, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.state_.C, whole.state_.C, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("step", [2, 13])
def test_statistics_survive_a_loss_in_a_head_start(
    mortal, head_start, X, step, monkeypatch
):
    """It ends after 8 iterations: workers have kept nothing until then."""
    monkeypatch.setattr(Coordinator, "minimize", lambda self: None)
    settings = SETTINGS | head_start
    X = blocks(X, 60)
    whole = SOMF(**settings).fit(X, client=mortal)
    calls = noted(monkeypatch, Cluster, "call")
    with at_step(step, lambda: kill(mortal)):
        model = SOMF(**settings).fit(X, client=mortal)
    np.testing.assert_allclose(model.state_.B, whole.state_.B, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.state_.C, whole.state_.C, rtol=1e-9, atol=1e-12)
    again = [len(args[2]) for _, args, _ in calls if args[1] == "catch_up"]
    assert sum(again) == max(0, step - 8)


def note_late(monkeypatch):
    """Note in which exchange answers come that are late."""
    late, absorb = [], Ledger.absorb_late

    def note(self, seat, answer):
        late.append((self.number, answer))
        absorb(self, seat, answer)

    monkeypatch.setattr(Ledger, "absorb_late", note)
    return late


@pytest.mark.parametrize("staleness", [3, 0])
@pytest.mark.parametrize("name", ["observed", "masked", "head start"])
def test_a_slow_worker(two, head_start, X, staleness, name, caplog, monkeypatch):
    monkeypatch.setattr(crew, "SLOW_SECONDS", 0.3)
    settings = SETTINGS | LOSSES[name] | {"max_staleness": staleness, "n_epochs": 4}
    late = note_late(monkeypatch)
    halves = [Slow(X[:120], 0), Slow(X[120:], 0)]
    fast = SOMF(**settings | {"max_staleness": 0}).fit(halves, client=two)
    halves[1] = Slow(X[120:], 1.0, reads=(5, 20))
    with caplog.at_level(logging.WARNING, "somf"):
        model = SOMF(**settings).fit(halves, client=two)
    assert model.n_steps_ == fast.n_steps_
    if staleness == 0:
        assert late == []
        assert_same_bits(model, fast)
        return
    assert "is slow" in caplog.text
    behind = [number - answer.number for number, answer in late]
    assert len(late) >= 2
    assert 1 <= min(behind) <= max(behind) <= staleness
    assert model.objective_ == pytest.approx(fast.objective_, rel=0.1)


def test_late_answers_keep_the_mass(two, X, monkeypatch):
    """With the same codes for all samples, C is theirs whoever was late."""
    monkeypatch.setattr(crew, "SLOW_SECONDS", 0.3)
    late = noted(monkeypatch, Ledger, "absorb_late")
    same = np.repeat(X[:1], ROWS, axis=0)
    halves = [Slow(same[:120], 0), Slow(same[120:], 1.0, reads=(4,))]
    monkeypatch.setattr(Coordinator, "minimize", lambda self: None)
    settings = SETTINGS | {"reduction": 1, "n_epochs": 1, "dict_init": X[:6]}
    for more in ({"dict_update": "observed"}, {"aggregation": "masked"}):
        late.clear()
        slow = SOMF(**settings | more).fit(halves, client=two)
        assert len(late) > 0
        here = SOMF(**settings | more | {"n_epochs": 1}).fit(same[:20])
        np.testing.assert_allclose(slow.state_.C, here.state_.C, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(slow.state_.B, here.state_.B, rtol=1e-6, atol=1e-9)


def test_an_answer_that_outlasts_a_head_start(two, head_start, monkeypatch):
    """Of the same code for all samples, whatever is observed, no part gets lost."""
    monkeypatch.setattr(crew, "SLOW_SECONDS", 0.3)
    monkeypatch.setattr(Coordinator, "minimize", lambda self: None)
    late = note_late(monkeypatch)
    same = np.ones((ROWS, 90))
    halves = [Slow(same[:120], 0), Slow(same[120:], 1.0, reads=(8, 9))]
    settings = SETTINGS | head_start | {"n_epochs": 2, "n_components": 1}
    settings["dict_init"] = same[:1]
    model = SOMF(**settings).fit(halves, client=two)
    assert any(answer.number <= 8 < number for number, answer in late)
    assert model.n_steps_ == 24
    here = SOMF(**settings | {"n_epochs": 1}).fit(same[:20])
    np.testing.assert_allclose(model.state_.C, here.state_.C, rtol=1e-6)
    np.testing.assert_allclose(model.state_.B, here.state_.B, rtol=1e-6)


@pytest.mark.parametrize(
    ("chunks", "batch_size"),
    [((0, 3, 0, 110, 1, 126), 20), ((240,), 20), ((239, 1), 5), ((1, 239), 40)],
)
def test_uneven_and_empty_partitions(two, X, chunks, batch_size):
    settings = SETTINGS | {"batch_size": batch_size, "dict_update": "observed"}
    model = SOMF(**settings).fit(da.from_array(X, chunks=(chunks, 90)), client=two)
    here = SOMF(**settings).fit(X)
    assert model.n_steps_ == here.n_steps_
    assert model.objective_ == pytest.approx(here.objective_, rel=0.1)


@pytest.mark.parametrize("kind", [blocks, files])
def test_workers_that_join_later(X, kind, monkeypatch):
    seated = noted(monkeypatch, Crew, "take_seats")
    told = []  # not caplog: Dask changes levels when it starts a worker
    logger = "somf.distributed.crew.logger.info"
    monkeypatch.setattr(logger, lambda text, *words: told.append(text % words))
    X = kind(X, 40)
    with started(1) as client:

        def more():
            client.cluster.scale(2)
            client.wait_for_workers(2, timeout=60)

        with at_step(5, more):
            model = SOMF(**SETTINGS).fit(X, client=client)
    assert [len(self.seats) for self, _, _ in seated] == [2, 2]  # the same run
    assert "1 of 2 workers have samples, and 2 could: they are shared out anew." in told
    assert model.n_steps_ == 36


# -- errors ----------------------------------------------------------------------------


def test_bad_samples_are_named_by_their_rows(two, X, tmp_path):
    bad = X.copy()
    bad[177, 3] = np.nan
    np.save(tmp_path / "X.npy", bad)
    for data in (da.from_array(bad, chunks=(60, 90)), str(tmp_path / "X.npy")):
        with pytest.raises(
            ValueError, match=r"Worker tcp.* rows 120 to 239 of X: Samples \[177\] "
        ):
            SOMF(**SETTINGS, dict_init="random").fit(data, client=two)


def test_a_file_that_one_worker_cannot_open(two, X, tmp_path):
    def block(block_info=None):
        first = block_info[None]["array-location"][0][0]
        if first >= 120:
            raise FileNotFoundError("There is no file there.npy")
        return np.ones((60, 90))

    data = da.map_blocks(block, chunks=((60,) * 4, (90,)), dtype=float)
    model = SOMF(**SETTINGS, dict_init="random")
    with pytest.raises(
        FileNotFoundError, match=r"Worker tcp.* rows 120 to 239 of X.*no file there"
    ):
        model.fit(data, client=two)
    assert not hasattr(model, "state_")


@pytest.mark.parametrize("suffix", ["npy", "h5", "zarr"])
def test_files_that_only_the_client_finds(two, X, suffix, tmp_path, monkeypatch):
    path, start = tmp_path / f"X.{suffix}", Cluster.start
    if suffix == "npy":
        np.save(path, X)
    elif suffix == "h5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["X"] = X
    else:
        pytest.importorskip("zarr").save(path, X)

    def starting(self, *arguments):
        if path.exists():
            path.rename(tmp_path / "elsewhere")
        return start(self, *arguments)

    monkeypatch.setattr(Cluster, "start", starting)
    with pytest.raises(
        FileNotFoundError, match=r"Worker tcp.* rows 0 to \d+ of X: .*must find files"
    ):
        SOMF(**SETTINGS, dict_init=X[:6]).fit(path, client=two)


def test_workers_that_all_die_of_their_rows(mortal, monkeypatch):
    monkeypatch.setattr(crew, "MOST_LOSSES", 1)

    def block(block_info=None):
        import os

        if block_info[None]["array-location"][0][0] >= 120:
            os._exit(1)
        return np.ones((60, 90))

    data = da.map_blocks(block, chunks=((60,) * 4, (90,)), dtype=float)
    with pytest.raises(RuntimeError, match=r"2 workers were lost .* 120 to 239"):
        SOMF(**SETTINGS | {"dict_init": "random"}).fit(data, client=mortal)


@pytest.mark.parametrize("client", [3, "tcp://127.0.0.1:8786", True])
def test_a_client_that_is_none(X, client):
    with pytest.raises(TypeError, match=r"client=.* must be a dask.distributed.Client"):
        SOMF(**SETTINGS).fit(X, client=client)


def test_the_extra_is_named():
    code = (
        "import sys; sys.modules['distributed'] = None; import numpy as np, somf\n"
        "somf.SOMF(2).fit(np.eye(4))\n"
        "somf.SOMF(2).fit(np.eye(4), client='local')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert "pip install 'somf[dask]'" in done.stderr
