"""Batches that are taken in pieces while the dictionary has a long way to go."""

import numpy as np
import pytest
from test_checkpoints import assert_same, stop_after

from somf import SOMF
from somf.choices import choose
from somf.sampling import SampleOrder
from somf.solver import schedule
from somf.solver.schedule import FAST_STEPS, LONG_WAY, NOTICE, Pace, most_pieces
from somf.sources import as_source
from somf.sources.ahead import DEPTH
from somf.threads import Team

SETTINGS = {"n_components": 8, "alpha": 1.0, "n_epochs": 12, "tol": 0}
SETTINGS |= {"random_state": 0, "reduction": 2}
N_SAMPLES = 430


@pytest.fixture
def small_pieces(monkeypatch):
    """Let small batches be cut as large ones are, and soon."""
    monkeypatch.setattr(schedule, "SMALLEST_PIECE", 10)
    monkeypatch.setattr(schedule, "LONG_WAY", 4)


@pytest.fixture
def X():
    """Samples that are mixtures of atoms: none is close to an atom."""
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((N_SAMPLES, 8)) * (rng.random((N_SAMPLES, 8)) < 0.4)
    return 3 * codes @ rng.standard_normal((8, 300))


def sizes_of_batches(model):
    """How many samples each iteration had, from its part of the epoch."""
    passed = np.diff(model.trace_["epoch"], prepend=0)
    return np.round(passed * N_SAMPLES).astype(int)


def test_a_dictionary_that_moves_far_gets_small_batches(small_pieces, X):
    model = SOMF(**SETTINGS).fit(X)
    sizes = sizes_of_batches(model)
    assert sizes[0] == 143  # three batches an epoch
    assert sizes.min() == 36  # four pieces
    assert model.state_.n_seen == 12 * N_SAMPLES
    assert len(sizes) == model.n_steps_ > 12 * 3
    assert model.n_iter_ == 12
    assert model.stop_reason_ == "n_epochs=12 epochs are done"


@pytest.mark.parametrize("fixed", [{"batch_size": 200}, {"weights": "paper"}])
def test_batches_stay_whole_if_the_user_chose_them(small_pieces, X, fixed):
    assert set(sizes_of_batches(SOMF(**SETTINGS | fixed).fit(X))) == {143}


def test_batches_stay_whole_where_pieces_would_read_too_much(small_pieces, X):
    source = as_source(X)
    source.feature_chunk = 50
    masked = SETTINGS | {"aggregation": "masked"}
    for settings, expected in ((SETTINGS, 4), (masked, 1)):
        chosen = choose(SOMF(**settings).get_params(), source)
        assert chosen.most_pieces == expected


def test_read_ahead_gives_the_same_bits(small_pieces, X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    here = SOMF(**SETTINGS).fit(X)
    read = SOMF(**SETTINGS).fit(tmp_path / "X.npy")
    assert_same(read, here)
    assert DEPTH < NOTICE


@pytest.mark.parametrize("stop", [9, 16, 17, 18])  # of those some are inside a batch
def test_resumed_in_a_batch_is_never_stopped(small_pieces, X, tmp_path, stop):
    whole = SOMF(**SETTINGS).fit(X)
    stop_after(stop, SOMF(**SETTINGS, checkpoint=tmp_path), X)
    assert_same(SOMF.resume(tmp_path, X), whole)


def test_objective_of_an_epoch_is_the_mean_over_its_samples(small_pieces, X):
    model = SOMF(**SETTINGS).fit(X)
    last = model.trace_["epoch"] > 11 + 1e-9
    sizes = sizes_of_batches(model)[last]
    mean = np.average(model.trace_["objective"][last], weights=sizes)
    assert model.objective_ == pytest.approx(mean, rel=1e-3)  # sizes are rounded


def test_atoms_have_as_many_samples_to_be_used_by(X):
    model = SOMF(**SETTINGS | {"n_epochs": 1}).fit(X)
    model.state_.pace = Pace(pieces=4, pieces_before=4)
    model.state_.idle[:] = 0
    nobody = np.zeros(8, bool)
    with Team(1) as team:
        solver = model._solver(team, idle_limit=3)
        n_dead = [len(solver.idle_atoms(nobody, 100)) for _ in range(12)]
    assert n_dead == [0] * 11 + [8]


# -- the order of samples ------------------------------------------------------------


def test_pieces_are_the_batch():
    whole, cut = SampleOrder(50, 20), SampleOrder(50, 20)
    rng, same_rng = np.random.default_rng(0), np.random.default_rng(0)
    for n_pieces in (1, 3, 2, 4, 50, 1):
        batch = whole.draw(rng)
        # Only what is wanted at the beginning of a batch counts.
        pieces = [cut.draw(same_rng, n_pieces)]
        while cut.next_piece:
            pieces.append(cut.draw(same_rng, 7))
        assert len(pieces) == min(n_pieces, len(batch))
        assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
        np.testing.assert_array_equal(np.sort(np.concatenate(pieces)), batch)
        assert cut.at_epoch_end == whole.at_epoch_end
        assert cut.passed == whole.passed


def test_an_epoch_ends_with_the_last_piece():
    order, rng = SampleOrder(20, 10), np.random.default_rng(0)
    ends = [order.draw(rng, 2) is None or order.at_epoch_end for _ in range(8)]
    assert ends == [False, False, False, True] * 2


# -- when --------------------------------------------------------------------------


def paced(falls, most=4):
    """Return a pace after means that fall by these parts while t doubles."""
    pace, end, level = Pace(), 1, 1.0
    pace.note(end, level, most)
    for fall in falls:
        level *= 1 - fall
        for t in range(end + 1, 2 * end + 1):
            pace.note(t, level, most)
        end *= 2
    return pace, end


def test_pieces_while_the_objective_still_falls_after_a_while():
    pace, t = paced([0.1] * 3)
    assert t < LONG_WAY
    assert pace.pieces == 1
    assert pace.exponent == schedule.MOVING_U
    pace, t = paced([0.1] * 4)
    assert t == LONG_WAY
    assert pace.pieces == 4
    assert pace.exponent == schedule.LONG_WAY_U
    pace, t = paced([0.1] * 4 + [0.025])
    assert pace.pieces == 2
    pace, _ = paced([0.1] * 5 + [0.0])
    assert pace.pieces == 1
    assert pace.exponent == schedule.SETTLED_U


def test_batches_change_only_when_all_that_was_read_ahead_is_used():
    pace, t = paced([0.1] * 4)
    assert [pace.pieces_at(t + i) for i in (1, NOTICE - 1, NOTICE, 100)] == [1, 1, 4, 4]


def test_a_rise_that_is_made_good_is_no_progress():
    pace, _ = paced([0.1] * 5 + [-0.5, 0.3])
    assert pace.pieces == 1
    assert pace.exponent == schedule.SETTLED_U


def test_no_pieces_when_the_run_is_old():
    pace, t = paced([0.1] * 10)
    assert t == FAST_STEPS
    assert pace.pieces == 1


def test_batches_that_cannot_be_cut():
    pace, _ = paced([0.1] * 5, most=1)
    assert pace.pieces == 1
    assert pace.exponent == schedule.MOVING_U


@pytest.mark.parametrize(
    ("batch_size", "n_components", "expected"),
    [(200, 70, 1), (256, 64, 2), (1536, 128, 4), (800, 128, 3), (100, 5, 1)],
)
def test_most_pieces(batch_size, n_components, expected):
    assert most_pieces(batch_size, n_components) == expected


def test_workers_with_a_head_start_take_whole_batches():
    source = as_source(np.ones((1000, 4000), np.float32))
    parameters = SOMF(50).get_params()
    assert choose(parameters, source).most_pieces > 1
    there = choose(parameters, source, n_workers=2)
    assert (there.head_start, there.most_pieces) == (True, 1)
    given = choose(parameters | {"reduction": 12}, source, n_workers=2)
    assert not given.head_start
