"""NaN as an entry that is not known."""

import numpy as np
import pytest
import scipy.sparse
from chunks import Chunked, read_all

from somf import SOMF
from somf.choices import choose
from somf.solver.run import Reader
from somf.sources.base import ArraySource


def low_rank(share, shape=(300, 60), rank=3, seed=0, positive=False):
    """Return a low-rank matrix, and the same with a share of its entries missing."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((shape[0], rank))
    B = rng.standard_normal((rank, shape[1]))
    if positive:
        A, B = np.abs(A), np.abs(B)
    X = A @ B
    hidden = X.copy()
    hidden[rng.random(shape) < share] = np.nan
    return X, hidden


def model(**parameters):
    settings = {
        "n_components": 3,
        "alpha": 1e-3,
        "code_l1_ratio": 0.0,
        "reduction": 1,
        "batch_size": 30,
        "n_epochs": 30,
        "tol": 0,
        "missing": "mask",
        "random_state": 0,
    }
    return SOMF(**(settings | parameters))


def error(X, filled, hidden):
    """Return the error on the entries that were hidden, relative to their size."""
    where = np.isnan(hidden)
    return np.linalg.norm(filled[where] - X[where]) / np.linalg.norm(X[where])


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"reduction": 2},
        {"reduction": 2, "aggregation": "masked", "n_epochs": 60},
        {"reduction": 2, "dict_update": "observed", "mask": "bernoulli"},
        {"code_l1_ratio": 1.0, "alpha": 1e-3},
    ],
    ids=str,
)
def test_hidden_entries_of_a_low_rank_matrix_are_recovered(share, parameters):
    X, hidden = low_rank(share)
    fitted = model(**parameters).fit(hidden)
    filled = fitted.impute(hidden)
    known = ~np.isnan(hidden)
    np.testing.assert_array_equal(filled[known], X[known])
    assert error(X, filled, hidden) < 0.1
    zeros = model(**(parameters | {"missing": "error"})).fit(np.nan_to_num(hidden))
    naive = zeros.inverse_transform(zeros.transform(np.nan_to_num(hidden)))
    assert error(X, naive, hidden) > 2 * error(X, filled, hidden)


def test_nonnegative_factors():
    X, hidden = low_rank(0.3, positive=True)
    fitted = model(positive_code=True, positive_dict=True).fit(hidden)
    assert error(X, fitted.impute(hidden), hidden) < 0.1
    with pytest.raises(ValueError, match="negative"):
        fitted.fit(hidden - 1)


@pytest.mark.parametrize("gaps", [False, True])
def test_nonnegative_factors_of_a_sparse_matrix(gaps):
    X = scipy.sparse.random_array((50, 30), density=0.3, rng=0, format="csr")
    if gaps:
        X.data[::7] = np.nan
    fit = SOMF.nmf(3, alpha=0.1, missing="mask", random_state=0).fit
    np.testing.assert_array_equal(fit(X).components_, fit(X.toarray()).components_)
    X.data[0] = -1
    with pytest.raises(ValueError, match="negative"):
        fit(X)


def test_batches_of_samples_with_a_gram_matrix_each_are_small():
    source = ArraySource(np.zeros((20_000, 768), np.float32))
    sizes = [
        choose(SOMF(500, missing=how).get_params(), source).batch_size
        for how in ("error", "mask")
    ]
    assert sizes == [2000, 200]


def test_codes_minimise_the_loss_over_what_is_known():
    _, hidden = low_rank(0.4)
    fitted = model(n_epochs=3, alpha=0.1).fit(hidden)
    codes = fitted.transform(hidden)
    D = fitted.components_
    losses = []
    for x, code in zip(hidden, codes, strict=True):
        known = ~np.isnan(x)
        d = D[:, known]
        best = np.linalg.solve(d @ d.T + 0.1 * np.eye(3), d @ x[known])
        np.testing.assert_allclose(code, best, rtol=1e-5, atol=1e-8)
        residual = x[known] - best @ d
        losses.append(0.5 * residual @ residual + 0.05 * best @ best)
    np.testing.assert_allclose(-fitted.score(hidden), np.mean(losses), rtol=1e-6)


def test_without_missing_entries_nothing_changes():
    X, _ = low_rank(0.1)
    one = model(n_epochs=3).fit(X)
    two = model(n_epochs=3, missing="error").fit(X)
    np.testing.assert_array_equal(one.components_, two.components_)
    np.testing.assert_array_equal(one.impute(X), X)


def test_the_data_are_not_written_to():
    _, hidden = low_rank(0.3)
    before = hidden.copy()
    fitted = model(n_epochs=2).fit(hidden)
    fitted.transform(hidden)
    fitted.impute(hidden)
    fitted.partial_fit(hidden[:20])
    np.testing.assert_array_equal(hidden, before)


def test_partial_fit_and_files(tmp_path):
    X, hidden = low_rank(0.3)
    np.save(tmp_path / "X.npy", hidden)
    from_file = model(n_epochs=5).fit(tmp_path / "X.npy")
    from_array = model(n_epochs=5).fit(hidden)
    np.testing.assert_array_equal(from_file.components_, from_array.components_)
    stream = model()
    for _ in range(30):
        for start in range(0, 300, 30):
            stream.partial_fit(hidden[start : start + 30])
    assert error(X, stream.impute(hidden), hidden) < 0.1


@pytest.mark.parametrize("alpha", [1e-3, 30.0])
def test_where_only_a_part_is_read(alpha, monkeypatch):
    """Also if atoms die, and are replaced by whole samples with gaps."""
    _, hidden = low_rank(0.3)
    settings = {"aggregation": "masked", "reduction": 3, "n_epochs": 4}
    settings |= {"alpha": alpha, "code_l1_ratio": 1.0, "dict_init": "random"}
    source = Chunked(hidden, 30, 10)
    part = model(**settings).fit(source)
    assert any(len(features) == 20 for _, features in source.log)
    assert (part.trace_["replaced_atoms"][-1] > 0) == (alpha > 1)
    monkeypatch.setattr(Reader, "read", read_all)
    whole = model(**settings).fit(Chunked(hidden, 30, 10))
    np.testing.assert_array_equal(part.components_, whole.components_)
    assert np.isfinite(part.components_).all()


def test_samples_and_features_that_are_all_missing():
    _, hidden = low_rank(0.2)
    hidden[7] = np.nan
    hidden[:, 11] = np.nan
    fitted = model(n_epochs=3).fit(hidden)
    assert np.isfinite(fitted.components_).all()
    assert not fitted.transform(hidden)[7].any()
    assert np.isfinite(fitted.impute(hidden)).all()
    assert np.isfinite(fitted.score(hidden))


def test_infinity_is_never_missing():
    _, hidden = low_rank(0.2)
    hidden[3, 4] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        model().fit(hidden)


def test_nan_is_an_error_unless_it_is_asked_for():
    _, hidden = low_rank(0.2)
    with pytest.raises(ValueError, match="NaN"):
        model(missing="error").fit(hidden)
    X, _ = low_rank(0.2)
    with pytest.raises(ValueError, match=r"missing='error' must be \"mask\""):
        model(missing="error", n_epochs=1).fit(X).impute(X)


@pytest.mark.parametrize("estimator", ["averaged", "gram", "exact"])
def test_estimators_that_cannot_tell_are_refused(estimator):
    with pytest.raises(ValueError, match=f"{estimator}.*missing"):
        model(code_estimator=estimator).fit(np.ones((5, 5)))
    with pytest.raises(ValueError, match="missing='drop' must be one of"):
        model(missing="drop").fit(np.ones((5, 5)))
