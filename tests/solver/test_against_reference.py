"""The fast solver equals the slow transcription of the paper."""

from functools import cache

import numpy as np
import pytest
import reference
from scripted import make_draws, make_problem, run_scripted

from somf.sampling import MaskSampler

N_SAMPLES, N_FEATURES, K, N_STEPS, BATCH = 24, 60, 4, 50, 5
REDUCTION = 2.5

# name: alpha, code_l1_ratio, dict_l1_ratio, positive_code, positive_dict
PROBLEMS = {
    "dictionary learning": (0.3, 1.0, 0.0, False, False),
    "elastic net": (0.2, 0.7, 0.4, False, False),
    "sparse components": (0.05, 0.0, 1.0, False, False),
    "sparse positive components": (0.05, 0.0, 0.8, False, True),
    "nmf": (0.2, 1.0, 0.0, True, True),
    "positive ridge codes": (0.2, 0.0, 1.0, True, False),
}


def make_case(name, mask, reduction):
    """Data, problem, first atoms and draws of a run, the same at each call."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_SAMPLES, K)) @ rng.standard_normal((K, N_FEATURES))
    X += rng.standard_normal(X.shape)
    problem = make_problem(*PROBLEMS[name])
    if problem.penalty.positive and problem.constraint.positive:
        X = np.abs(X)
    # Nearly orthogonal atoms: codes are then well conditioned from the first step on,
    # and rounding stays far below the tolerance of the comparison.
    noise = rng.standard_normal((K, N_FEATURES))
    noise[np.arange(K), np.arange(K) * 10] += 10
    atoms = problem.constraint.rescale(noise)
    kind, block = ("cycle", 3) if mask == "blocks" else (mask, 1)
    masks = MaskSampler(N_FEATURES, kind, block)
    draws = make_draws(N_SAMPLES, N_FEATURES, K, N_STEPS, BATCH, masks, reduction, rng)
    return X, problem, atoms, draws


@cache
def expected_run(name, estimator, aggregation, mask, dict_update="observed"):
    X, _, atoms, draws = make_case(name, mask, REDUCTION)
    names = ("alpha", "code_l1_ratio", "dict_l1_ratio", "positive_code")
    return reference.somf(
        X,
        atoms.T,
        draws,
        **dict(zip((*names, "positive_dict"), PROBLEMS[name], strict=True)),
        weight=lambda t: t**-0.917,
        sample_weight=lambda c: c**-0.751,
        estimator=estimator,
        aggregation=aggregation,
        dict_update=dict_update,
    )


def assert_same(state, codes, expected):
    close = dict(rtol=0, atol=1e-8)
    for ours, theirs in zip(codes, expected.codes, strict=True):
        np.testing.assert_allclose(ours, theirs, **close)
    for letter in ("D", "B", "C", "norms"):
        ours, theirs = getattr(state, letter).T, getattr(expected, letter)
        np.testing.assert_allclose(ours, theirs, **close, err_msg=letter)
    if state.G is not None:
        np.testing.assert_allclose(state.G, expected.G, **close)


@pytest.mark.parametrize("mask", ["cycle", "bernoulli", "blocks"])
@pytest.mark.parametrize("aggregation", ["full", "async", "masked"])
@pytest.mark.parametrize("estimator", ["masked", "averaged", "gram", "exact"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_same_iterates(name, estimator, aggregation, mask):
    X, problem, atoms, draws = make_case(name, mask, REDUCTION)
    # In exact arithmetic the asynchronous rule is the full one.
    written = "full" if aggregation == "async" else aggregation
    expected = expected_run(name, estimator, written, mask)
    state, codes = run_scripted(
        X, atoms, draws, problem, code_estimator=estimator, aggregation=aggregation
    )
    assert_same(state, codes, expected)


@pytest.mark.parametrize("mask", ["cycle", "bernoulli", "blocks"])
@pytest.mark.parametrize("estimator", ["masked", "exact"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_same_iterates_if_all_features_are_updated(name, estimator, mask):
    X, problem, atoms, draws = make_case(name, mask, REDUCTION)
    expected = expected_run(name, estimator, "full", mask, "all")
    state, codes = run_scripted(
        X, atoms, draws, problem, code_estimator=estimator, dict_update="all"
    )
    assert_same(state, codes, expected)


@pytest.mark.parametrize("name", PROBLEMS)
def test_nothing_hidden_is_online_matrix_factorization(name):
    X, problem, atoms, draws = make_case(name, "cycle", 1)
    names = ("alpha", "code_l1_ratio", "dict_l1_ratio", "positive_code")
    expected = reference.omf(
        X,
        atoms.T,
        draws,
        **dict(zip((*names, "positive_dict"), PROBLEMS[name], strict=True)),
        weight=lambda t: t**-0.917,
    )
    for estimator in ("masked", "averaged", "gram", "exact"):
        for rule in ("full", "async", "masked"):
            state, _ = run_scripted(
                X, atoms, draws, problem, code_estimator=estimator, aggregation=rule
            )
            np.testing.assert_allclose(state.D.T, expected.D, rtol=0, atol=1e-8)
