"""Over how many features the first atoms are spread."""

import numpy as np
import pytest

from somf.solver.initialization import spread


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_spread_counts_entries_of_one_size(size):
    atoms = np.zeros((3, 100), np.float32)
    atoms[0, :5] = size
    atoms[1, 10:30] = -size
    atoms[2, 90:] = size
    assert spread(atoms) == pytest.approx(10)  # 5, 20 and 10: the median


def test_spread_of_noise():
    noise = np.random.default_rng(0).standard_normal((20, 30_000))
    assert spread(noise) == pytest.approx(10_000, rel=0.02)


def test_atoms_that_are_zero_do_not_count():
    assert spread(np.zeros((2, 4))) == 0
    assert spread(np.array([[0.0, 0.0], [1.0, 1.0]])) == 2
