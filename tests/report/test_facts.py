"""What a report takes from a model."""

import numpy as np
import pytest

from somf import SOMF
from somf.progress import observed_by
from somf.report import code_samples, facts_of
from somf.sources import as_source


def test_facts_are_those_of_the_model(model):
    facts = facts_of(model)
    assert facts.name == "8 atoms of 120 features"
    assert facts.n_samples == 250
    assert facts.stop_reason == model.stop_reason_
    assert facts.parameters == model.get_params()
    assert facts.defaults == SOMF().get_params()
    np.testing.assert_array_equal(facts.components, model.components_)
    np.testing.assert_allclose(facts.strength**2, np.diag(model.state_.C))
    strength = facts.strength[facts.order]
    assert (np.diff(strength) <= 0).all()


def test_a_model_of_partial_fit_has_no_number_of_samples(X):
    model = SOMF(3, n_threads=1).partial_fit(X[:20])
    facts = facts_of(model)
    assert facts.n_samples is None
    assert facts.stop_reason == ""


def test_the_objective_before_the_first_epoch_is_over(X):
    """`objective_` is that of an epoch; until then the batches tell."""
    seen = []
    with observed_by(lambda model, report: seen.append(facts_of(model).objective)):
        SOMF(3, batch_size=100, n_epochs=1, n_threads=1, random_state=0).fit(X)
    assert np.isfinite(seen).all()
    assert len(seen) == 3


def test_codes_of_samples(model, X):
    coded = code_samples(model, X)
    assert coded.n_samples == 200  # of 300
    rows = np.unique(np.linspace(0, 299, 200).astype(int))
    codes = model.transform(X[rows])
    np.testing.assert_array_equal(coded.share, (codes != 0).mean(axis=0))
    assert coded.objective == pytest.approx(-model.score(X[rows]))
    residual = X[rows] - codes @ model.components_
    errors = (residual**2).sum(axis=1) / (X[rows] ** 2).sum(axis=1)
    np.testing.assert_allclose(coded.errors, errors)


def test_examples_go_from_the_best_to_the_worst(model, X):
    coded = code_samples(model, X)
    errors = [example.error for example in coded.examples]
    assert len(errors) == 6
    assert errors == sorted(errors)
    assert errors[0] == coded.errors.min()
    assert errors[-1] == coded.errors.max()
    for example in coded.examples:
        np.testing.assert_array_equal(example.sample, X[example.row])
        code = model.transform(X[example.row][None])
        np.testing.assert_allclose(
            example.reconstruction, (code @ model.components_)[0], atol=1e-6
        )
        assert example.n_atoms == np.count_nonzero(code)


def test_the_part_of_the_signal_that_is_explained(model, X):
    """A faint sample that nothing explains hardly counts."""
    rng = np.random.default_rng(0)
    samples = np.concatenate([X[:5], 1e-3 * rng.standard_normal((5, X.shape[1]))])
    coded = code_samples(model, samples)
    residual = samples - model.inverse_transform(model.transform(samples))
    expected = 1 - (residual**2).sum() / (samples**2).sum()
    assert coded.explained == pytest.approx(expected)
    assert coded.explained > 0.5 > 1 - coded.errors.mean()


def test_samples_of_zeros_are_no_examples(model, X):
    samples = np.concatenate([X[:3], np.zeros_like(X[:9])])
    coded = code_samples(model, samples)
    assert sorted(example.row for example in coded.examples) == [0, 1, 2]
    nothing = code_samples(model, np.zeros_like(X[:3]))
    assert nothing.explained is None
    assert nothing.examples == ()


def test_features_are_in_the_original_order(X, tmp_path):
    """Of data whose features were shuffled, all is shown as it was before."""
    pytest.importorskip("zarr")
    from somf import convert

    np.save(tmp_path / "X.npy", X)
    convert(tmp_path / "X.npy", tmp_path / "X.zarr", shuffle_features=True)
    shuffled = str(tmp_path / "X.zarr")
    assert as_source(shuffled).feature_order is not None
    model = SOMF(8, alpha=0.1, n_epochs=1, n_threads=1, random_state=0).fit(shuffled)
    for samples in (shuffled, X):
        coded = code_samples(model, samples)
        for example in coded.examples:
            np.testing.assert_allclose(example.sample, X[example.row], atol=1e-6)
            residual = example.sample - example.reconstruction
            assert example.error == pytest.approx(
                (residual**2).sum() / (example.sample**2).sum(), rel=1e-4
            )


def test_files_with_missing_values_are_refused(model, X, tmp_path):
    """As in transform, unless the model knows what to do with them."""
    holes = X.copy()
    holes[3, 5] = np.nan
    np.save(tmp_path / "X.npy", holes[:10])
    with pytest.raises(ValueError, match=r"Samples \[3\].*hold NaN"):
        code_samples(model, tmp_path / "X.npy")


def test_missing_entries_are_no_errors(X):
    holes = X.copy()
    holes[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    model = SOMF(8, alpha=0.05, missing="mask", n_threads=1, random_state=0).fit(holes)
    coded = code_samples(model, holes)
    assert np.isfinite(coded.errors).all()
    assert coded.errors.mean() < 0.5
