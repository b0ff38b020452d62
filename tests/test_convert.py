"""Rewriting an input as Zarr: values, chunks, order of features, stops on the way."""

import sys

import numpy as np
import pytest
from chunks import Chunked

from somf import SOMF
from somf.conversion import Layout, convert
from somf.sources import ArraySource, Source, as_source

zarr = pytest.importorskip("zarr", reason="it reads and writes the groups")


@pytest.fixture
def X():
    return np.random.default_rng(0).standard_normal((50, 70))


@pytest.fixture
def target(tmp_path):
    return tmp_path / "samples.zarr"


def stored(target):
    return zarr.open_group(str(target), mode="r")


class Fails(Source):
    """An array of which some row cannot be read for now."""

    def __init__(self, X, bad_row):
        self.X, self.bad_row = X, bad_row
        self.shape, self.dtype = X.shape, X.dtype
        self.n_read = 0

    def read(self, rows):
        if self.bad_row in rows:
            raise OSError("the disk is gone")
        self.n_read += len(rows)
        return self.X[rows]


@pytest.fixture
def one_chunk_at_a_time(monkeypatch):
    monkeypatch.setattr("somf.conversion.BLOCK_BYTES", 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_group_holds_the_same_values(X, target, dtype, shuffle):
    X = X.astype(dtype)
    X[3, 5] = np.nan  # missing values pass
    convert(X, target, chunk_samples=8, chunk_features=16, shuffle_features=shuffle)
    samples = stored(target)["samples"]
    assert samples.dtype == dtype
    assert samples.chunks == (8, 16)
    order = stored(target)["features"][:] if shuffle else np.arange(70)
    np.testing.assert_array_equal(samples[:], X[:, order])
    assert shuffle == (not np.array_equal(order, np.arange(70)))


def test_a_path_and_several_paths_are_inputs(X, target, tmp_path):
    for i, part in enumerate((X[:20], X[20:])):
        np.save(tmp_path / f"{i}.npy", part)
    convert([tmp_path / "0.npy", str(tmp_path / "1.npy")], target)
    np.testing.assert_array_equal(stored(target)["samples"][:], X)


def test_the_type_can_be_chosen(X, target):
    convert(X, target, dtype="float32")
    samples = stored(target)["samples"]
    assert samples.dtype == np.float32
    np.testing.assert_array_equal(samples[:], X.astype(np.float32))


def test_order_follows_random_state(X, tmp_path):
    orders = []
    for i, seed in enumerate((0, 0, 1)):
        target = tmp_path / f"{i}.zarr"
        convert(X, target, shuffle_features=True, random_state=seed)
        orders.append(stored(target)["features"][:])
    np.testing.assert_array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])


def test_features_shuffled_before_are_known_by_their_first_place(X, tmp_path):
    once, twice, undone = (tmp_path / f"{name}.zarr" for name in "abc")
    convert(X, once, shuffle_features=True, random_state=0)
    convert(once, twice, shuffle_features=True, random_state=1)
    convert(twice, undone)
    order = stored(twice)["features"][:]
    np.testing.assert_array_equal(stored(twice)["samples"][:], X[:, order])
    np.testing.assert_array_equal(stored(undone)["samples"][:], X)
    assert "features" not in stored(undone)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_source_reads_it_again(X, target, shuffle):
    convert(X, target, chunk_samples=8, chunk_features=16, shuffle_features=shuffle)
    source = as_source(target)
    assert source.feature_chunk == 16
    np.testing.assert_array_equal(np.diff(source.row_chunks), [8] * 6 + [2])
    order = np.arange(70) if source.feature_order is None else source.feature_order
    np.testing.assert_array_equal(source.read(np.arange(50)), X[:, order])


@pytest.mark.slow
def test_a_fit_gives_components_in_the_original_order(target):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3)) @ rng.standard_normal((3, 70))
    convert(X, target, chunk_features=16, shuffle_features=True, random_state=0)
    settings = {"n_components": 3, "alpha": 0.1, "random_state": 0, "n_epochs": 20}
    there = SOMF(**settings, reduction=1).fit(target)
    here = SOMF(**settings, reduction=1).fit(X)
    assert there.score(X) == pytest.approx(here.score(X), rel=0.02)
    assert there.score(X) == pytest.approx(there.score(target), rel=1e-6)
    shuffled = X[:, np.random.default_rng(1).permutation(70)]
    assert there.score(shuffled) < 2 * there.score(X)  # the order does matter


# -- chunks by default ---------------------------------------------------------------


@pytest.mark.parametrize("n_samples", [10, 10**6])
@pytest.mark.parametrize("n_features", [1, 10, 1000, 57344, 212445, 10**7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_chunks_by_default(n_samples, n_features, dtype):
    X = np.broadcast_to(np.zeros(1, dtype), (n_samples, n_features))
    layout = Layout.choose(ArraySource(X), None, None, None)
    samples, features = layout.chunks
    assert samples <= n_samples
    assert features <= n_features
    if n_features >= 48 * 16:
        assert n_features / features >= 48
    if n_samples >= 256 and n_features >= 57344:
        assert 2**18 <= samples * features * layout.dtype.itemsize <= 2**20


@pytest.mark.parametrize(
    ("n_features", "dtype", "chunks"),
    [
        (57344, np.float32, (110, 1184)),  # half a megabyte, 49 chunks
        (212445, np.float32, (64, 2048)),  # the widest
        (212445, np.float64, (64, 2048)),  # a megabyte: the fewest samples
        (500, np.float64, (256, 16)),  # the narrowest, the most samples
    ],
)
def test_chunks_of_examples(n_features, dtype, chunks):
    X = np.broadcast_to(np.zeros(1, dtype), (10**5, n_features))
    assert Layout.choose(ArraySource(X), None, None, None).chunks == chunks


def test_blocks_are_whole_chunks_and_bounded(X, monkeypatch):
    monkeypatch.setattr("somf.conversion.BLOCK_BYTES", 25 * 70 * 8)
    layout = Layout.choose(ArraySource(X), 10, 7, None)
    sizes = [len(rows) for rows in layout.blocks(0)]
    assert sizes == [20, 20, 10]
    np.testing.assert_array_equal(np.concatenate(layout.blocks(20)), np.arange(20, 50))


# -- stops on the way ----------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("bad_row", [0, 17, 49])
def test_goes_on_where_it_stopped(X, target, shuffle, bad_row, one_chunk_at_a_time):
    settings = {"chunk_samples": 5, "chunk_features": 7, "shuffle_features": shuffle}
    with pytest.raises(OSError, match="gone"):
        convert(Fails(X, bad_row), target, **settings)
    record = stored(target).attrs["somf"]
    assert record["rows_done"] == bad_row // 5 * 5
    assert record["complete"] is False
    source = Fails(X, bad_row=-1)
    convert(source, target, **settings)
    assert source.n_read <= 50 - record["rows_done"] + 2  # two rows are compared
    assert stored(target).attrs["somf"]["complete"] is True
    order = stored(target)["features"][:] if shuffle else np.arange(70)
    np.testing.assert_array_equal(stored(target)["samples"][:], X[:, order])


def test_progress_counts_samples(X, target, one_chunk_at_a_time):
    calls = []
    convert(X, target, chunk_samples=20, progress=lambda *call: calls.append(call))
    assert calls == [(20, 50), (40, 50), (50, 50)]


@pytest.fixture
def unfinished(X, target, one_chunk_at_a_time):
    settings = {
        "chunk_samples": 5,
        "chunk_features": 7,
        "shuffle_features": True,
        "random_state": 0,
    }
    with pytest.raises(OSError, match="gone"):
        convert(Fails(X, 30), target, **settings)
    return settings


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chunk_samples": 10}, r"\(5, 7\) there and \(10, 7\) here"),
        ({"chunk_features": 14}, "chunks"),
        ({"dtype": "float32"}, "float64 there and float32 here"),
        ({"shuffle_features": False}, "shuffled there"),
        ({"random_state": 1}, "another random_state"),
    ],
)
def test_refuses_to_go_on_with_other_settings(X, target, unfinished, change, words):
    before = stored(target)["samples"][:]
    with pytest.raises(ValueError, match=words):
        convert(X, target, **(unfinished | change))
    np.testing.assert_array_equal(stored(target)["samples"][:], before)
    convert(X, target, **(unfinished | change), overwrite=True)
    assert stored(target).attrs["somf"]["complete"] is True


def test_refuses_to_go_on_with_features_that_were_not_shuffled(X, target):
    with pytest.raises(OSError, match="gone"):
        convert(Fails(X, 49), target, chunk_samples=5)
    zarr.open_group(str(target), mode="r+").attrs["somf"] = {
        "complete": False,
        "rows_done": 5,
        "n_samples": 50,
    }
    with pytest.raises(ValueError, match="shuffled here"):
        convert(X, target, chunk_samples=5, shuffle_features=True)


@pytest.mark.parametrize("row", [0, 29])
def test_refuses_to_go_on_with_other_data(X, target, unfinished, row):
    X[row] += 1
    with pytest.raises(ValueError, match=f"sample {row} has other values"):
        convert(X, target, **unfinished)


def test_refuses_another_shape(X, target, unfinished):
    with pytest.raises(ValueError, match=r"shape \(50, 70\) there and \(40, 70\) here"):
        convert(X[:40], target, **unfinished)


def test_the_order_of_an_unfinished_group_need_not_be_known(X, target, unfinished):
    convert(X, target, **(unfinished | {"random_state": None}))
    order = stored(target)["features"][:]
    np.testing.assert_array_equal(stored(target)["samples"][:], X[:, order])


def test_readers_refuse_an_unfinished_group(X, target, unfinished):
    with pytest.raises(ValueError, match="30 of 50 samples"):
        as_source(target)
    convert(X, target, **unfinished)
    assert as_source(target).shape == (50, 70)


# -- what is there already -----------------------------------------------------------


def test_keeps_what_is_complete(X, target):
    convert(X, target)
    with pytest.raises(FileExistsError, match="complete conversion already"):
        convert(X, target)
    convert(X + 1, target, overwrite=True)
    np.testing.assert_array_equal(stored(target)["samples"][:], X + 1)


@pytest.mark.parametrize("overwrite", [False, True])
def test_never_replaces_what_is_no_group(X, target, overwrite):
    target.mkdir()
    (target / "thesis.tex").write_text("42")
    with pytest.raises(FileExistsError, match=r"samples\.zarr is there"):
        convert(X, target, overwrite=overwrite)
    assert (target / "thesis.tex").read_text() == "42"


def test_takes_no_group_of_others_for_a_conversion(X, target):
    zarr.open_group(str(target), mode="w").attrs["title"] = "theirs"
    with pytest.raises(FileExistsError, match="not an unfinished conversion"):
        convert(X, target)
    assert stored(target).attrs["title"] == "theirs"


def test_the_input_is_not_overwritten(X, target):
    convert(X, target)
    with pytest.raises(ValueError, match="the input itself"):
        convert([str(target)], target, overwrite=True)
    np.testing.assert_array_equal(stored(target)["samples"][:], X)


def test_a_missing_input_leaves_the_target_alone(X, target, tmp_path):
    convert(X, target)
    with pytest.raises(FileNotFoundError):
        convert(tmp_path / "missing.npy", target, overwrite=True)
    np.testing.assert_array_equal(stored(target)["samples"][:], X)


# -- arguments -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"chunk_samples": 0}, "chunk_samples=0 must be"),
        ({"chunk_features": -1}, "chunk_features=-1 must be"),
        ({"dtype": "int32"}, "'int32' must be float32 or float64"),
    ],
)
def test_refuses_bad_settings(X, target, settings, words):
    with pytest.raises(ValueError, match=words):
        convert(X, target, **settings)
    assert not target.exists()


def test_refuses_another_extension(X, tmp_path):
    with pytest.raises(ValueError, match=r"X\.npy must end with \.zarr"):
        convert(X, tmp_path / "X.npy")


def test_names_the_extra_without_zarr(X, target, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImportError, match=r"somf\[chunked\]"):
        convert(X, target)


def test_every_chunk_of_the_input_is_read_once(X, tmp_path, monkeypatch):
    monkeypatch.setattr("somf.conversion.BLOCK_BYTES", 1)
    source = Chunked(X, 25, None)
    convert(source, tmp_path / "X.zarr", chunk_samples=8)
    rows = np.concatenate([rows for rows, _ in source.log])
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(X)))
