"""Per-sample averages: the same numbers wherever they are kept."""

import copy
import logging
import pickle
from pathlib import Path

import numpy as np
import pytest

from somf.solver import averages as averages_module
from somf.solver.averages import Averages

K = 3


@pytest.fixture(params=["memory", "disk"])
def place(request, tmp_path):
    """A folder, or None to stay in memory."""
    return tmp_path if request.param == "disk" else None


def make(n_samples=5, folder=None, with_gram=True, dtype=np.float64):
    return Averages(n_samples, K, dtype, with_gram=with_gram, folder=folder)


def visit(averages, index, rng, weight=None):
    """Mix random estimates into those of some samples, as an iteration would."""
    index = np.asarray(index)
    visits = averages.visit(index)
    gamma = visits.astype(float) ** -0.751 if weight is None else np.asarray(weight)
    n = len(index)
    beta = rng.standard_normal((n, K)).astype(averages.dtype)
    G = rng.standard_normal((n, K, K)).astype(averages.dtype)
    energy = rng.random(n)
    result = averages.update(
        index, gamma, beta, energy, G if averages.with_gram else None
    )
    averages.keep_codes(index, beta + 1)
    return (beta, energy, G), result


def assert_same(one, two):
    assert one.n_samples == two.n_samples
    assert set(one.arrays) == set(two.arrays)
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, two.arrays[name], err_msg=name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("with_gram", [False, True])
def test_memory_and_disk_hold_the_same_numbers(tmp_path, with_gram, dtype):
    in_memory = make(with_gram=with_gram, dtype=dtype)
    on_disk = make(with_gram=with_gram, dtype=dtype, folder=tmp_path)
    assert not in_memory.on_disk
    assert on_disk.on_disk
    for averages in (in_memory, on_disk):
        rng = np.random.default_rng(0)
        for index in ([0, 2], [1, 2, 4], [2], [7], [0, 7]):
            _, (beta, energy, G) = visit(averages, index, rng)
            np.testing.assert_array_equal(beta, averages.arrays["beta"][index])
            np.testing.assert_array_equal(energy, averages.arrays["energy"][index])
            if with_gram:
                np.testing.assert_array_equal(G, averages.arrays["G"][index])
            assert beta.dtype == averages.codes(np.array(index)).dtype == dtype
            assert energy.dtype == np.float64
    assert_same(in_memory, on_disk)
    assert in_memory.nbytes == on_disk.nbytes
    assert ("G" in in_memory.arrays) == with_gram


def test_average_is_the_weighted_mean_of_the_visits(place):
    averages = make(folder=place)
    rng = np.random.default_rng(0)
    mean_beta, mean_energy, mean_G = 0, 0, 0
    for count in range(1, 6):
        (beta, energy, G), _ = visit(averages, [1, 3], rng)
        gamma = count**-0.751
        mean_beta = (1 - gamma) * mean_beta + gamma * beta
        mean_energy = (1 - gamma) * mean_energy + gamma * energy
        mean_G = (1 - gamma) * mean_G + gamma * G
    np.testing.assert_allclose(averages.arrays["beta"][[1, 3]], mean_beta)
    np.testing.assert_allclose(averages.arrays["energy"][[1, 3]], mean_energy)
    np.testing.assert_allclose(averages.arrays["G"][[1, 3]], mean_G)
    np.testing.assert_array_equal(averages.arrays["visits"], [0, 5, 0, 5, 0])
    for array in averages.arrays.values():
        assert not array[[0, 2, 4]].any()  # others are as they were


def test_weights_are_those_of_each_sample(place):
    averages = make(folder=place)
    rng = np.random.default_rng(0)
    old, _ = visit(averages, [0, 1], rng, [1, 1])
    new, means = visit(averages, [0, 1], rng, [0.25, 0.5])
    for before, now, mean in zip(old, new, means, strict=True):
        np.testing.assert_allclose(mean[0], 0.75 * before[0] + 0.25 * now[0])
        np.testing.assert_allclose(mean[1], 0.5 * before[1] + 0.5 * now[1])


def test_weight_one_forgets(place):
    averages = make(folder=place)
    rng = np.random.default_rng(0)
    visit(averages, [0, 2], rng)
    (beta, energy, G), result = visit(averages, [0, 2], rng, [1, 1])
    for ours, theirs in zip(result, (beta, energy, G), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_codes_are_remembered_as_copies(place):
    averages = make(folder=place)
    codes = np.arange(6.0).reshape(2, 3)
    averages.keep_codes(np.array([1, 4]), codes)
    remembered = averages.codes(np.array([1, 4]))
    np.testing.assert_array_equal(remembered, codes)
    remembered[:] = 0
    np.testing.assert_array_equal(averages.codes(np.array([1, 4])), codes)
    assert type(remembered) is np.ndarray  # not a view of a file


def test_reserve_keeps_known_samples(place):
    averages = make(folder=place)
    rng = np.random.default_rng(0)
    visit(averages, [0, 4], rng)
    before = {name: np.array(array) for name, array in averages.arrays.items()}
    averages.reserve(3)  # less than there is: nothing happens
    assert averages.n_samples == 5
    averages.reserve(9)
    assert averages.n_samples >= 9
    for name, array in averages.arrays.items():
        assert len(array) == averages.n_samples
        np.testing.assert_array_equal(array[:5], before[name])
        assert not array[5:].any()
    visit(averages, [11], rng)  # a sample beyond makes room for itself
    assert averages.n_samples >= 12
    np.testing.assert_array_equal(averages.arrays["beta"][:5], before["beta"])
    assert averages.visit(np.array([20]))[0] == 1
    assert averages.n_samples >= 21


def test_growing_by_one_sample_at_a_time_copies_rarely(place):
    averages = make(1, place)
    sizes = set()
    for i in range(300):
        averages.visit(np.array([i]))
        sizes.add(averages.n_samples)
    assert len(sizes) < 30
    assert averages.n_samples < 2 * 300
    np.testing.assert_array_equal(averages.arrays["visits"][:300], 1)


def test_growing_leaves_no_old_files(tmp_path):
    averages = make(folder=tmp_path)
    averages.reserve(50)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == len(averages.arrays)
    assert sum(path.stat().st_size for path in files) == averages.nbytes


def test_forget_makes_every_visit_a_first_one(place):
    averages = make(folder=place)
    visit(averages, [0, 2], np.random.default_rng(0))
    averages.forget()
    assert not averages.codes(np.arange(5)).any()
    np.testing.assert_array_equal(averages.visit(np.array([0, 1])), [1, 1])


def test_starts_without_samples(place):
    averages = make(0, place)
    assert averages.nbytes == 0
    visit(averages, [2], np.random.default_rng(0))
    np.testing.assert_array_equal(averages.arrays["visits"][:3], [0, 0, 1])


def test_large_averages_go_to_disk_and_say_so(monkeypatch, caplog):
    size = make(100).nbytes
    monkeypatch.setattr(averages_module, "available_memory", lambda: 2 * size)
    with caplog.at_level(logging.WARNING, logger="somf"):
        assert not make(100).on_disk  # exactly half of the memory
        assert not caplog.records
        averages = make(101)
    assert averages.on_disk
    (record,) = caplog.records
    assert "101 samples" in record.getMessage()
    folder = Path(averages.arrays["beta"].filename).parent
    assert str(folder) in record.getMessage()


def test_averages_that_grow_go_to_disk_with_what_they_hold(monkeypatch, caplog):
    averages = make(10)
    visit(averages, np.arange(10), np.random.default_rng(0))
    kept = np.array(averages.arrays["beta"])
    monkeypatch.setattr(averages_module, "available_memory", lambda: 0)
    with caplog.at_level(logging.WARNING, logger="somf"):
        averages.reserve(20)
        averages.reserve(30)
    assert averages.on_disk
    assert len(caplog.records) == 1  # one folder, told once
    np.testing.assert_array_equal(averages.arrays["beta"][:10], kept)


def test_folder_decides_where_files_are(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="somf"):
        averages = make(folder=tmp_path)
    assert not caplog.records  # it was asked for
    path = Path(averages.arrays["beta"].filename)
    assert path.is_relative_to(tmp_path)
    del averages
    assert list(tmp_path.iterdir()) == []  # they go with the object


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))]
)
def test_copies_are_equal_and_independent(place, duplicate):
    averages = make(folder=place)
    visit(averages, [0, 2], np.random.default_rng(0))
    other = duplicate(averages)
    assert_same(averages, other)
    before = {name: np.array(array) for name, array in averages.arrays.items()}
    for a in (averages, other):
        visit(a, [0, 3, 6], np.random.default_rng(1))
    assert_same(averages, other)  # they go on alike
    visit(other, [2], np.random.default_rng(2))
    assert averages.arrays["visits"][2] == before["visits"][2]  # but apart


def test_restored_averages_are_equal(place):
    averages = make(folder=place)
    visit(averages, [0, 2], np.random.default_rng(0))
    folder = None if place is None else str(place)
    restored = Averages.restore(averages.arrays, folder)
    assert_same(averages, restored)
    assert restored.on_disk == averages.on_disk
    assert restored.with_gram
    assert not np.shares_memory(restored.arrays["beta"], averages.arrays["beta"])
    without = make(with_gram=False)
    assert not Averages.restore(without.arrays, None).with_gram


def test_restored_averages_do_without_a_folder_that_is_gone(tmp_path, caplog):
    averages = make()
    visit(averages, [0, 2], np.random.default_rng(0))
    with caplog.at_level(logging.WARNING, logger="somf"):
        restored = Averages.restore(averages.arrays, str(tmp_path / "elsewhere"))
    assert_same(averages, restored)
    assert "elsewhere" in caplog.text
