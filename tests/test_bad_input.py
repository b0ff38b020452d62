"""Bad input gets an error with the value, the rule and the way out, or simply works."""

import numpy as np
import pytest

from somf import SOMF
from somf.sources import as_source

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 12))


def make_model(**parameters):
    return SOMF(**(dict(n_components=3, alpha=0.1, random_state=0) | parameters))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (dict(n_components=0), r"n_components=0 must be an integer >= 1"),
        (dict(n_components=2.5), r"n_components=2.5 must be an integer"),
        (dict(alpha=-1), r"alpha=-1 must be a number >= 0"),
        (dict(alpha=float("nan")), r"alpha=nan must be"),
        (dict(alpha=float("inf")), r"alpha=inf must be"),
        (dict(alpha="1"), r"alpha='1' must be a number"),
        (dict(code_l1_ratio=1.5), r"code_l1_ratio=1.5 must be a number between 0 and"),
        (dict(dict_l1_ratio=-0.1), r"dict_l1_ratio=-0.1 must be"),
        (dict(positive_code="yes"), r"positive_code='yes' must be True or False"),
        (dict(reduction=0.5), r"reduction=0.5 must be a number >= 1. Use 1"),
        (dict(reduction=13), r"reduction=13 must be between 1 .* n_features=12"),
        (dict(reduction="half"), r"reduction='half' must be a number"),
        (dict(reduction_schedule="up"), r"one of 'constant', 'decreasing'"),
        (dict(code_estimator="a"), r"code_estimator='a' must be one of 'masked'"),
        (dict(aggregation="lazy"), r"aggregation='lazy' must be one of 'full'"),
        (dict(dict_update="some"), r"dict_update='some' must be one of 'auto', 'all'"),
        (dict(dict_update="all", aggregation="masked"), r"needs the statistics of all"),
        (dict(dict_update="all", code_estimator="gram"), r"codes would explode"),
        (dict(mask="random"), r"mask='random' must be one of 'cycle', 'bernoulli'"),
        (dict(mask_block=0), r"mask_block=0 must be an integer >= 1"),
        (dict(mask_block=13), r"mask_block=13 must be between 1 and n_features=12"),
        (dict(batch_size=0), r"batch_size=0 must be"),
        (dict(batch_size="large"), r"batch_size='large' must be an integer"),
        (dict(n_epochs=0), r"n_epochs=0 must be"),
        (dict(patience=0), r"patience=0 must be"),
        (dict(tol=-1), r"tol=-1 must be"),
        (dict(n_threads=0), r"n_threads=0 must be"),
        (dict(n_threads=-1), r"n_threads=-1 must be"),
        (dict(dict_init="svd"), r"dict_init='svd' must be one of"),
        (dict(dict_init=np.ones((3, 5))), r"dict_init has shape \(3, 5\)"),
        (dict(dict_init=np.ones((2, 12))), r"2 atoms but n_components=3"),
        (dict(dict_init=np.full((3, 12), np.nan)), r"finite"),
        (dict(weights="slow"), r"weights='slow' must be one of 'fast', 'paper'"),
    ],
)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_bad_parameters(method, parameters, message):
    model = make_model(**parameters)
    before = dict(vars(model))
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(model, method)(X)
    assert vars(model) == before


def with_value(value):
    bad = X.copy()
    bad[3, 4] = value
    return bad


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (with_value(np.nan), "NaN"),
        (with_value(np.inf), "infinity"),
        (X[0], "Expected 2D array"),
        (X[:0], "0 sample"),
        (X[:, :0], "0 feature"),
        (X[:, :7], "7 features"),
        (X + 1j, "[Cc]omplex"),
        ([["a", "b"]], "."),
        (X[None], "dim"),
    ],
)
def test_partial_fit_leaves_the_model_as_it_was(bad, message):
    model = make_model().partial_fit(X)
    known = model.state_.tensors()
    before = {name: array.copy() for name, array in known.items()}
    generator = model.state_.rng.bit_generator.state
    with pytest.raises((ValueError, TypeError), match=message):
        model.partial_fit(bad)
    for name, array in model.state_.tensors().items():
        np.testing.assert_array_equal(array, before[name])
    assert model.state_.rng.bit_generator.state == generator
    assert model.n_features_in_ == 12
    assert model.n_steps_ == len(model.trace_["step"]) == 1


@pytest.mark.parametrize("indices", [[0, 1], [-1] * 30, [0] * 30, np.arange(30.0)])
def test_bad_sample_indices(indices):
    model = make_model(code_estimator="gram")
    with pytest.raises(ValueError, match="sample_indices"):
        model.partial_fit(X, sample_indices=indices)
    assert not hasattr(model, "state_")


def test_negative_data_with_nmf():
    with pytest.raises(ValueError, match="Negative values"):
        SOMF.nmf(3).fit(X)
    with pytest.raises(ValueError, match="Negative values"):
        SOMF.nmf(3).fit(np.abs(X)).transform(X)


def test_codes_of_a_wrong_shape():
    model = make_model().fit(X)
    with pytest.raises(ValueError, match=r"must be \(n_samples, 3\)"):
        model.inverse_transform(np.ones((4, 2)))


@pytest.mark.parametrize(
    "data",
    [
        X.astype(np.float16),
        (10 * X).astype(np.int16),
        X > 0,
        np.asfortranarray(X),
        X[::2, ::3],
        X[:, :1],
        X[:1],
        np.ones((20, 12)),
        np.zeros((20, 12)),
        np.vstack([np.zeros((25, 12)), X]),
        1e15 * X.astype(np.float32),
        1e-30 * X.astype(np.float32),
        X.tolist(),
    ],
    ids=[
        "float16",
        "integers",
        "booleans",
        "Fortran order",
        "strided",
        "one feature",
        "one sample",
        "constant",
        "zeros",
        "zero samples",
        "huge",
        "tiny",
        "lists",
    ],
)
@pytest.mark.parametrize("preset", ["dictionary_learning", "sparse_components"])
@pytest.mark.parametrize("reduction", [1, "auto", "most"])
def test_odd_data_work(data, preset, reduction):
    if reduction == "most":
        reduction = np.asarray(data).shape[1]
    make = getattr(SOMF, preset)
    model = make(3, alpha=0.1, reduction=reduction, batch_size=7, random_state=0)
    codes = model.fit(data).transform(data)
    assert np.isfinite(codes).all()
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.score(data))
    expected = np.asarray(data).dtype
    wide = expected not in (np.float16, np.float32)
    assert codes.dtype == (np.float64 if wide else np.float32)


@pytest.mark.parametrize("reduction", [1, 2])
def test_squares_that_overflow(reduction):
    model = make_model(reduction=reduction).partial_fit(X.astype(np.float32))
    before = model.components_.copy()
    generator = model.state_.rng.bit_generator.state
    with pytest.raises(ValueError, match=r"overflow float32.*float64"):
        model.partial_fit(1e30 * X.astype(np.float32))
    np.testing.assert_array_equal(model.components_, before)
    assert model.state_.rng.bit_generator.state == generator
    assert model.n_steps_ == 1
    assert np.isfinite(make_model().fit(1e30 * X).score(1e30 * X))


def test_squares_that_overflow_after_new_parameters():
    model = make_model().partial_fit(X.astype(np.float32))
    before = {name: array.copy() for name, array in model.state_.tensors().items()}
    masks = model.state_.sampler.masks
    model.set_params(dict_l1_ratio=1.0, mask="bernoulli")
    with pytest.raises(ValueError, match="overflow"):
        model.partial_fit(1e30 * X.astype(np.float32))
    for name, array in model.state_.tensors().items():
        np.testing.assert_array_equal(array, before[name])
    assert model.state_.sampler.masks is masks
    model.partial_fit(X.astype(np.float32))
    assert np.abs(model.components_).sum(axis=1).max() <= 1 + 1e-5
    assert model.state_.sampler.masks.kind == "bernoulli"


@pytest.mark.parametrize("call", ["fit", "transform", "score", "partial_fit"])
def test_the_array_of_a_source_is_checked(call):
    model = make_model(reduction=4, batch_size=10).fit(X)
    bad = X.copy()
    bad[25, 7] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        getattr(model, call)(as_source(bad))
    with pytest.raises(ValueError, match="Negative values"):
        SOMF.nmf(3).fit(as_source(X))


def test_read_only_memory_map(tmp_path):
    np.save(tmp_path / "X.npy", X.astype(np.float32))
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    model = make_model(reduction=2).fit(mapped)
    other = make_model(reduction=2).fit(X.astype(np.float32))
    np.testing.assert_array_equal(model.components_, other.components_)
    np.testing.assert_array_equal(model.transform(mapped), other.transform(mapped))


def test_fewer_samples_than_batch_or_atoms():
    model = make_model(n_components=8, batch_size=100).fit(X[:5])
    assert model.components_.shape == (8, 12)
    assert model.n_steps_ == model.n_iter_


def test_input_is_left_alone():
    for data in (X.copy(), X.astype(np.float32)):
        before = data.copy()
        make_model(reduction=1).fit(data).transform(data)
        np.testing.assert_array_equal(data, before)
    atoms = np.ones((3, 12))
    make_model(dict_init=atoms, reduction=1).fit(X)
    np.testing.assert_array_equal(atoms, 1)


def test_model_file_that_is_not_one(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"notes\.txt is not a readable model file"):
        SOMF.load(tmp_path / "notes.txt")
