"""A dictionary pass descends on the surrogate and never leaves the ball."""

import threading

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from somf.kernels.projection import CHUNK
from somf.problem import AtomConstraint
from somf.solver.dictionary import BLOCK, GROUP, DictionaryPass
from somf.solver.workspace import Workspace
from somf.threads import Team

FLOATS = [np.float32, np.float64]

# Relative rounding of a pass.
SLACK = {np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-9}


@pytest.fixture(scope="module", autouse=True)
def threads_for_small_passes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("somf.solver.dictionary.FEWEST", 1)
        yield


def update_atoms(constraint, D, B, C, norms, order, team, done=None):
    DictionaryPass(constraint, D, B, C, norms, order, team, Workspace(), done).run()


class Case:
    """A dictionary in the ball and the surrogate of codes, of which some are unused."""

    def __init__(self, seed, k, p, q, l1_ratio, positive=False, dtype=np.float64):
        rng = np.random.default_rng(seed)
        self.constraint = AtomConstraint(l1_ratio, positive)
        noise = rng.standard_normal((k, p)).astype(dtype)
        # Some atoms on the boundary of the ball, some inside, some outgrown.
        size = rng.choice([0.1, 1, 1, 3], (k, 1))
        self.D = self.constraint.project(self.constraint.rescale(noise) * size)
        self.D = self.D.astype(dtype)
        codes = rng.standard_normal((2 * k + 3, k)) * (rng.random((2 * k + 3, k)) < 0.6)
        codes[:, rng.random(k) < 0.2] = 0
        X = codes @ rng.standard_normal((k, p)) + rng.standard_normal((2 * k + 3, p))
        self.B = (codes.T @ X / len(X)).astype(dtype)
        self.C = (codes.T @ codes / len(X)).astype(dtype)
        self.features = np.sort(rng.choice(p, q, replace=False))
        self.order = rng.permutation(k)

    def update(self, n_threads=1, n_passes=1):
        """Returns the new dictionary and the norms that were carried along."""
        D, norms = self.D.copy(), self.constraint.norms(self.D)
        observed = np.ascontiguousarray(D[:, self.features])
        B = np.ascontiguousarray(self.B[:, self.features])
        with Team(n_threads) as team:
            for _ in range(n_passes):
                args = observed, B, self.C, norms, self.order, team
                update_atoms(self.constraint, *args)
        D[:, self.features] = observed
        return D, norms

    def surrogate(self, D):
        """½ tr(Dᵀ D C) − tr(Dᵀ B), with atoms as rows."""
        D, B, C = (array.astype(float) for array in (D, self.B, self.C))
        return np.sum((D @ D.T) * C) / 2 - np.sum(D * B)


@st.composite
def cases(draw, dtype=None):
    """Any shape: one atom, one feature, more atoms than a block, hidden features."""
    k = draw(st.integers(1, 6) | st.sampled_from([BLOCK, BLOCK + 1, 2 * GROUP + 3]))
    p = draw(st.integers(1, 12) | st.sampled_from([300, CHUNK + 1]))
    return Case(
        draw(st.integers(0, 10_000)),
        k,
        p,
        draw(st.integers(1, p)),
        draw(st.sampled_from([0.0, 0.3, 1.0])),
        draw(st.booleans()),
        dtype or draw(st.sampled_from(FLOATS)),
    )


@given(cases())
def test_surrogate_does_not_rise(case):
    D, _ = case.update()
    before, after = case.surrogate(case.D), case.surrogate(D)
    assert after <= before + 1e-2 * SLACK[D.dtype] * (1 + abs(before))


@given(cases())
def test_atoms_stay_in_the_ball(case):
    D, norms = case.update(n_passes=3)
    assert np.all(case.constraint.norms(D) <= 1 + 0.02 * SLACK[D.dtype])
    assert np.all(norms <= 1 + 0.02 * SLACK[D.dtype])
    assert not case.constraint.positive or np.all(D >= 0)


@given(cases())
def test_carried_norms_are_the_norms(case):
    D, norms = case.update(n_passes=3)
    expected = [
        reference.enet_norm(d, case.constraint.l1_ratio) for d in D.astype(float)
    ]
    np.testing.assert_allclose(norms, expected, rtol=0, atol=0.02 * SLACK[D.dtype])


@given(cases())
def test_hidden_features_and_unused_atoms_are_untouched(case):
    D, norms = case.update()
    hidden = np.setdiff1d(np.arange(D.shape[1]), case.features)
    np.testing.assert_array_equal(D[:, hidden], case.D[:, hidden])
    unused = np.diag(case.C) == 0
    np.testing.assert_array_equal(D[unused], case.D[unused])
    before = case.constraint.norms(case.D)
    np.testing.assert_array_equal(norms[unused], before[unused])


@given(cases())
def test_equals_the_reference(case):
    norms = case.constraint.norms(case.D)
    expected, expected_norms, _ = reference.partial_dictionary_update(
        case.D.T,
        case.B.T.astype(float),
        case.C.astype(float),
        norms,
        np.zeros_like(case.C, dtype=float),
        case.features,
        [case.order],
        case.constraint.l1_ratio,
        case.constraint.positive,
    )
    D, norms = case.update()
    slack = SLACK[D.dtype]
    np.testing.assert_allclose(D.T, expected, rtol=0, atol=slack)
    np.testing.assert_allclose(norms, expected_norms, rtol=0, atol=slack)


@pytest.mark.slow
@settings(max_examples=30)
@given(cases(np.float64))
def test_a_minimum_over_each_atom_is_where_a_pass_ends(case):
    """After enough passes, no atom can improve alone: the pass changes nothing."""
    case.D, _ = case.update(n_passes=300)
    before = case.surrogate(case.D)
    D, _ = case.update()
    assert before - case.surrogate(D) <= 1e-4 * (1 + abs(before))


@pytest.mark.parametrize("l1_ratio", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dtype", FLOATS)
def test_threads_do_not_change_the_pass(dtype, l1_ratio):
    case = Case(0, 20, 9 * CHUNK + 7, 8 * CHUNK + 5, l1_ratio, dtype=dtype)
    one, norms_one = case.update(n_threads=1)
    # The products are cut at other places: other bits, the same numbers.
    atol = SLACK[one.dtype]
    for n_threads in (2, 3):
        more, norms_more = case.update(n_threads)
        np.testing.assert_allclose(more, one, rtol=0, atol=atol)
        np.testing.assert_allclose(norms_more, norms_one, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", FLOATS)
def test_lone_caller_gives_the_bits_of_the_team(dtype):
    """While the other threads are busy, the caller does their share as they would."""
    case = Case(1, 2 * GROUP + 5, 6 * CHUNK, 5 * CHUNK, 0.5, dtype=dtype)
    release = threading.Event()

    def update(team):
        D = np.ascontiguousarray(case.D[:, case.features])
        B = np.ascontiguousarray(case.B[:, case.features])
        norms = case.constraint.norms(case.D)
        update_atoms(case.constraint, D, B, case.C, norms, case.order, team)
        return D, norms

    with Team(2) as team:
        together = update(team)
        team.start(lambda: release.wait(60))
        alone = update(team)
        assert team.busy  # or nothing has been shown
        release.set()
        team.finish()
    for ours, theirs in zip(alone, together, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_atoms_are_reported_once_on_every_feature(n_threads):
    case = Case(2, 2 * GROUP + 3, 5 * CHUNK, 5 * CHUNK, 0.5)
    reported = np.zeros(case.D.shape, int)
    norms = case.constraint.norms(case.D)

    def done(atoms, start, stop):
        reported[atoms, start:stop] += 1

    with Team(n_threads) as team:
        args = case.D, case.B, case.C, norms, case.order, team
        update_atoms(case.constraint, *args, done)
    np.testing.assert_array_equal(reported, 1)


def test_failure_in_one_thread_ends_the_pass():
    """The others wait for its sums, which will not come."""
    case = Case(3, 8, 5 * CHUNK, 5 * CHUNK, 0.5)
    norms = case.constraint.norms(case.D)
    main = threading.get_ident()

    def done(atoms, start, stop):
        if threading.get_ident() != main:
            raise MemoryError("no room left")

    case.order = np.tile(case.order, 40)  # several groups: the main thread goes on
    with Team(2) as team:
        args = case.D, case.B, case.C, norms, case.order, team
        with pytest.raises(MemoryError, match="no room left"):
            update_atoms(case.constraint, *args, done)


def test_outgrown_hidden_part_leaves_no_room():
    """A norm that has drifted above 1 must not make the radius negative."""
    case = Case(0, 3, 10, 4, 1.0)
    observed = np.ascontiguousarray(case.D[:, case.features])
    B = np.ascontiguousarray(case.B[:, case.features])
    case.C[:] = np.eye(3)
    norms = case.constraint.norms(observed) + 1 + 1e-6
    with Team(1) as team:
        update_atoms(case.constraint, observed, B, case.C, norms, case.order, team)
    np.testing.assert_array_equal(observed, np.zeros((3, 4)))
    np.testing.assert_allclose(norms, 1 + 1e-6)


def test_drifted_norm_of_visible_atoms_does_not_widen_the_ball():
    """A carried norm below that of the observed part counts as nothing hidden."""
    case = Case(0, 3, 10, 10, 1.0)
    D = case.D.copy()
    case.C[:] = np.eye(3)
    norms = case.constraint.norms(D) - 0.5
    with Team(1) as team:
        B = 100 * case.B
        update_atoms(case.constraint, D, B, case.C, norms, case.order, team)
    assert np.all(case.constraint.norms(D) <= 1 + 1e-12)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("l1_ratio", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", FLOATS)
def test_rescaled_rows_have_norm_one(dtype, l1_ratio, positive):
    constraint = AtomConstraint(l1_ratio, positive)
    rng = np.random.default_rng(0)
    rows = np.abs(rng.standard_normal((4, 7))) * np.array([[1e-20], [1], [1e20], [0]])
    rows = rows.astype(dtype)
    before = rows.copy()
    scaled = constraint.rescale(rows)
    np.testing.assert_array_equal(rows, before)
    assert scaled.dtype == dtype
    atol = 1e-6 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(constraint.norms(scaled), [1, 1, 1, 0], atol=atol)
    direction = scaled / np.linalg.norm(scaled[:3], axis=1).max()
    cosine = np.sum(direction[:3] * rows[:3], axis=1)
    cosine /= np.linalg.norm(direction[:3], axis=1) * np.linalg.norm(
        rows[:3].astype(float), axis=1
    )
    np.testing.assert_allclose(cosine, 1, atol=atol)


def test_rescaled_rows_are_feasible_if_positive():
    constraint = AtomConstraint(0.5, True)
    scaled = constraint.rescale(np.array([[-9.0, 2.0, 1.0], [-1.0, -3.0, 0.0]]))
    np.testing.assert_allclose(constraint.norms(scaled), [1, 0])  # of what is left
    assert scaled[0, 0] == 0
    assert scaled[0, 1] == pytest.approx(2 * scaled[0, 2])
    np.testing.assert_array_equal(scaled[1], np.zeros(3))
