"""Sources one under the other read like their matrices one under the other."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from somf.sources import ArraySource, SparseSource, StackedSource
from somf.testing import SourceContract


class Chunked(ArraySource):
    """An array that claims to be stored in chunks."""

    in_memory = False

    def __init__(self, X, row_chunks=None, feature_chunk=None, feature_order=None):
        super().__init__(X)
        self.row_chunks = None if row_chunks is None else np.asarray(row_chunks)
        self.feature_chunk = feature_chunk
        self.feature_order = feature_order


class Bare:
    """No more than a source must have."""

    def __init__(self, X):
        self.X, self.shape, self.dtype = X, X.shape, X.dtype

    def read(self, rows):
        return self.X[rows]


class TestStackOfAll(SourceContract):
    def make(self, X, tmp_path):
        return StackedSource(
            [
                Chunked(X[:8], [0, 3, 6, 8], 5),
                SparseSource(scipy.sparse.csr_array(X[8:9])),
                ArraySource(X[:0]),
                Bare(X[9:]),
            ]
        )


class TestStackOfOne(SourceContract):
    def make(self, X, tmp_path):
        return StackedSource([ArraySource(X)])


class TestStackOfStacks(SourceContract):
    def make(self, X, tmp_path):
        halves = [ArraySource(X[:9]), ArraySource(X[9:12])]
        return StackedSource([StackedSource(halves), ArraySource(X[12:])])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
def test_any_rows_of_any_parts(lengths, data):
    n = sum(lengths)
    X = np.arange(n * 3.0).reshape(n, 3)
    parts = np.split(X, np.cumsum(lengths)[:-1])
    source = StackedSource([ArraySource(part) for part in parts])
    chosen = data.draw(st.sets(st.integers(0, n - 1)) if n else st.just(set()))
    rows = np.array(sorted(chosen), np.intp)
    assert source.shape == X.shape
    np.testing.assert_array_equal(source.read(rows), X[rows])


def test_parts_without_any_of_the_rows_are_not_read():
    class Broken(ArraySource):
        def read(self, rows):
            raise AssertionError("it has none of the rows")

    X = np.arange(12.0).reshape(4, 3)
    source = StackedSource([ArraySource(X), Broken(X), ArraySource(-X)])
    np.testing.assert_array_equal(source.read(np.array([3, 8])), [X[3], -X[0]])


def test_samples_have_the_widest_type():
    X = np.arange(12.0).reshape(4, 3)
    source = StackedSource([ArraySource(X.astype(np.float32)), ArraySource(X)])
    assert source.dtype == np.float64
    for rows in ([0, 1], [1, 5], [6, 7]):
        assert source.read(np.array(rows)).dtype == np.float64


def stacked(*chunks, n=6):
    return StackedSource([Chunked(np.zeros((n, 2)), bounds) for bounds in chunks])


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([[0, 2, 6], [0, 3, 6]], [0, 2, 6, 9, 12]),
        ([[0, 2, 4, 6], None], [0, 2, 4, 6, 8, 10, 12]),
        ([None, [0, 4, 6]], [0, 3, 6, 10, 12]),
        ([None, [0, 1, 6], None], [0, 3, 6, 7, 12, 15, 18]),
    ],
)
def test_chunks_are_those_of_the_parts(chunks, expected):
    bounds = stacked(*chunks).row_chunks
    assert bounds.dtype == np.intp
    np.testing.assert_array_equal(bounds, expected)


def test_no_chunks_if_no_part_has_any():
    assert stacked(None, None).row_chunks is None


def test_feature_chunks_must_agree():
    X = np.zeros((3, 8))
    same, other = Chunked(X, feature_chunk=4), Chunked(X, feature_chunk=2)
    assert StackedSource([same, same]).feature_chunk == 4
    assert StackedSource([same, other]).feature_chunk is None
    assert StackedSource([ArraySource(X), other]).feature_chunk is None


def test_stack_is_in_memory_if_all_parts_are():
    X = np.zeros((3, 8))
    assert StackedSource([ArraySource(X), ArraySource(X)]).in_memory
    assert not StackedSource([ArraySource(X), Chunked(X)]).in_memory


def test_order_of_features_is_that_of_the_parts():
    order = np.array([2, 0, 1])
    parts = [Chunked(np.zeros((2, 3)), feature_order=order.copy()) for _ in range(2)]
    np.testing.assert_array_equal(StackedSource(parts).feature_order, order)


@pytest.mark.parametrize("orders", [([0, 1, 2], [2, 1, 0]), (None, [2, 1, 0])])
def test_orders_of_features_must_agree(orders):
    parts = [
        Chunked(np.zeros((2, 3)), feature_order=None if o is None else np.array(o))
        for o in orders
    ]
    with pytest.raises(ValueError, match="features of source 1 are in another order"):
        StackedSource(parts)


def test_unshuffled_features_are_in_order():
    plain, ordered = (
        Chunked(np.zeros((2, 3)), feature_order=order) for order in (None, np.arange(3))
    )
    assert StackedSource([plain, ordered]).shape == (4, 3)


def test_parts_must_have_the_same_features():
    parts = [ArraySource(np.zeros((2, p))) for p in (3, 3, 5)]
    with pytest.raises(ValueError, match="Source 2 has 5 features and source 0 has 3"):
        StackedSource(parts)


def test_nothing_to_stack():
    with pytest.raises(ValueError, match="0 sources to stack"):
        StackedSource([])


def test_features_of_another_kind():
    sources = [ArraySource(np.ones((2, 3))) for _ in range(2)]
    sources[0].feature_key = sources[1].feature_key = "mask"
    assert StackedSource(sources).feature_key == "mask"
    sources[1].feature_key = "other mask"
    with pytest.raises(ValueError, match="voxels of different masks"):
        StackedSource(sources)
