"""Subsampled runs end where plain online factorization ends, at a stationary point."""

from functools import cache

import numpy as np
import pytest
import reference

from somf import SOMF

K, N_FEATURES, N_SAMPLES = 4, 480, 60

PROBLEMS = {
    "sparse codes": dict(alpha=5.0, code_l1_ratio=1.0, dict_l1_ratio=0.0),
    "sparse atoms": dict(alpha=0.01, code_l1_ratio=0.0, dict_l1_ratio=0.5),
}


def make_data(name):
    """Samples, and a start in the valley of the dictionary that made them."""
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((N_SAMPLES, K))
    if name == "sparse codes":
        atoms = rng.standard_normal((K, N_FEATURES))
        codes *= rng.random(codes.shape) < 0.5
    else:
        atoms = np.zeros((K, N_FEATURES))
        for j in range(K):
            atoms[j, 110 * j : 110 * j + 130] = 1
    X = codes @ atoms + 0.3 * rng.standard_normal((N_SAMPLES, N_FEATURES))
    return X, atoms + rng.standard_normal(atoms.shape)


@cache
def run(name, reduction, estimator, n_epochs=150):
    """Objective and directional derivative at the end of a run."""
    X, start = make_data(name)
    problem = PROBLEMS[name]
    model = SOMF(
        K,
        **problem,
        reduction=reduction,
        code_estimator=estimator,
        dict_init=start,
        batch_size=10,
        n_epochs=n_epochs,
        tol=0,
        random_state=0,
    ).fit(X)
    slope = reference.directional_derivative(
        X,
        model.components_.T,
        *problem.values(),
        positive_code=False,
        positive_dict=False,
    )
    return -model.score(X), slope


@pytest.mark.slow
@pytest.mark.parametrize("reduction", [2, 6, 12])
@pytest.mark.parametrize("estimator", ["averaged", "gram"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_subsampling_ends_where_plain_factorization_ends(name, estimator, reduction):
    plain, plain_slope = run(name, 1, "exact")
    _, first_slope = run(name, 1, "exact", n_epochs=1)
    objective, slope = run(name, reduction, estimator)
    assert objective < 1.01 * plain
    assert plain_slope > 1e-3 * first_slope
    # What a step could still gain, to first order, is far below 1 % of the objective.
    assert slope > -5e-3 * objective
    assert slope > 0.1 * first_slope
