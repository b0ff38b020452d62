"""Warnings in plain words: each on a run that deserves it, none on one that is fine."""

from dataclasses import replace

import numpy as np
import pytest
from reported import SETTINGS, make_samples

from somf import SOMF, alpha_max
from somf.report import advise, code_samples, facts_of
from somf.report.advice import fall_at_end


def advice_on(X, coded=None, **settings):
    model = SOMF(**SETTINGS | {"reduction": 1, "n_epochs": 15} | settings).fit(X)
    if coded is not None:
        coded = code_samples(model, coded)
    return advise(facts_of(model, coded=coded))


def only(advice, *words):
    """Assert that there is one piece of advice, with these words in it."""
    assert len(advice) == 1, advice
    text = f"{advice[0].problem} {advice[0].remedy}"
    for word in words:
        assert word in text


def test_a_good_run_needs_none(X):
    assert advice_on(X, coded=X) == []


def test_all_codes_zero(X):
    alpha = 1.1 * alpha_max(X)
    only(advice_on(X, alpha=alpha), "All codes are zero", "alpha_max", f"{alpha:g}")


def test_dense_codes(X):
    advice = advice_on(X, alpha=1e-4, n_epochs=40)
    only(advice, "which is not sparse", "larger alpha")


def test_dense_codes_of_a_ridge_penalty_are_meant(X):
    assert advice_on(X, code_l1_ratio=0.0) == []


def test_dense_codes_without_a_penalty_are_meant(model):
    facts = facts_of(model)
    dense = replace(facts, trace=facts.trace | {"density": np.ones(150)})
    only(advise(dense), "which is not sparse")
    assert advise(replace(dense, parameters=facts.parameters | {"alpha": 0.0})) == []


def test_data_of_zeros_are_not_the_fault_of_alpha():
    only(advice_on(np.zeros((50, 20))), "All samples are zero")


def test_not_converged(X):
    advice = advice_on(X, n_epochs=2, tol=0)
    only(advice, "not converged", "n_epochs, which is 2")


def test_a_run_that_is_going_is_not_blamed_for_it(X):
    model = SOMF(**SETTINGS, reduction=1, n_epochs=2, tol=0).fit(X)
    facts = facts_of(model)
    assert advise(facts) != []
    assert advise(replace(facts, status="running")) == []


def test_dead_atoms():
    """One atom makes the data; of twenty, most have nothing to do."""
    X = make_samples(n_atoms=1, noise=0)
    advice = advice_on(X, n_components=20, alpha=0.3, tol=0)
    only(advice, "again and again", "n_components=20", "smaller alpha")


def test_atoms_that_are_not_used(model):
    facts = facts_of(model)
    strength = facts.strength.copy()
    strength[:2] = 0
    advice = advise(replace(facts, strength=strength))
    only(advice, "2 of 8 atoms are used by no sample")


def test_fewer_features_than_atoms(X):
    advice = advice_on(X, reduction=20, tol=0)
    (problem,) = [a.problem for a in advice if "reduction is too high" in a.problem]
    assert "observes 6 features, fewer than there are atoms (8)" in problem


def test_codes_that_follow_what_they_see():
    """In noise, atoms fit the observed features by chance, and not the others."""
    X = np.random.default_rng(0).standard_normal((300, 120))
    ridge = {"code_l1_ratio": 0.0, "alpha": 1e-3, "dict_update": "observed"}
    advice = advice_on(X, coded=X, reduction=10, tol=0, **ridge)
    only(advice, "On all features the objective is", "Try reduction=3")


def test_numbers_that_are_none(model):
    facts = facts_of(model)
    trace = facts.trace | {"objective": np.full_like(facts.trace["step"], np.inf)}
    only(advise(replace(facts, trace=trace)), "not a finite number")


def test_nothing_is_known_before_the_first_iteration(model):
    facts = facts_of(model)
    trace = {name: column[:0] for name, column in facts.trace.items()}
    assert advise(replace(facts, trace=trace)) == []


def trace_of(objective, epoch, held_out=None, reduction=1):
    objective = np.asarray(objective, float)
    nothing = np.full_like(objective, np.nan)
    return {
        "objective": objective,
        "epoch": np.asarray(epoch, float),
        "reduction": np.full_like(objective, reduction),
        "validation_objective": nothing if held_out is None else np.asarray(held_out),
    }


def test_fall_between_the_last_two_epochs():
    trace = trace_of([4, 4, 2, 2, 1, 1], [0.5, 1, 1.5, 2, 2.5, 3])
    assert fall_at_end(trace) == 0.5


def test_epochs_that_observe_a_part_are_noisy():
    objective = np.where(np.arange(40) % 2, 1.0, 3.0)
    objective[20:] *= 0.97
    epoch = np.repeat([1, 2], 20)
    assert fall_at_end(trace_of(objective, epoch)) == pytest.approx(0.03)
    assert fall_at_end(trace_of(objective, epoch, reduction=10)) == 0


def test_held_out_samples_judge():
    held_out = [np.nan, 4, np.nan, 3, np.nan, 3]
    trace = trace_of([4, 4, 2, 2, 1, 1], [0.5, 1, 1.5, 2, 2.5, 3], held_out)
    assert fall_at_end(trace) == 0


@pytest.mark.parametrize(("noise", "expected"), [(0.001, 0.1), (1.0, 0.0)])
def test_without_epochs_the_fall_must_exceed_the_noise(noise, expected):
    rng = np.random.default_rng(0)
    objective = np.repeat([2, 1.5, 1, 0.9], 25) + noise * rng.standard_normal(100)
    trace = trace_of(objective, np.full(100, np.nan))
    assert fall_at_end(trace) == pytest.approx(expected, abs=0.01)


def test_a_few_batches_tell_nothing():
    assert fall_at_end(trace_of([3, 2, 1], [np.nan] * 3)) is None
    assert fall_at_end(trace_of([3], [1])) is None
