"""Fits in threads of one process, and after a fork."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from somf import SOMF


def fit(seed, n_threads=2):
    X = np.random.default_rng(seed).standard_normal((300, 5000)).astype(np.float32)
    model = SOMF(
        20,
        alpha=1.0,
        reduction=1 + 3 * (seed % 2),  # without, the threads meet in the pass
        batch_size=25,
        n_epochs=2,
        n_threads=n_threads,
        random_state=seed,
    )
    return model.fit(X).components_.copy()


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info()]


def test_concurrent_fits_give_the_bits_of_lone_ones():
    alone = [fit(seed) for seed in range(6)]
    threads = blas_threads()
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(fit, range(6)))
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)
    assert blas_threads() == threads


def test_fit_inside_a_limit_of_the_user():
    expected = fit(0)
    with threadpool_limits(1):
        np.testing.assert_array_equal(fit(0), expected)
        assert set(blas_threads()) == {1}


FORK = """
import multiprocessing
import numpy as np
from somf import SOMF

X = np.random.default_rng(0).standard_normal((100, 5000))

def fit(_=None):
    model = SOMF(10, reduction=1, batch_size=20, n_epochs=2, n_threads=2)
    model.set_params(random_state=0)
    return model.fit(X).components_.copy()

expected = fit()
with multiprocessing.get_context("fork").Pool(2) as pool:
    for result in pool.map_async(fit, range(4)).get(timeout=100):
        assert (result == expected).all()
print("same bits")
"""


def test_fits_after_a_fork():
    # A process of its own: threads of other tests would make the fork unsafe.
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert result.stdout.strip() == "same bits"
