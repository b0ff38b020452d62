"""The loop of stochastic majorization-minimization, with another problem in it."""

from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from scripted import make_problem
from sklearn.linear_model import LogisticRegression

from somf.sampling import Mask, MaskSampler
from somf.solver import samm
from somf.solver.iteration import Factorization, Settings
from somf.solver.state import State
from somf.sources.base import Batch
from somf.threads import Team


@dataclass
class Quadratic:
    """g(θ) = constant − slopeᵀθ + curvature/2·|θ|²."""

    constant: float
    slope: np.ndarray
    curvature: float

    def __call__(self, theta):
        return self.constant - self.slope @ theta + self.curvature / 2 * (theta @ theta)

    def mix(self, other, weight):
        self.constant += weight * (other.constant - self.constant)
        self.slope = (1 - weight) * self.slope + weight * other.slope
        self.curvature += weight * (other.curvature - self.curvature)


class SparseLogisticRegression:
    """θ = argmin mean log(1 + exp(−y xᵀθ)) + λ|θ|₁; a sample is a batch (X, y), y = ±1.

    The loss of a batch has curvature at most |X|²/4 over its size, hence a quadratic
    that lies above it and touches it at θ. The penalty needs none: the step minimises
    ḡ(θ) + λ|θ|₁.
    """

    def __init__(self, n_features, penalty):
        self.theta = np.zeros(n_features)
        self.penalty = penalty
        self.surrogate = Quadratic(0.0, np.zeros(n_features), 0.0)

    def majorize(self, sample):
        X, y = sample
        theta = self.theta
        curvature = np.linalg.norm(X, 2) ** 2 / 4 / len(X)
        gradient = -(y / (1 + np.exp(y * (X @ theta)))) @ X / len(X)
        constant = loss(theta, X, y) - gradient @ theta + curvature / 2 * theta @ theta
        return Quadratic(constant, curvature * theta - gradient, curvature)

    def aggregate(self, surrogate, weight):
        self.surrogate.mix(surrogate, weight)

    def minimize(self):
        shrunk = reference.soft_threshold(self.surrogate.slope, self.penalty)
        self.theta = shrunk / self.surrogate.curvature


def loss(theta, X, y):
    return np.mean(np.logaddexp(0, -y * (X @ theta)))


def make_data(n_samples=200, n_features=8):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_samples, n_features))
    truth = np.array([2.0, -1.5, 1.0, 0.5, 0, 0, 0, 0])[:n_features]
    y = np.where(rng.random(n_samples) < 1 / (1 + np.exp(-X @ truth)), 1, -1)
    return X, y


def objective(theta, X, y, penalty):
    return loss(theta, X, y) + penalty * np.abs(theta).sum()


def best_logistic_regression(X, y, penalty):
    """θ of scikit-learn, to many digits."""
    # "penalty" became "l1_ratio" in scikit-learn 1.8.
    is_old = LogisticRegression().get_params().get("penalty") == "l2"
    model = LogisticRegression(
        **({"penalty": "l1"} if is_old else {"l1_ratio": 1}),
        C=1 / (penalty * len(X)),
        solver="saga",
        fit_intercept=False,
        tol=1e-10,
        max_iter=10_000,
        random_state=0,
    )
    return model.fit(X, y).coef_[0]


def shuffled_batches(X, y, n_batches, n_epochs):
    rng = np.random.default_rng(1)
    for _ in range(n_epochs):
        for rows in np.array_split(rng.permutation(len(X)), n_batches):
            yield X[rows], y[rows]


def test_sparse_logistic_regression_converges():
    X, y = make_data()
    penalty, n_batches = 0.02, 10
    best = objective(best_logistic_regression(X, y, penalty), X, y, penalty)
    instance = SparseLogisticRegression(X.shape[1], penalty)
    batches = shuffled_batches(X, y, n_batches, n_epochs=400)
    gaps = [objective(instance.theta, X, y, penalty) / best - 1]
    # An exact instance: any exponent in (3/4, 1) will do. The curvature is far above
    # that of the loss, so steps are short, and the smallest exponent is the fastest.
    for t, _ in enumerate(samm.samm(instance, batches, lambda t: t**-0.76), start=1):
        if t % (100 * n_batches) == 0:
            gaps.append(objective(instance.theta, X, y, penalty) / best - 1)
    assert len(gaps) == 5
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 0.4  # there was something to learn
    assert -1e-9 < gaps[-1] < 1e-3
    zeros = best_logistic_regression(X, y, penalty) == 0
    assert zeros.any()
    np.testing.assert_array_equal(instance.theta == 0, zeros)


thetas = st.lists(st.floats(-5, 5), min_size=8, max_size=8).map(np.array)


@given(thetas, thetas, st.integers(0, 190), st.integers(1, 10))
def test_its_surrogate_majorizes_the_loss_and_touches_it(theta, other, start, size):
    X, y = make_data()
    X, y = X[start : start + size], y[start : start + size]
    instance = SparseLogisticRegression(8, 0.02)
    instance.theta = theta
    surrogate = instance.majorize((X, y))
    assert surrogate(theta) == pytest.approx(loss(theta, X, y), abs=1e-9)
    assert surrogate(other) >= loss(other, X, y) - 1e-9
    step = 1e-6 * (other - theta)  # tangent, too
    rise = surrogate(theta + step) - surrogate(theta - step)
    expected = loss(theta + step, X, y) - loss(theta - step, X, y)
    assert rise == pytest.approx(expected, abs=1e-9)


def test_its_iterate_minimises_the_mean_of_its_surrogates():
    X, y = make_data()
    instance = SparseLogisticRegression(8, 0.02)
    batches = shuffled_batches(X, y, n_batches=10, n_epochs=1)
    surrogates = list(samm.samm(instance, batches, lambda t: 1 / t))

    def mean(theta):
        values = [surrogate(theta) for surrogate in surrogates]
        return np.mean(values) + 0.02 * np.abs(theta).sum()

    rng = np.random.default_rng(0)
    for size in (1e-3, 0.1, 1):
        other = instance.theta + size * rng.standard_normal(8)
        assert mean(instance.theta) < mean(other)


class Diary:
    """Writes down what the loop does with it."""

    def __init__(self):
        self.calls = []

    def majorize(self, sample):
        self.calls.append(f"majorize {sample}")
        return f"surrogate of {sample}"

    def aggregate(self, surrogate, weight):
        self.calls.append(f"aggregate {surrogate} {weight}")

    def minimize(self):
        self.calls.append("minimize")


def test_step_majorizes_aggregates_minimizes():
    diary = Diary()
    assert samm.step(diary, "x", 0.5) == "surrogate of x"
    assert diary.calls == ["majorize x", "aggregate surrogate of x 0.5", "minimize"]


def test_weights_count_from_one_and_samples_are_taken_one_by_one():
    diary, taken = Diary(), []

    def endless():
        for sample in range(10**9):
            taken.append(sample)
            yield sample

    steps = samm.samm(diary, endless(), lambda t: 1 / t)
    assert taken == []
    assert list(islice(steps, 2)) == ["surrogate of 0", "surrogate of 1"]
    assert taken == [0, 1]
    weights = [call.split()[-1] for call in diary.calls if "aggregate" in call]
    assert weights == ["1.0", "0.5"]


def make_factorization(X, team, **settings):
    problem = make_problem(0.1, 1.0, 0.5, False, False)
    rng = np.random.default_rng(0)
    atoms = problem.constraint.rescale(rng.standard_normal((4, X.shape[1])))
    state = State.start(atoms, problem.constraint, rng, MaskSampler(X.shape[1]))
    return Factorization(problem, Settings(**settings), state, team)


@pytest.mark.parametrize("estimator", ["masked", "averaged", "gram", "exact"])
def test_factorization_is_an_instance(estimator):
    X = np.random.default_rng(1).standard_normal((60, 20))
    masks, rng = MaskSampler(20), np.random.default_rng(2)
    samples = [
        (Batch(X, rows, rows), masks.draw(2, rng))
        for rows in np.split(np.arange(60), 12)
    ]
    with Team(2) as team:
        by_step, by_frame = (
            make_factorization(X, team, code_estimator=estimator) for _ in range(2)
        )
        schedule, weights, steps = by_step.settings.schedule, [], []
        for t, sample in enumerate(samples, start=1):
            weights.append(schedule.weight(t, by_step.state.pace))
            steps.append(by_step.step(*sample))
        frame = list(samm.samm(by_frame, samples, lambda t: weights[t - 1]))
    for ours, theirs in zip(steps, frame, strict=True):
        np.testing.assert_array_equal(ours.codes.dense, theirs.codes.dense)
        assert ours.objective == theirs.objective
    for letter in ("D", "B", "C", "norms"):
        ours, theirs = (getattr(s.state, letter) for s in (by_step, by_frame))
        np.testing.assert_array_equal(ours, theirs)
    assert np.any(by_step.state.D != make_factorization(X, team).state.D)


def test_factorization_minimizes_what_was_aggregated():
    X = np.random.default_rng(1).standard_normal((10, 20))
    with Team(1) as team:
        solver = make_factorization(X, team)
        with pytest.raises(AssertionError, match="aggregate comes before minimize"):
            solver.minimize()
        everything = Mask(np.arange(20), 20, 1.0)
        samm.step(solver, (Batch.of(X), everything), 1.0)
        with pytest.raises(AssertionError, match="aggregate comes before minimize"):
            solver.minimize()
