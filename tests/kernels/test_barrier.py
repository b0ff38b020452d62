"""Threads at a gate wait for one another, and for nobody once it is closed."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from somf.kernels import barrier


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
def test_nobody_goes_on_before_all_have_come(n_threads):
    gate = barrier.new_gate(n_threads)
    count = np.zeros(n_threads, int)
    early = []

    def run(me):
        for i in range(50):
            count[me] += 1
            assert barrier.meet(gate, me, n_threads)
            # The others may already be one round ahead, but never behind.
            if count.min() < i + 1:
                early.append((me, i))
        return barrier.visits(gate, me)

    with ThreadPoolExecutor(n_threads) as pool:
        visits = list(pool.map(run, range(n_threads)))
    assert early == []
    assert visits == [50 if n_threads > 1 else 0] * n_threads


def test_what_was_written_before_is_there_afterwards():
    gate = barrier.new_gate(2)
    sums = np.zeros((2, 2))
    wrong = []

    def run(me):
        for i in range(200):
            slot = sums[barrier.visits(gate, me) % 2]
            slot[me] = i + me
            barrier.meet(gate, me, 2)
            if slot.sum() != 2 * i + 1:
                wrong.append(i)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    assert wrong == []


def test_who_waits_long_leaves_the_core_to_others():
    gate = barrier.new_gate(2)
    barrier.meet(barrier.new_gate(1), 0, 1)  # compiled before the clock runs
    used = []

    def run():
        start = time.thread_time()
        barrier.meet(gate, 0, 2)
        used.append(time.thread_time() - start)

    waiting = threading.Thread(target=run)
    waiting.start()
    time.sleep(0.5)
    barrier.meet(gate, 1, 2)
    waiting.join()
    assert used[0] < 0.25


def test_closed_gate_releases_those_who_wait():
    gate = barrier.new_gate(2)
    barrier.meet(barrier.new_gate(1), 0, 1)  # compiled before the clock runs
    result = []
    waiting = threading.Thread(
        target=lambda: result.append(barrier.meet(gate, 0, 2)), daemon=True
    )
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    barrier.close(gate)
    waiting.join(60)
    assert result == [False]
