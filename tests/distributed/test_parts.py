"""Which rows go together to one worker, and how it reads them."""

import pickle

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from somf.distributed.parts import (
    Piece,
    RowRange,
    joined,
    lay_out,
    open_part,
    packed,
    part,
    share_out,
)
from somf.sampling import SampleOrder, StratifiedOrder, as_generator
from somf.sources import as_source
from somf.sources.base import COMPLETE, ArraySource, Requirements
from somf.sources.stacked import StackedSource

ROOM = 2**30


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 12))
def test_everything_is_shared_out_in_order(sizes, n_parts):
    pieces = [Piece(i, 0, n, True) for i, n in enumerate(sizes)]
    parts = share_out(pieces, n_parts)
    assert [piece for part in parts for piece in part] == pieces
    assert len(parts) == min(n_parts, len(pieces))
    assert all(parts)


@given(st.integers(2, 12), st.integers(20, 200))
def test_shares_of_small_pieces_are_equal(n_parts, n_pieces):
    pieces = [Piece(None, 0, 1, True)] * n_pieces
    sizes = [len(part) for part in share_out(pieces, n_parts)]
    assert max(sizes) - min(sizes) <= 1


def test_blocks_without_rows_are_left_out():
    X = da.ones((7, 4), chunks=((0, 3, 0, 4, 0), (2, 2)))
    parted = part(X, as_source(X), 3)
    assert [len(piece) for piece in parted.pieces] == [3, 4]
    assert parted.n_lanes == 2
    blocks = [piece.what.compute() for piece in parted.pieces]
    assert [block.shape for block in blocks] == [(3, 4), (4, 4)]


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array])
def test_workers_get_their_own_rows_alone(kind):
    X = np.arange(4000.0).reshape(400, 10)
    parted = part(None, as_source(kind(X)), 4)
    parts = [joined(pieces) for pieces in share_out(parted.pieces, 4)]
    sent = [[pickle.loads(pickle.dumps(packed(p))) for p in part] for part in parts]
    sources = [open_part(pieces, X.dtype, COMPLETE, ROOM) for pieces in sent]
    read = [source.read(np.arange(source.shape[0])) for source in sources]
    np.testing.assert_array_equal(np.concatenate(read), X)
    assert sum(len(pickle.dumps(pieces)) for pieces in sent) < 2 * X.nbytes


def test_files_are_opened_by_their_ranges(tmp_path):
    X = np.arange(600.0).reshape(60, 10)
    paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
    np.save(paths[0], X[:25])
    np.save(paths[1], X[25:])
    parted = part(paths, as_source(paths), 3)
    first = 0
    for pieces in share_out(parted.pieces, 3):
        source = open_part(
            [packed(piece) for piece in joined(pieces)], X.dtype, COMPLETE, ROOM
        )
        n_rows = source.shape[0]
        rows = np.array([0, n_rows // 2, n_rows - 1])
        np.testing.assert_array_equal(source.read(rows), X[first + rows])
        features = np.array([1, 7])
        some = source.read_features(rows, features)
        np.testing.assert_array_equal(some, X[np.ix_(first + rows, features)])
        assert lay_out(pieces, parted).shape == source.shape
        first += n_rows
    assert first == 60


def test_ranges_keep_the_chunks():
    X = as_source(da.ones((100, 4), chunks=((30, 30, 40), 4)))
    np.testing.assert_array_equal(RowRange(X, 30, 100).row_chunks, [0, 30, 70])
    np.testing.assert_array_equal(RowRange(X, 10, 50).row_chunks, [0, 20, 40])


@pytest.mark.parametrize(("n_workers", "n_pieces"), [(2, 3), (3, 3), (4, 100)])
def test_files_stay_whole_if_there_are_enough(n_workers, n_pieces):
    source = as_source(np.ones((100, 4)))
    source.row_files = np.array([0, 30, 60, 100])
    pieces = part(None, source, n_workers).pieces
    assert len(pieces) == n_pieces
    if n_pieces == 3:
        assert [len(piece) for piece in pieces] == [30, 30, 40]


@pytest.mark.parametrize(("room", "kind"), [(320, ArraySource), (319, StackedSource)])
def test_blocks_become_one_array_if_there_is_room(room, kind):
    pieces = [Piece(np.full((4, 2), i, "f4"), 0, 4, True) for i in range(5)]
    source = open_part(pieces, np.dtype("f4"), COMPLETE, room)
    assert type(source) is kind
    np.testing.assert_array_equal(source.read(np.array([3, 4]))[:, 0], [0, 1])


def test_bad_rows_are_counted_in_all_of_the_data():
    block = np.ones((5, 3))
    block[2, 1] = np.inf
    pieces = [Piece(np.ones((4, 3)), 0, 4, True), Piece(block, 0, 5, True)]
    with pytest.raises(ValueError, match=r"Samples \[106\] "):
        open_part(pieces, block.dtype, Requirements(first_row=100), ROOM)


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=5),
    st.integers(1, 30),
    st.booleans(),
)
def test_batches_take_samples_of_all_parts(sizes, batch_size, shuffle):
    parts = [SampleOrder(n, batch_size, shuffle) for n in sizes]
    order = StratifiedOrder(parts, batch_size)
    ends = np.cumsum(sizes)
    for _ in range(2):
        seen = []
        rng = as_generator(0)
        while not seen or not order.at_epoch_end:
            rows = order.draw(rng)
            assert abs(len(rows) - ends[-1] / order.n_batches) < 1
            counts = np.bincount(
                np.searchsorted(ends, rows, "right"), minlength=len(sizes)
            )
            fair = np.array(sizes) / order.n_batches
            assert np.all(np.abs(counts - fair) < 2)
            seen.append(rows)
        np.testing.assert_array_equal(
            np.sort(np.concatenate(seen)), np.arange(ends[-1])
        )


def test_an_epoch_goes_on_in_the_order_in_which_it_began():
    old, rng = SampleOrder(40, 10), as_generator(0)
    begun = [old.draw(rng), old.draw(rng)]
    new = StratifiedOrder([SampleOrder(20, 10), SampleOrder(20, 10)], 10)
    new.continue_from(old)
    begun += [new.draw(rng), new.draw(rng)]
    np.testing.assert_array_equal(np.sort(np.concatenate(begun)), np.arange(40))
    assert new.at_epoch_end
    assert np.sum(new.draw(rng) < 20) == 5


def test_chunks_of_all_parts_are_known():
    chunked = SampleOrder(30, 10, chunks=np.array([0, 20, 30]), mix=25)
    order = StratifiedOrder([chunked, SampleOrder(12, 10)], 10)
    np.testing.assert_array_equal(order.chunks, [0, 20, 30, 42])
    assert order.mix == 25
    assert StratifiedOrder([SampleOrder(12, 10)], 10).chunks is None


def test_only_rows_that_follow_one_another_are_joined():
    source = as_source(np.eye(9))
    once = [Piece(source, 0, 5, held=False), Piece(source, 5, 9, held=False)]
    found = [(piece.start, piece.stop) for piece in joined(once + once)]
    assert found == [(0, 9), (0, 9)]
