"""Features in another order."""

import numpy as np
import pytest

from somf.sources.base import ArraySource
from somf.sources.reordered import ReorderedSource, align_features
from somf.testing import SourceContract

ORDER = np.random.default_rng(3).permutation(18)


def stored_in(order, X):
    """Return a source whose columns are the original features `order`."""
    source = ArraySource(np.ascontiguousarray(X[:, order]))
    source.feature_order = order
    return source


class TestReordered(SourceContract):
    def make(self, X, tmp_path):
        columns = np.argsort(ORDER)
        return ReorderedSource(ArraySource(np.ascontiguousarray(X[:, ORDER])), columns)


ORDERS = {"original": None, "one": ORDER, "another": ORDER[::-1]}


@pytest.mark.parametrize("here", ORDERS)
@pytest.mark.parametrize("wanted", ORDERS)
def test_any_order_from_any_order(here, wanted):
    X = np.random.default_rng(0).standard_normal((5, 18))
    same, here, wanted = here == wanted, ORDERS[here], ORDERS[wanted]
    source = ArraySource(X) if here is None else stored_in(here, X)
    source.feature_key = "mask"
    aligned = align_features(source, wanted)
    assert aligned.feature_key == "mask"
    expected = X if wanted is None else X[:, wanted]
    np.testing.assert_array_equal(aligned.read(np.arange(5)), expected)
    assert (aligned is source) == same
    if wanted is None:
        assert aligned.feature_order is None
    else:
        np.testing.assert_array_equal(aligned.feature_order, wanted)
