"""Memory maps: in place, checked once, and not all of them resident."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from somf.sources import mapped
from somf.sources.base import Requirements
from somf.sources.mapped import MappedSource
from somf.testing import SourceContract


def save(path, X):
    np.save(path, X)
    return np.load(path, mmap_mode="r")


class TestMappedSource(SourceContract):
    def make(self, X, tmp_path):
        return MappedSource(save(tmp_path / "X.npy", X))


class TestFortranMap(SourceContract):
    def make(self, X, tmp_path):
        return MappedSource(save(tmp_path / "X.npy", np.asfortranarray(X)))


class TestRowsOfAMap(SourceContract):
    def make(self, X, tmp_path):
        larger = np.concatenate([X[:2] - 1, X, X[:3] + 1])
        return MappedSource(save(tmp_path / "X.npy", larger)[2 : 2 + len(X)])


class TestWritableMap(SourceContract):
    def make(self, X, tmp_path):
        np.save(tmp_path / "X.npy", X)
        return MappedSource(np.load(tmp_path / "X.npy", mmap_mode="r+"))


@pytest.fixture
def X():
    return np.random.default_rng(0).standard_normal((40, 3000)).astype(np.float32)


def test_batches_are_views_of_the_map(X, tmp_path):
    source = MappedSource(save(tmp_path / "X.npy", X))
    rows = np.array([3, 4, 39])
    batch = source.batch(rows, Requirements())
    assert np.shares_memory(batch.X, source.X)
    assert type(batch.X) is np.ndarray  # subclasses are slow, and Numba knows none
    np.testing.assert_array_equal(batch.X[batch.rows], X[rows])
    np.testing.assert_array_equal(batch.index, rows)


def test_integers_are_read_as_floats(X, tmp_path):
    source = MappedSource(save(tmp_path / "X.npy", (100 * X).astype(np.int16)))
    assert source.dtype == np.float64
    batch = source.batch(np.array([1, 2]), Requirements())
    np.testing.assert_array_equal(batch.X, (100 * X).astype(np.int16)[1:3])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bad_samples_are_named(X, tmp_path, bad, dtype):
    X[7, 5] = bad
    source = MappedSource(save(tmp_path / "X.npy", X.astype(dtype)))
    with pytest.raises(ValueError, match=r"Samples \[7\] .*NaN or infinity"):
        source.batch(np.array([6, 7]), Requirements())
    source.batch(np.array([6, 8]), Requirements())


def test_negative_samples_are_named(X, tmp_path):
    X = np.abs(X)
    X[7, 5] = -1
    source = MappedSource(save(tmp_path / "X.npy", X))
    with pytest.raises(ValueError, match=r"Samples \[7\] .*negative"):
        source.batch(np.arange(10), Requirements(nonnegative=True))
    MappedSource(source.X).batch(np.arange(10), Requirements())


@pytest.mark.parametrize("in_place", [True, False])
def test_known_samples_are_not_checked_again(X, tmp_path, monkeypatch, in_place):
    if not in_place:
        monkeypatch.setattr(mapped, "available_memory", lambda: 0)
    X[7, 5] = np.nan
    source = MappedSource(save(tmp_path / "X.npy", X))
    assert source.in_place == in_place
    rows = np.arange(5, 15)
    batch = source.batch(rows, Requirements(known=True))
    np.testing.assert_array_equal(batch.X[batch.rows], X[rows])


@pytest.fixture
def little_memory(monkeypatch):
    """No map fits in memory."""
    monkeypatch.setattr(mapped, "available_memory", lambda: 0)


@pytest.mark.usefixtures("little_memory")
class TestLargeMap(SourceContract):
    def make(self, X, tmp_path):
        source = MappedSource(save(tmp_path / "X.npy", X))
        assert not source.in_place
        return source


@pytest.mark.usefixtures("little_memory")
class TestRowsOfALargeMap(SourceContract):
    def make(self, X, tmp_path):
        larger = np.concatenate([X[:2] - 1, X, X[:3] + 1])
        return MappedSource(save(tmp_path / "X.npy", larger)[2 : 2 + len(X)])


@pytest.mark.usefixtures("little_memory")
class TestLargeFortranMap(SourceContract):
    def make(self, X, tmp_path):
        return MappedSource(save(tmp_path / "X.npy", np.asfortranarray(X)))


def resident(X):
    """Return how many bytes of the pages under a map are resident, on Linux."""
    address = X.ctypes.data
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        low, _, rest = line.partition("-")
        high = rest.split(" ")[0]
        if "-" in line.split(" ")[0] and int(low, 16) <= address < int(high, 16):
            return 1024 * next(int(x.split()[1]) for x in lines if x.startswith("Rss"))
    raise AssertionError("no such map")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is resident")
@pytest.mark.parametrize("large", [False, True])
def test_maps_larger_than_memory_do_not_become_resident(
    X, tmp_path, monkeypatch, large
):
    if large:
        monkeypatch.setattr(mapped, "available_memory", lambda: 2 * X.nbytes)
    source = MappedSource(save(tmp_path / "X.npy", X))
    assert source.in_place != large
    for i in range(0, 40, 10):
        rows = np.arange(i, i + 10)
        batch = source.batch(rows, Requirements())
        np.testing.assert_array_equal(batch.X[batch.rows], X[rows])
    if large:
        assert resident(source.X) < X.nbytes // 4
    else:
        assert resident(source.X) >= X.nbytes


@pytest.mark.usefixtures("little_memory")
def test_rows_of_a_large_map_are_checked(X, tmp_path):
    X[7, 5] = np.nan
    source = MappedSource(save(tmp_path / "X.npy", X))
    with pytest.raises(ValueError, match=r"Samples \[7\] .*NaN"):
        source.batch(np.array([6, 7]), Requirements())
    source.batch(np.array([6, 8]), Requirements())


@pytest.mark.usefixtures("little_memory")
def test_private_changes_are_seen(X, tmp_path):
    """Pages of a copy-on-write map are in no file."""
    np.save(tmp_path / "X.npy", X)
    changed = np.load(tmp_path / "X.npy", mmap_mode="c")
    changed[:] = 1
    batch = MappedSource(changed).batch(np.array([3]), Requirements())
    assert np.all(batch.X == 1)


@pytest.mark.usefixtures("little_memory")
def test_a_file_that_was_cut_off_is_named(X, tmp_path):
    source = MappedSource(save(tmp_path / "X.npy", X))
    with open(tmp_path / "X.npy", "r+b") as file:
        file.truncate(128 + X[:10].nbytes + 5)
    np.testing.assert_array_equal(source.read(np.arange(10)), X[:10])
    with pytest.raises(OSError, match=r"X\.npy ends before row 12"):
        source.read(np.array([3, 10, 11]))


def test_travels_as_a_place_in_a_file(X, tmp_path):
    whole = save(tmp_path / "X.npy", X)
    for part in (whole, whole[5:20]):
        data = pickle.dumps(MappedSource(part))
        assert len(data) < 1000
        again = pickle.loads(data)
        assert isinstance(again.X, np.memmap)
        np.testing.assert_array_equal(again.X, part)


@pytest.mark.parametrize("shape", [(6,), (2, 3, 4)])
def test_wrong_rank(tmp_path, shape):
    with pytest.raises(ValueError, match="two dimensions"):
        MappedSource(save(tmp_path / "X.npy", np.zeros(shape)))


def test_not_numbers(tmp_path):
    with pytest.raises(ValueError, match=r"<U1.*numbers"):
        MappedSource(save(tmp_path / "X.npy", np.array([["a", "b"]])))


def test_open_names_a_broken_file(tmp_path):
    path = tmp_path / "X.npy"
    path.write_bytes(b"no array")
    with pytest.raises(ValueError, match=r"X\.npy is not a readable \.npy file"):
        MappedSource.open(path)
    np.savez(tmp_path / "X.npz", a=1)
    with pytest.raises(ValueError, match="does not hold one array"):
        MappedSource.open(tmp_path / "X.npz")
