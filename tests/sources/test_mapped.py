"""Memory maps: in place, checked once, and not all of them resident."""

import mmap
import pickle

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


def test_a_sample_is_checked_once(X, tmp_path, monkeypatch):
    source = MappedSource(save(tmp_path / "X.npy", X))
    checked = []
    monkeypatch.setattr(
        Requirements, "check", lambda self, X, rows: checked.extend(rows.tolist())
    )
    source.batch(np.arange(10), Requirements())
    source.batch(np.arange(5, 15), Requirements())
    assert checked == list(range(15))


class Advised:
    """Stands for a map and notes which parts are handed back."""

    def __init__(self):
        self.parts = []

    def madvise(self, advice, start, length):
        assert advice == mmap.MADV_DONTNEED
        assert start % mmap.PAGESIZE == 0
        self.parts.append((start, length))


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="Linux and alike")
def test_pages_of_old_batches_are_handed_back(X, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "KEEP", 5 * X[:10].nbytes)
    source = MappedSource(save(tmp_path / "X.npy", np.tile(X, (10, 1))))
    advised = source._pages._map = Advised()
    for i in range(12):
        rows = np.arange(10 * i, 10 * i + 10)
        batch = source.batch(rows, Requirements())
        np.testing.assert_array_equal(batch.X[rows], np.tile(X, (10, 1))[rows])
    assert len(advised.parts) == 7  # 12 batches, 5 may stay
    for i, (start, length) in enumerate(advised.parts):
        first = 128 + i * X[:10].nbytes  # 128: the header of the file
        assert start <= first < start + mmap.PAGESIZE
        assert length == X[:10].nbytes


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="Linux and alike")
def test_pages_that_were_handed_back_are_read_again(X, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "KEEP", 1)
    source = MappedSource(save(tmp_path / "X.npy", X))
    for _ in range(3):
        for i in range(20):
            rows = np.array([i, 2 * i + 1]) if i else np.array([0])
            batch = source.batch(rows, Requirements())
            np.testing.assert_array_equal(batch.X[rows], X[rows])


def test_small_maps_stay(X, tmp_path):
    source = MappedSource(save(tmp_path / "X.npy", X))
    source._pages._map = Advised()
    for i in range(20):
        source.batch(np.arange(i, i + 10), Requirements())
    assert source._pages._map.parts == []


def test_private_changes_are_never_dropped(X, tmp_path, monkeypatch):
    """Pages of a copy-on-write map exist nowhere else: dropping them loses data."""
    monkeypatch.setattr(mapped, "KEEP", 1)
    np.save(tmp_path / "X.npy", X)
    changed = np.load(tmp_path / "X.npy", mmap_mode="c")
    changed[:] = 1
    source = MappedSource(changed)
    for i in range(30):
        source.batch(np.array([i]), Requirements())
    assert np.all(changed == 1)


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
