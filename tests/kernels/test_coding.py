"""Codes are the minimisers that their optimality conditions describe."""

import numpy as np
import pytest
import reference
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from somf.kernels.coding import _solve_active, solve_codes
from somf.problem import CodePenalty
from somf.threads import Team

FLOATS = [np.float32, np.float64]

# name: l1_ratio, positive
PENALTIES = {
    "l1": (1.0, False),
    "elastic net": (0.6, False),
    "positive l1": (1.0, True),
    "positive elastic net": (0.6, True),
    "positive ridge": (0.0, True),
    "ridge": (0.0, False),
}

# Violation of the optimality conditions, relative to the largest correlation.
SLACK = {np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-9}

penalties = st.sampled_from(sorted(PENALTIES)).map(PENALTIES.get)
alphas = st.sampled_from([1e-3, 0.05, 0.5, 10.0])


@st.composite
def problems(draw, zero_atoms=True, dtype=None):
    """(G, beta, energy) of real samples and atoms; G is shared or one a sample.

    Fewer features than atoms, atoms that coincide and atoms that are zero make it
    singular.
    """
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    dtype = dtype or draw(st.sampled_from(FLOATS))
    n, k, p = draw(st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(1, 12)))
    D = rng.standard_normal((draw(st.sampled_from([1, n])), p, k))
    X = 3 * rng.standard_normal((n, p))
    if draw(st.booleans()):
        D[..., rng.integers(k)] = D[..., rng.integers(k)]
    if zero_atoms and draw(st.booleans()):
        D[..., rng.integers(k)] = 0
    G = np.einsum("nfj,nfk->njk", D, D)
    beta = np.einsum("nfj,nf->nj", np.broadcast_to(D, (n, p, k)), X)
    return G.astype(dtype), beta.astype(dtype), np.sum(X**2, axis=1)


def solve(penalty, G, beta, energy, start=None, **options):
    return solve_and_judge(penalty, G, beta, energy, start, **options)[0]


def solve_and_judge(
    penalty, G, beta, energy, start=None, tol=0.0, n_threads=1, max_sweeps=20_000
):
    """Return codes and losses."""
    codes = np.zeros_like(beta) if start is None else start.astype(beta.dtype)
    with Team(n_threads) as team:
        losses = penalty.solve(
            G, beta, energy, codes, team, tol=tol, max_sweeps=max_sweeps
        )
    return codes, losses


def value(penalty, G, beta, codes):
    """½aᵀGa − βᵀa + alpha·Ω(a) of every sample, in float64."""
    G, beta, codes = (array.astype(float) for array in (G, beta, codes))
    G = np.broadcast_to(G, (len(beta), *G.shape[1:]))
    quadratic = np.einsum("nj,njk,nk->n", codes, G, codes) / 2
    return quadratic - np.sum(beta * codes, axis=1) + penalty(codes)


def assert_optimal(penalty, G, beta, codes):
    """c = β − Ga − l2·a is l1·sign(a_j) where a_j ≠ 0, and at most l1 elsewhere."""
    slack = SLACK[codes.dtype]
    assert np.isfinite(codes).all()
    assert not penalty.positive or np.all(codes >= 0)
    for n in range(len(beta)):
        b, a, gram = (x.astype(float) for x in (beta[n], codes[n], G[n % len(G)]))
        c = b - gram @ a - penalty.l2 * a
        # Rounding is relative to the terms of c, which are large where atoms coincide.
        atol = slack * (np.abs(b).max() + np.abs(gram).max() * np.abs(a).max())
        used = a != 0
        np.testing.assert_allclose(
            c[used], penalty.l1 * np.sign(a[used]), rtol=0, atol=atol
        )
        excess = c if penalty.positive else np.abs(c)
        assert np.all(excess <= penalty.l1 + atol)


@given(problems(), penalties, alphas)
def test_codes_satisfy_the_optimality_conditions(problem, kind, alpha):
    penalty = CodePenalty(alpha, *kind)
    assert_optimal(penalty, *problem[:2], solve(penalty, *problem))


# The reference is slow where problems are singular: few examples, and no shrinking.
@settings(max_examples=30, phases=[Phase.generate])
@given(problems(dtype=np.float64), penalties, alphas)
def test_codes_are_as_good_as_those_of_the_reference(problem, kind, alpha):
    G, beta, energy = problem
    penalty = CodePenalty(alpha, *kind)
    expected = np.array(
        [
            reference.solve_code(G[n % len(G)], b, alpha, *kind)
            for n, b in enumerate(beta)
        ]
    )
    codes = solve(penalty, G, beta, energy)
    ours, theirs = (value(penalty, G, beta, a) for a in (codes, expected))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9 * energy.max())
    if penalty.l2 > 0:  # then the minimiser is unique
        atol = 1e-6 * np.abs(expected).max()
        np.testing.assert_allclose(codes, expected, rtol=0, atol=atol)


@given(problems(zero_atoms=False), penalties, alphas, st.integers(0, 100))
def test_any_start_leads_to_the_same_solution(problem, kind, alpha, seed):
    G, beta, energy = problem
    penalty = CodePenalty(alpha, *kind)
    cold = solve(penalty, G, beta, energy)
    rng = np.random.default_rng(seed)
    starts = (-cold, cold, 3 * rng.standard_normal(beta.shape), cold + 1e-3)
    for start in starts:
        warm = solve(penalty, G, beta, energy, start)
        assert_optimal(penalty, G, beta, warm)
        ours, theirs = (value(penalty, G, beta, a) for a in (warm, cold))
        atol = SLACK[beta.dtype] * energy.max()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


@given(problems(), penalties, alphas, st.integers(0, 100))
def test_codes_of_zero_atoms_are_zero_from_any_start(problem, kind, alpha, seed):
    G, beta, energy = problem
    penalty = CodePenalty(alpha, *kind)
    start = np.random.default_rng(seed).standard_normal(beta.shape)
    codes = solve(penalty, G, beta, energy, start)
    assert_optimal(penalty, G, beta, codes)
    dead = np.diagonal(G, axis1=1, axis2=2) == 0
    assert not codes[np.broadcast_to(dead, codes.shape)].any()


@pytest.mark.parametrize("seed", range(50))
def test_a_solve_descends_within_its_orthant(seed):
    """Also where the minimum over the support has other signs: it stops on the way."""
    rng = np.random.default_rng(seed)
    k, penalty = rng.integers(2, 7), CodePenalty(0.1, 1.0)
    D = rng.standard_normal((12, k)) + 2 * rng.standard_normal((12, 1))
    G, beta = D.T @ D, 3 * rng.standard_normal(12) @ D
    a = rng.standard_normal(k)
    before, active = a.copy(), np.arange(k)
    room = np.empty((k, k)), np.empty(k)
    n_active = _solve_active(a, beta, G, 0.1, 0.0, active, k, *room)
    assert np.all(a * before >= 0)
    np.testing.assert_array_equal(np.flatnonzero(a), active[:n_active])
    old, new = (value(penalty, G[None], beta[None], x[None]) for x in (before, a))
    assert new < old
    if n_active == k:  # it went all the way
        np.testing.assert_allclose(G @ a, beta - 0.1 * np.sign(a), atol=1e-9)


@pytest.mark.parametrize("kind", PENALTIES)
def test_samples_and_threads_do_not_meet(kind):
    rng = np.random.default_rng(0)
    X, D = rng.standard_normal((9, 20)), rng.standard_normal((20, 6))
    penalty = CodePenalty(0.5, *PENALTIES[kind])
    G, beta, energy = (D.T @ D)[None], X @ D, np.sum(X**2, axis=1)
    together = solve(penalty, G, beta, energy, n_threads=2)
    one_by_one = [
        solve(penalty, G, beta[n : n + 1], energy[n : n + 1])[0] for n in range(9)
    ]
    repeated = solve(penalty, np.repeat(G, 9, axis=0), beta, energy)
    # Linear systems are solved for many samples at a time: other bits.
    np.testing.assert_allclose(together, one_by_one, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(together, repeated, rtol=1e-12, atol=1e-14)


def test_descent_leaves_other_samples_alone():
    rng = np.random.default_rng(0)
    X, D = rng.standard_normal((5, 20)), rng.standard_normal((20, 6))
    codes = np.full((5, 6), 7.0)
    arguments = (D.T @ D)[None], X @ D, np.sum(X**2, axis=1), codes
    losses = np.full(5, -1.0)
    solve_codes(*arguments, losses, 0.5, 0.0, False, 0.0, 1000, 1, 3)
    assert np.all(codes[[0, 3, 4]] == 7)
    assert np.all(losses[[0, 3, 4]] == -1)
    assert np.all(codes[1:3] != 7)
    assert np.all(losses[1:3] > 0)


def test_strong_penalty_gives_zero():
    rng = np.random.default_rng(0)
    X, D = rng.standard_normal((5, 20)), rng.standard_normal((20, 6))
    G, beta, energy = (D.T @ D)[None], X @ D, np.sum(X**2, axis=1)
    alpha = np.abs(beta).max()
    for start in (np.zeros((5, 6)), np.ones((5, 6))):
        above = solve(CodePenalty(alpha, 1.0), G, beta, energy, start)
        below = solve(CodePenalty(0.99 * alpha, 1.0), G, beta, energy, start)
        assert not above.any()
        assert np.count_nonzero(below) == 1


@given(
    problems(zero_atoms=False),
    penalties,
    alphas,
    st.sampled_from([1e-1, 1e-2, 1e-4]),
    st.integers(0, 100),
)
def test_tolerance_bounds_the_distance_to_the_optimum(problem, kind, alpha, tol, seed):
    G, beta, energy = problem
    penalty = CodePenalty(alpha, *kind)
    best = value(penalty, G, beta, solve(penalty, G, beta, energy))
    start = np.random.default_rng(seed).standard_normal(beta.shape)
    for codes in (np.zeros_like(beta), start):
        found = solve(penalty, G, beta, energy, codes, tol=tol)
        reached = value(penalty, G, beta, found)
        allowed = np.minimum(tol * (reached + 0.5 * energy), 0.005 * energy)
        rounding = SLACK[beta.dtype] * energy
        assert np.all(reached - best <= allowed + rounding)


def test_tolerance_is_relative_to_what_is_left_of_the_samples():
    """A part of the energy would be a thousand times the loss."""
    rng = np.random.default_rng(0)
    D = np.abs(rng.standard_normal((60, 20))) + 3  # atoms that are all alike
    X = np.abs(rng.standard_normal((40, 20))) @ D.T
    G, beta, energy = (D.T @ D)[None], X @ D, np.sum(X**2, axis=1)
    penalty = CodePenalty(1e-4, 1.0, positive=True)
    best = value(penalty, G, beta, solve(penalty, G, beta, energy)) + 0.5 * energy
    assert np.all(best < 1e-6 * energy)
    found = solve(penalty, G, beta, energy, tol=0.5)
    assert np.all(value(penalty, G, beta, found) + 0.5 * energy <= 2 * best * 1.001)


def test_no_code_is_looser_than_a_part_of_the_energy():
    rng = np.random.default_rng(0)
    D, X = np.abs(rng.standard_normal((30, 20))), np.abs(rng.standard_normal((10, 30)))
    G, beta, energy = (D.T @ D)[None], X @ D, np.sum(X**2, axis=1)
    penalty = CodePenalty(0.1, 1.0, positive=True)
    best = value(penalty, G, beta, solve(penalty, G, beta, energy))
    found = value(penalty, G, beta, solve(penalty, G, beta, energy, tol=100.0))
    assert np.all(found - best <= 0.005 * energy)


@given(
    problems(),
    penalties,
    alphas | st.just(0.0),
    st.sampled_from([0.1, 1e-4, 0.0]),
    st.sampled_from([0, 1, 3, 1000]),
    st.integers(0, 100),
)
def test_losses_are_the_objectives_at_the_codes(
    problem, kind, alpha, tol, max_sweeps, seed
):
    """Wherever the solver stops, and for whichever start."""
    G, beta, energy = problem
    penalty = CodePenalty(alpha, *kind)
    start = np.random.default_rng(seed).standard_normal(beta.shape)
    for where in (None, start):
        codes, losses = solve_and_judge(
            penalty, G, beta, energy, where, tol=tol, max_sweeps=max_sweeps
        )
        square = np.sum(codes.astype(float) ** 2, axis=1)
        atol = SLACK[beta.dtype] * (energy + np.abs(G).max() * square)
        expected = value(penalty, G, beta, codes) + 0.5 * energy
        assert losses.dtype == np.float64
        assert np.all(np.abs(losses - expected) <= atol)


@pytest.mark.slow
@pytest.mark.parametrize("tol", [0.0, 1e-4])
@pytest.mark.parametrize("kind", PENALTIES)
def test_losses_of_many_atoms_in_single_precision(kind, tol):
    """What is left of β has gone through many updates, and may have drifted."""
    rng = np.random.default_rng(0)
    D = rng.standard_normal((60, 100)) + 0.5
    X = 3 * rng.standard_normal((8, 60))
    G, beta = (D.T @ D)[None].astype(np.float32), (X @ D).astype(np.float32)
    energy, penalty = np.sum(X**2, axis=1), CodePenalty(2.0, *PENALTIES[kind])
    for start in (None, rng.standard_normal(beta.shape)):
        codes, losses = solve_and_judge(penalty, G, beta, energy, start, tol=tol)
        expected = value(penalty, G, beta, codes) + 0.5 * energy
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5 * energy.max())


def test_tolerance_stops_early():
    rng = np.random.default_rng(0)
    D, X = rng.standard_normal((30, 20)) + 1, rng.standard_normal((10, 30))
    G, beta, energy = (D.T @ D)[None], X @ D, np.sum(X**2, axis=1)
    penalty = CodePenalty(0.1, 1.0)
    exact = value(penalty, G, beta, solve(penalty, G, beta, energy))
    start = np.ones_like(beta)  # from zero, the path leads there whatever is asked for
    distances = [
        np.max(
            value(penalty, G, beta, solve(penalty, G, beta, energy, start, tol=tol))
            - exact
        )
        for tol in (0.5, 1e-3, 1e-9)
    ]
    assert distances[0] > 1e-7  # else the tests above would be of no use
    assert distances == sorted(distances, reverse=True)


def test_few_of_many_atoms_as_the_reference():
    rng = np.random.default_rng(0)
    k = 256
    D = rng.standard_normal((100, k))
    D /= np.linalg.norm(D, axis=0)
    used = rng.choice(k, (2, 8))
    X = np.array([D[:, j] @ rng.standard_normal(8) for j in used])
    G, beta, energy = (D.T @ D)[None], X @ D, np.sum(X**2, axis=1)
    penalty = CodePenalty(0.3, 1.0)
    codes = solve(penalty, G, beta, energy)
    assert 0 < np.count_nonzero(codes) < 64
    for b, a in zip(beta, codes, strict=True):
        expected = reference.solve_code(G[0], b, 0.3, 1.0)
        np.testing.assert_allclose(a, expected, rtol=0, atol=1e-9)
    G, beta = G.astype(np.float32), beta.astype(np.float32)
    assert_optimal(penalty, G, beta, solve(penalty, G, beta, energy))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["l1", "elastic net", "positive l1"])
def test_many_of_many_atoms(kind, dtype):
    rng = np.random.default_rng(0)
    D = rng.standard_normal((400, 256)) + 0.5  # correlated, as after a few iterations
    X = np.abs(rng.standard_normal((2, 256))) @ D.T
    G, beta = (D.T @ D)[None].astype(dtype), (X @ D).astype(dtype)
    penalty = CodePenalty(0.3, *PENALTIES[kind])
    codes = solve(penalty, G, beta, np.sum(X**2, axis=1))
    assert np.count_nonzero(codes[0]) > 64
    assert_optimal(penalty, G, beta, codes)


def test_nearly_coinciding_atoms():
    rng = np.random.default_rng(0)
    D = rng.standard_normal((50, 1)) + 0.02 * rng.standard_normal((50, 10))
    X = rng.standard_normal((4, 10)) @ D.T
    G, beta, energy = (D.T @ D)[None], X @ D, np.sum(X**2, axis=1)
    penalty = CodePenalty(0.01, 1.0)
    codes = solve(penalty, G, beta, energy)
    assert_optimal(penalty, G, beta, codes)
    single = solve(penalty, G.astype(np.float32), beta.astype(np.float32), energy)
    best, reached = (value(penalty, G, beta, a) for a in (codes, single))
    assert np.all(reached - best <= 1e-6 * energy)


@pytest.mark.parametrize("n_grams", [1, 4])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("alpha", [1e-6, 0.1, 100])
def test_ridge_solves_its_linear_system(alpha, dtype, n_grams):
    rng = np.random.default_rng(0)
    D = rng.standard_normal((n_grams, 30, 6))
    beta = rng.standard_normal((4, 6)).astype(dtype)
    G = np.einsum("nfj,nfk->njk", D, D).astype(dtype)
    codes = solve(CodePenalty(alpha, 0.0), G, beta, np.ones(4), np.full((4, 6), np.nan))
    assert codes.dtype == dtype
    expected = np.linalg.solve(
        G.astype(float) + alpha * np.eye(6), beta.astype(float)[:, :, None]
    )[:, :, 0]
    rtol = 1e-4 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(
        codes, expected, rtol=0, atol=rtol * np.abs(expected).max()
    )


@pytest.mark.parametrize("n_grams", [1, 3])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "damage", ["none", "two coincide", "all coincide", "one zero", "few features"]
)
def test_without_penalty_codes_are_near_least_squares(damage, dtype, n_grams):
    rng = np.random.default_rng(0)
    D = rng.standard_normal((40, 12))
    X = rng.standard_normal((3, 40))
    if damage == "two coincide":
        D[:, 3] = D[:, 7]
    elif damage == "all coincide":
        D[:] = D[:, :1]
    elif damage == "one zero":
        D[:, 5] = 0
    elif damage == "few features":
        D, X = D[:5], X[:, :5]
    D, X = D.astype(dtype), X.astype(dtype)
    G = np.repeat((D.T @ D)[None], n_grams, axis=0)
    codes = solve(CodePenalty(0.0, 0.0), G, X @ D, np.sum(X**2, axis=1))
    assert np.isfinite(codes).all()
    best = np.linalg.lstsq(D.astype(float), X.T.astype(float), rcond=1e-6)[0].T
    slack = 1e-2 if dtype == np.float32 else 1e-8
    residual, least = (np.linalg.norm(X - a @ D.T) for a in (codes, best))
    assert residual <= least + slack * np.linalg.norm(X)
    assert np.linalg.norm(codes) <= 1.01 * np.linalg.norm(best)  # near the least norm


@pytest.mark.parametrize("alpha", [0.0, 0.1])
@pytest.mark.parametrize("kind", PENALTIES)
@pytest.mark.parametrize("n_grams", [1, 2])
def test_zero_dictionary_gives_zero_codes(n_grams, kind, alpha):
    G, beta = np.zeros((n_grams, 4, 4)), np.zeros((2, 4))
    codes = solve(CodePenalty(alpha, *PENALTIES[kind]), G, beta, np.ones(2))
    np.testing.assert_array_equal(codes, np.zeros((2, 4)))


@pytest.mark.parametrize("kind", ["l1", "positive l1", "ridge"])
def test_zero_sample_has_a_zero_code(kind):
    D = np.random.default_rng(0).standard_normal((10, 4))
    penalty = CodePenalty(0.1, *PENALTIES[kind])
    codes = solve(
        penalty, (D.T @ D)[None], np.zeros((1, 4)), np.zeros(1), np.ones((1, 4))
    )
    np.testing.assert_allclose(codes, np.zeros((1, 4)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", PENALTIES)
def test_penalty_of_codes(kind):
    codes = np.array([[1.0, -2.0], [0.0, 0.0]])
    l1_ratio, positive = PENALTIES[kind]
    penalty = CodePenalty(0.5, l1_ratio, positive)
    expected = [0.5 * reference.enet_norm(a, l1_ratio) for a in codes]
    np.testing.assert_allclose(penalty(codes), expected)
