"""Weights that satisfy the assumptions of the paper, reductions that end at 1."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from somf.solver.schedule import (
    FAST_STEPS,
    MOST_AUTO,
    MOVING_U,
    PAPER_U,
    PAPER_V,
    REDUCTIONS,
    SETTLED_U,
    WEIGHTS,
    Pace,
    Schedule,
    auto_batch_size,
    auto_reduction,
    looseness,
    warn_outside_theory,
)

exponents = st.floats(11 / 12, 1)
early = st.floats(MOVING_U, SETTLED_U)
counts = st.integers(1, 10**9)


def weights_of(name, u=PAPER_U, early=SETTLED_U):
    """w_t of a run whose pace suggests an exponent."""
    return lambda t: Schedule(name, u=u).weight(t, Pace(early))


@pytest.mark.parametrize("name", WEIGHTS)
def test_first_weight_is_one(name):
    """The first batch replaces the zeros that the surrogate starts from."""
    assert weights_of(name)(1) == 1


@given(st.sampled_from(sorted(WEIGHTS)), exponents, early, counts)
def test_weights_decrease_in_the_unit_interval(name, u, early, t):
    weight = weights_of(name, u, early)
    assert 0 < weight(t + 1) < weight(t) <= 1


@given(exponents, early, counts)
def test_paper_weight(u, early, t):
    assert weights_of("paper", u, early)(t) == pytest.approx(t**-u)


@given(exponents, early, st.integers(1, FAST_STEPS))
def test_fast_weight_forgets_faster_at_first(u, early, t):
    weight = weights_of("fast", u, early)(t)
    assert weight == pytest.approx(t**-early)
    assert weight >= weights_of("paper", u)(t)


@given(exponents, early)
def test_fast_weight_does_not_jump(u, early):
    weight = weights_of("fast", u, early)
    steps = np.arange(FAST_STEPS - 50, FAST_STEPS + 50)
    values = np.array([weight(int(t)) for t in steps])
    # At most the slope of t^−u, between any two neighbours.
    ratios = values[1:] / values[:-1]
    assert np.all(ratios < 1)
    assert np.all(ratios >= (steps[:-1] / steps[1:]) ** u * (1 - 1e-12))


@given(exponents, early, st.integers(FAST_STEPS, 10**9), st.integers(FAST_STEPS, 10**9))
def test_fast_weight_is_proportional_to_the_papers_in_the_end(u, early, s, t):
    fast, paper = weights_of("fast", u, early), weights_of("paper", u)
    assert fast(s) / paper(s) == pytest.approx(fast(t) / paper(t))


def exponent_after(objectives):
    pace = Pace()
    for t, objective in enumerate(objectives, start=1):
        pace.note(t, objective)
    return pace.exponent


@pytest.mark.parametrize(
    ("fall", "expected"),
    [(0.0, 0.6), (-0.5, 0.6), (0.025, 0.45), (0.04, 0.3), (0.5, 0.3)],
)
def test_statistics_are_forgotten_the_sooner_the_faster_the_objective_falls(
    fall, expected
):
    """Means over 5..8 and 9..16 decide; single objectives need not."""
    noise = np.array([0.3, -0.3, 0.1, -0.1])
    before = 7.0 * (1 + noise)
    now = 7.0 * (1 - fall) * (1 + np.tile(noise, 2))
    start = [100.0, 50.0, 20.0, 9.0]
    assert exponent_after([*start, *before, *now]) == pytest.approx(expected)
    almost = exponent_after([*start, *before, *now[:-1]])  # known at a power of two
    assert almost == exponent_after([*start, *before])


def test_pace_does_not_change_when_the_run_is_old():
    pace = Pace()
    for t in range(1, FAST_STEPS + 1):
        pace.note(t, 1.0)
    assert pace.exponent == SETTLED_U
    for t in range(FAST_STEPS + 1, 2 * FAST_STEPS + 1):
        pace.note(t, 0.1)
    assert pace.exponent == SETTLED_U


def test_objectives_of_zero_are_settled():
    assert exponent_after([0.0] * 8) == SETTLED_U


def test_papers_exponents_do_not_warn():
    warn_outside_theory(PAPER_U, PAPER_V)  # a warning is an error here
    assert (PAPER_U, PAPER_V) == (0.917, 0.751)
    assert (Schedule().u, Schedule().v) == (PAPER_U, PAPER_V)


@given(st.floats(0.9171, 0.999), st.floats(0.01, 1))
def test_exponents_inside_the_theory_do_not_warn(u, part):
    warn_outside_theory(u, 0.75 + part * (3 * u - 2 - 0.75))


@pytest.mark.parametrize(
    ("u", "v"),
    [
        (11 / 12, 0.7501),
        (0.9, 0.751),
        (0.6, 0.751),
        (1.0, 0.8),
        (1.5, 0.8),
        (0.95, 0.75),
        (0.95, 0.5),
        (0.95, 0.851),  # 3u − 2 is 0.85
        (0.917, 0.752),
    ],
)
def test_exponents_outside_the_theory_warn(u, v):
    with pytest.warns(UserWarning, match="outside the ranges") as record:
        warn_outside_theory(u, v)
    message = str(record[0].message)
    assert f"weight_exponent={u}" in message
    assert f"sample_weight_exponent={v}" in message
    assert "0.917 and 0.751" in message  # what to take instead


reductions = st.floats(1, 1000)
parts = st.floats(0, 1)


@given(reductions, parts)
def test_constant_reduction(reduction, progress):
    schedule = Schedule(reduction=reduction, reduction_schedule="constant")
    assert schedule.reduction_at(progress) == reduction


@given(st.sampled_from(sorted(REDUCTIONS)), reductions, parts, parts)
def test_reduction_never_rises(name, reduction, one, two):
    at = Schedule(reduction=reduction, reduction_schedule=name).reduction_at
    early, late = sorted([one, two])
    assert 1 <= at(late) <= at(early) <= reduction


@given(reductions)
def test_decreasing_reduction_starts_high_and_ends_at_one(reduction):
    at = Schedule(reduction=reduction, reduction_schedule="decreasing").reduction_at
    assert at(0) == at(0.5) == pytest.approx(reduction)
    assert at(0.9) == at(1) == 1
    assert at(0.7) == pytest.approx(np.sqrt(reduction))  # geometric in between


@given(st.integers(1, 10**9), st.integers(1, 10**5))
def test_automatic_reduction_keeps_enough_in_view(n_features, n_components):
    reduction = auto_reduction(n_features, n_components)
    assert 1 <= reduction <= MOST_AUTO
    if reduction > 1:
        assert n_features / reduction >= 0.999 * 1000
        assert n_features / reduction >= 0.999 * 8 * n_components
    assert auto_reduction(n_features + 1, n_components) >= reduction
    assert auto_reduction(n_features, n_components + 1) <= reduction


@pytest.mark.parametrize(
    ("n_features", "n_components", "expected"),
    [(100, 10, 1), (1000, 9, 1), (2000, 9, 2), (8000, 1000, 1), (10**6, 9, 12)],
)
def test_automatic_reduction(n_features, n_components, expected):
    assert auto_reduction(n_features, n_components) == expected


@pytest.mark.parametrize(
    ("spread", "expected"), [(10**6, 12), (200, 10), (50, 2.5), (20, 1), (0, 1)]
)
def test_automatic_reduction_of_concentrated_samples(spread, expected):
    assert auto_reduction(10**6, 10, spread) == expected


def test_codes_are_loose_at_first_and_exact_in_the_end():
    assert looseness(1) == looseness(5) == 1500
    assert looseness(10) == pytest.approx(375)
    assert looseness(193) > 1
    assert looseness(194) == looseness(10**9) == 1


@pytest.mark.parametrize(
    ("shape", "n_components", "n_epochs", "sparse", "expected"),
    [
        ((100_000, 100_000), 100, 10, True, 1185),
        ((100_000, 1000), 100, 10, True, 545),  # few features: codes take over
        ((100_000, 100), 100, 10, True, 400),
        ((100_000, 300), 300, 10, True, 1200),
        ((100_000, 100_000), 50, 10, False, 200),
        ((3200, 1000), 50, 1, False, 100),  # 32 iterations in all
        ((3200, 100_000), 300, 100, True, 1600),  # two in an epoch
        ((1600, 1000), 300, 1, True, 300),  # but not fewer samples than atoms
        ((20, 100), 50, 10, True, 20),
        ((1, 1), 1, 1, False, 1),
    ],
)
def test_automatic_batch_size(shape, n_components, n_epochs, sparse, expected):
    size = auto_batch_size(*shape, n_components, n_epochs, sparse)
    assert size == expected
