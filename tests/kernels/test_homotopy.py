"""The path of solutions arrives by itself, without the descent that comes after it."""

import numpy as np
import pytest

from somf.kernels.homotopy import follow_path, new_room

# name: l1, l2, positive
PENALTIES = {
    "l1": (0.1, 0.0, False),
    "elastic net": (0.1, 0.05, False),
    "positive l1": (0.1, 0.0, True),
    "positive elastic net": (0.1, 0.05, True),
    "positive ridge": (0.0, 0.05, True),
}


def make_problem(k, p, correlation, seed, dtype=np.float64):
    """(G, β) of a sample and of atoms that share a direction."""
    rng = np.random.default_rng(seed)
    D = rng.standard_normal((p, k)) + correlation * rng.standard_normal((p, 1))
    D /= np.linalg.norm(D, axis=0)
    x = D @ (rng.standard_normal(k) * (rng.random(k) < 0.3)) + 0.1 * rng.normal(size=p)
    beta = D.T @ x
    beta *= np.sign(beta.sum())  # some atom is of use with a positive code
    return (D.T @ D).astype(dtype), beta.astype(dtype)


def follow(G, beta, l1, l2, positive, most=None):
    """Return the code and what `c` holds at the end."""
    a, c = np.zeros_like(beta), beta.copy()
    room = new_room(len(beta), most or len(beta), beta)
    number = beta.dtype.type
    follow_path(a, c, G, number(l1), number(l2), positive, room)
    return a, c


def assert_solves(a, G, beta, l1, l2, positive, atol):
    c = beta - G @ a - l2 * a
    used = a != 0
    assert not positive or np.all(a >= 0)
    np.testing.assert_allclose(c[used], l1 * np.sign(a[used]), rtol=0, atol=atol)
    assert np.all((c if positive else np.abs(c)) <= l1 + atol)


@pytest.mark.parametrize("kind", PENALTIES)
@pytest.mark.parametrize("correlation", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(10))
def test_path_ends_at_the_solution(kind, correlation, seed):
    G, beta = make_problem(40, 60, correlation, seed)
    a, c = follow(G, beta, *PENALTIES[kind])
    assert_solves(a, G, beta, *PENALTIES[kind], atol=1e-9)
    np.testing.assert_allclose(c, beta - G @ a, rtol=0, atol=1e-9)
    assert a.any()


@pytest.mark.parametrize("positive", [False, True])
def test_float32_path_is_as_exact_as_float32(positive):
    for seed in range(10):
        G, beta = make_problem(100, 150, 2.0, seed, np.float32)
        a, _ = follow(G, beta, 0.01, 0.0, positive)
        assert_solves(a, G, beta, 0.01, 0.0, positive, atol=2e-5)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_atoms_that_change_at_the_same_time(positive, seed):
    """Two copies of a problem that do not see each other: all events come in pairs."""
    G, beta = make_problem(20, 22, 3.0, seed)
    both = np.kron(np.eye(2), G), np.tile(beta, 2)
    a, _ = follow(*both, 0.001, 0.0, positive)
    alone, _ = follow(G, beta, 0.001, 0.0, positive)
    np.testing.assert_allclose(a, np.tile(alone, 2), rtol=0, atol=1e-9)


def test_a_dependent_atom_is_left_out_even_if_its_correlation_differs():
    """As with averages of β, which belong to older atoms than G."""
    G, beta = make_problem(10, 30, 0.0, 0)
    twice = np.repeat(np.arange(10), 2)
    slightly_more = np.where(np.arange(20) % 2, 1.01, 1.0)
    a, _ = follow(
        G[np.ix_(twice, twice)], beta[twice] * slightly_more, 0.001, 0.0, False
    )
    assert np.isfinite(a).all()
    assert np.abs(a).max() < 10 * np.abs(beta).max()


def test_an_atom_that_coincides_with_an_active_one_is_left_out():
    G, beta = make_problem(10, 30, 0.0, 0)
    twice = np.repeat(np.arange(10), 2)
    a, _ = follow(G[np.ix_(twice, twice)], beta[twice], 0.05, 0.0, False)
    alone, _ = follow(G, beta, 0.05, 0.0, False)
    np.testing.assert_allclose(a.reshape(10, 2).sum(axis=1), alone, atol=1e-9)
    assert np.count_nonzero(a) == np.count_nonzero(alone) > 1


def test_path_ends_early_where_the_room_does():
    G, beta = make_problem(40, 60, 0.0, 0)
    a, c = follow(G, beta, 1e-3, 0.0, False, most=5)
    assert 1 < np.count_nonzero(a) <= 5
    np.testing.assert_allclose(c, beta - G @ a, rtol=0, atol=1e-9)


@pytest.mark.parametrize("positive", [False, True])
def test_nothing_enters_above_the_largest_correlation(positive):
    G, beta = make_problem(10, 30, 0.0, 0)
    beta = -np.abs(beta)
    l1 = 0.0 if positive else np.abs(beta).max()
    a, _ = follow(G, beta, l1, 0.0, positive)
    assert not a.any()
