"""Masks are unbiased and fair; epochs visit every sample once."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from somf.sampling import (
    KINDS,
    Mask,
    MaskSampler,
    SampleOrder,
    Sampler,
    as_generator,
)

kinds = st.sampled_from(sorted(KINDS))
seeds = st.integers(0, 2**32 - 1)


def draw_masks(n_masks, n_features, kind, block, reduction, seed=0):
    masks, rng = MaskSampler(n_features, kind, block), np.random.default_rng(seed)
    return [masks.draw(reduction, rng) for _ in range(n_masks)]


@given(
    st.integers(1, 60),
    kinds,
    st.integers(1, 10),
    st.lists(st.floats(0.5, 100), min_size=1, max_size=20),
    seeds,
)
def test_masks_are_sorted_sets_of_features(n_features, kind, block, reductions, seed):
    """Whatever the reductions of the iterations are, and in whatever order."""
    masks, rng = MaskSampler(n_features, kind, block), np.random.default_rng(seed)
    for reduction in reductions:
        mask = masks.draw(reduction, rng)
        assert len(mask.features) > 0
        assert np.all(np.diff(mask.features) > 0)
        assert mask.features[0] >= 0
        assert mask.features[-1] < n_features
        assert mask.n_features == n_features
        if n_features % block == 0:
            assert mask.scale == pytest.approx(n_features / len(mask.features))
        assert mask.observes_all == (len(mask.features) == n_features)
        if reduction <= 1:
            assert mask.observes_all


@given(st.integers(1, 60), kinds, st.integers(1, 10), st.floats(1, 20), seeds)
def test_blocks_are_whole_runs_of_neighbours(n_features, kind, block, reduction, seed):
    for mask in draw_masks(5, n_features, kind, block, reduction, seed):
        observed = np.zeros(n_features, bool)
        observed[mask.features] = True
        for start in range(0, n_features, block):
            run = observed[start : start + block]
            assert run.all() or not run.any()


@pytest.mark.parametrize("block", [1, 5])
@pytest.mark.parametrize("reduction", [1.5, 3, 12, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_mask_is_the_identity_on_average(kind, reduction, block):
    """E[scale·1(observed)] = 1 for each feature, so sums over a mask are unbiased."""
    n_features, n_masks = 60, 4000
    diagonals = np.zeros((n_masks, n_features))
    masks = draw_masks(n_masks, n_features, kind, block, reduction)
    for diagonal, mask in zip(diagonals, masks, strict=True):
        diagonal[mask.features] = mask.scale
    np.testing.assert_allclose(diagonals.sum(axis=1), n_features)
    error = diagonals.std() / np.sqrt(n_masks)
    # Five standard errors, for the largest of 60 features.
    np.testing.assert_allclose(diagonals.mean(axis=0), 1, rtol=0, atol=5 * error)


@pytest.mark.parametrize("kind", KINDS)
def test_reduction_is_features_over_observed(kind):
    counts = [len(m.features) for m in draw_masks(2000, 120, kind, 1, 4)]
    assert np.mean(counts) == pytest.approx(30, rel=0.02)
    if kind == "cycle":
        assert set(counts) == {30}
    else:
        assert np.std(counts) == pytest.approx(np.sqrt(120 * 0.25 * 0.75), rel=0.1)


@given(
    st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 2, 7]), st.integers(0, 99)
)
def test_cycle_visits_each_feature_once(reduction, n_observed, block, seed):
    n_features = reduction * n_observed * block
    masks = draw_masks(3 * reduction, n_features, "cycle", block, reduction, seed)
    for cycle in range(3):
        part = masks[cycle * reduction : (cycle + 1) * reduction]
        visited = np.sort(np.concatenate([mask.features for mask in part]))
        np.testing.assert_array_equal(visited, np.arange(n_features))


@given(st.integers(2, 40), st.floats(1.1, 10), st.integers(0, 99))
def test_no_feature_is_two_visits_ahead_of_its_cycle(n_features, reduction, seed):
    """Also where masks do not divide the features, all are visited equally often."""
    visits = np.zeros(n_features, int)
    for mask in draw_masks(50, n_features, "cycle", 1, reduction, seed):
        visits[mask.features] += 1
        assert np.ptp(visits) <= 2


def test_cycles_mix_the_features_anew():
    masks = draw_masks(40, 100, "cycle", 1, 2)
    first_halves = {tuple(mask.features) for mask in masks[::2]}
    assert len(first_halves) == 20


def test_reduction_may_change_between_draws():
    """What is left of a cycle comes first, then a new cycle: none is lost."""
    masks, rng = MaskSampler(24), np.random.default_rng(0)
    drawn = [masks.draw(reduction, rng).features for reduction in (4, 2, 1, 4, 12, 24)]
    assert [len(features) for features in drawn] == [6, 12, 24, 6, 2, 1]
    first_cycle = np.concatenate([drawn[0], drawn[1], drawn[3]])
    np.testing.assert_array_equal(np.sort(first_cycle), np.arange(24))


@pytest.mark.parametrize("reduction", [1, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_observing_everything_takes_no_randomness(kind, reduction):
    masks, rng = MaskSampler(24, kind), np.random.default_rng(0)
    masks.draw(3, rng)
    before, left = rng.bit_generator.state, masks.cycle
    assert masks.draw(reduction, rng).observes_all
    assert rng.bit_generator.state == before
    np.testing.assert_array_equal(masks.cycle, left)


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_gives_the_same_masks(kind):
    one, two, other = (draw_masks(5, 50, kind, 1, 3, seed) for seed in (0, 0, 1))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a.features, b.features)
    pairs = zip(one, other, strict=True)
    assert any(tuple(a.features) != tuple(b.features) for a, b in pairs)


def test_bernoulli_is_never_empty():
    masks = draw_masks(2000, 3, "bernoulli", 1, 1000)
    assert all(len(mask.features) > 0 for mask in masks)
    seen = np.bincount(np.concatenate([mask.features for mask in masks]), minlength=3)
    assert np.all(np.abs(seen - 2000 / 3) < 150)  # the one that stands in is random


def test_mask_scale():
    assert not Mask(np.array([1, 4]), 10, 5.0).observes_all
    assert Mask(np.arange(3), 3, 1.0).observes_all


@pytest.mark.parametrize("kind", ["cycle", "bernoulli"])
def test_short_last_block_is_not_favoured(kind):
    masks = MaskSampler(10, kind, 4)  # blocks of 4, 4 and 2
    rng = np.random.default_rng(0)
    mean = np.zeros(10)
    n_draws = 6000
    for _ in range(n_draws):
        mask = masks.draw(3, rng)
        mean[mask.features] += mask.scale / n_draws
    np.testing.assert_allclose(mean, 1, atol=0.06)


@given(st.integers(1, 60), st.integers(1, 80), st.booleans(), st.integers(0, 99))
def test_epoch_visits_every_sample_once(n_samples, batch_size, shuffle, seed):
    order, rng = (
        SampleOrder(n_samples, batch_size, shuffle),
        np.random.default_rng(seed),
    )
    for _ in range(2):
        batches = []
        while not batches or not order.at_epoch_end:
            batches.append(order.draw(rng))
        sizes = [len(batch) for batch in batches]
        assert len(batches) == order.n_batches == -(-n_samples // batch_size)
        assert max(sizes) <= batch_size
        assert max(sizes) - min(sizes) <= 1
        assert all(np.all(np.diff(batch) > 0) for batch in batches)
        visited = np.concatenate(batches)
        np.testing.assert_array_equal(np.sort(visited), np.arange(n_samples))
        if not shuffle:
            np.testing.assert_array_equal(visited, np.arange(n_samples))


def test_every_epoch_is_shuffled_anew():
    order, rng = SampleOrder(20, 10), np.random.default_rng(0)
    first_batches = {tuple(order.draw(rng)) for _ in range(20)}
    assert len(first_batches) == 20
    again, rng = SampleOrder(20, 10), np.random.default_rng(0)
    assert {tuple(again.draw(rng)) for _ in range(20)} == first_batches


def test_fewer_samples_than_a_batch():
    order, rng = SampleOrder(3, 200), np.random.default_rng(0)
    for _ in range(3):
        np.testing.assert_array_equal(order.draw(rng), [0, 1, 2])
        assert order.at_epoch_end


CHUNKS = np.array([0, 4, 9, 10, 17, 20])


def epoch(order, rng):
    """Return the batches of an epoch."""
    batches = [order.draw(rng)]
    while not order.at_epoch_end:
        batches.append(order.draw(rng))
    return batches


@given(st.integers(1, 25), st.integers(0, 25), st.booleans(), st.integers(0, 99))
def test_chunked_epoch_visits_every_sample_once(batch_size, mix, shuffle, seed):
    order = SampleOrder(20, batch_size, shuffle, CHUNKS, mix)
    rng = np.random.default_rng(seed)
    for _ in range(2):
        batches = epoch(order, rng)
        assert len(batches) == order.n_batches
        assert all(np.all(np.diff(batch) > 0) for batch in batches)
        visited = np.sort(np.concatenate(batches))
        np.testing.assert_array_equal(visited, np.arange(20))


@pytest.mark.parametrize("batch_size", [4, 5, 10, 20])
def test_batches_of_whole_chunks(batch_size):
    chunks = np.array([0, 4, 8, 12, 16, 18])
    order, rng = SampleOrder(18, batch_size, True, chunks), np.random.default_rng(0)
    for _ in range(5):
        for batch in epoch(order, rng):
            for low, high in pairwise(chunks):
                here = np.count_nonzero((batch >= low) & (batch < high))
                assert here in (0, high - low)
            assert len(batch) > 0


def test_irregular_chunks_make_even_batches():
    bounds = np.cumsum([0, 30, *[2] * 35])  # one long chunk, 35 short ones
    rng = np.random.default_rng(0)
    for batch_size, most in ((10, 10), (50, 64), (30, 58)):
        order = SampleOrder(100, batch_size, True, bounds)
        for _ in range(10):
            assert max(len(batch) for batch in epoch(order, rng)) <= most
    long_chunk = [b for b in epoch(order, rng) if np.isin(np.arange(30), b).any()]
    assert len(long_chunk) == 1  # it fits into a batch, and is not cut


def test_chunks_longer_than_a_batch_are_used_up_before_the_next():
    order, rng = SampleOrder(20, 2, True, CHUNKS), np.random.default_rng(0)
    visited = np.concatenate(epoch(order, rng))
    chunk = np.searchsorted(CHUNKS, visited, side="right")
    changes = np.count_nonzero(np.diff(chunk))
    assert changes <= len(CHUNKS) - 2 + order.n_batches  # sorted inside of a batch
    assert len(np.unique(chunk[:2])) <= 2


def test_mixed_chunks_stay_in_their_group():
    """No more than `mix` samples and a chunk have to be kept at a time."""
    chunks = np.arange(0, 101, 5)
    order = SampleOrder(100, 4, True, chunks, mix=20)
    rng = np.random.default_rng(0)
    orders = set()
    for _ in range(5):
        visited = np.concatenate(epoch(order, rng))
        orders.add(tuple(visited))
        for start in range(0, 100, 20):
            group = np.unique(visited[start : start + 20] // 5)
            assert len(group) == 4
    assert len(orders) == 5
    first = order.order[:20]
    assert len(np.unique(first[:5] // 5)) > 1  # chunks are mixed with one another


def test_the_last_group_is_mixed_too():
    order = SampleOrder(100, 4, True, np.arange(0, 101, 5), mix=1000)
    order.draw(np.random.default_rng(0))
    assert len(np.unique(order.order[:20] // 5)) > 10


def test_draws_ahead_do_not_move_the_sampler_that_is_saved():
    sampler = Sampler(np.random.default_rng(0), MaskSampler(30), SampleOrder(20, 5))
    ahead = sampler.copy()
    draws = [ahead.draw(3) for _ in range(7)]
    again = sampler.copy()
    for draw in draws:
        same = again.draw(3)
        np.testing.assert_array_equal(draw.rows, same.rows)
        np.testing.assert_array_equal(draw.mask.features, same.mask.features)
        assert draw.ends_epoch == same.ends_epoch
    assert [draw.ends_epoch for draw in draws] == [False] * 3 + [True] + [False] * 3
    # What stands in a draw goes on with the next one.
    after = draws[4].after.draw(3)
    np.testing.assert_array_equal(after.rows, draws[5].rows)
    np.testing.assert_array_equal(after.mask.features, draws[5].mask.features)


def test_generator_from_a_seed():
    one, two, other = (as_generator(seed) for seed in (3, 3, 4))
    assert one.random() == two.random() != other.random()


def test_generator_from_a_generator_follows_it():
    one, two = (as_generator(np.random.default_rng(0)) for _ in range(2))
    assert one.random() == two.random()
    rng = np.random.default_rng(0)
    first, second = as_generator(rng), as_generator(rng)
    assert first.random() != second.random()


@pytest.mark.parametrize("bits", [np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_generator_is_of_one_kind(bits):
    """Its state is a few numbers, which a model file can hold."""
    rng = as_generator(np.random.Generator(bits(0)))
    assert isinstance(rng.bit_generator, np.random.PCG64)
    json.dumps(rng.bit_generator.state)


def test_generator_from_nothing_differs_each_time():
    assert as_generator(None).random() != as_generator(None).random()


def test_generator_from_a_random_state_follows_it():
    legacy = np.random.RandomState  # scikit-learn's users pass it
    one, two = as_generator(legacy(0)), as_generator(legacy(0))
    assert one.random() == two.random()
    state = legacy(0)
    first, second = as_generator(state), as_generator(state)
    assert first.random() != second.random()  # a state is used up, as in scikit-learn
