"""What the tables of the benchmarks are computed from."""

from collections import defaultdict

import numpy as np
import pytest

from benchmarks.suite.report import Summary, time_to

FAST = {"solver": "fast", "times": [0, 1, 2], "objectives": [8, 4, 2]}
SLOW = {"solver": "slow", "times": [0, 10, 40], "objectives": [8, 4, 1]}


@pytest.mark.parametrize(
    ("target", "seconds"), [(8, 0), (4, 1), (2, 2), (1, np.inf), (8**0.5, 2**0.5)]
)
def test_time_to_a_target(target, seconds):
    """Between two points both axes are logarithmic."""
    assert time_to(FAST, target) == pytest.approx(seconds)


def test_ratios_are_between_times_of_the_same_race():
    records = [
        {"dataset": "x", "small": False, "seed": seed, "curves": [FAST, slow]}
        for seed, slow in enumerate([SLOW, SLOW | {"times": [0, 30, 40]}])
    ]
    summary = Summary(records, defaultdict(lambda: 2.0))
    assert summary.ratios("slow", 100, "fast") == pytest.approx([10, 30])
    assert summary.ratios("fast", -50, "fast") == []  # it never arrives
    assert summary.own_ratios("fast", 100, "fast") == pytest.approx([1, 1])
    assert summary.own_ratios("slow", 300, "fast") == pytest.approx([10, 30])
    assert summary.own_ratios("slow", 0.1, "fast") == [0, 0]  # only it arrives
