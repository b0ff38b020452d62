"""Compiled kernels: the same bits, whether they come from the compiler or from disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import somf

FIT = """
import hashlib
import numpy as np
from somf import SOMF
rng = np.random.default_rng(0)
X = rng.standard_normal((200, 300)).astype(np.float32)
model = SOMF(8, alpha=2.0, reduction=2, batch_size=40, n_epochs=3, n_threads=1,
             random_state=0).fit(X)
print(hashlib.sha256(np.ascontiguousarray(model.components_)).hexdigest())
"""


@pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled"
)
def test_bits_do_not_depend_on_where_kernels_come_from(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    def fit():
        run = [sys.executable, "-c", FIT]
        return subprocess.run(
            run, env=environment, capture_output=True, text=True, check=True
        ).stdout

    compiled = fit()
    assert any(tmp_path.rglob("*.nbc"))
    assert fit() == compiled


PROJECT = """
import numpy as np
from somf.kernels import projection
projection.project_rows(np.full((1, 4), 3.0), 0.0, 1.0, 0.5, False)
print(sum(projection.project_rows.stats.cache_hits.values()))
"""


@pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled"
)
def test_kernels_on_disk_are_renewed_when_one_that_they_call_has_changed(tmp_path):
    package = Path(somf.__file__).parent
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, tmp_path / "somf", ignore=leave)
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(tmp_path),
    }

    def found_on_disk():
        run = [sys.executable, "-c", PROJECT]
        kwargs = {"capture_output": True, "text": True, "check": True}
        return int(subprocess.run(run, env=environment, **kwargs).stdout)

    assert found_on_disk() == 0
    assert found_on_disk() == 1
    called = tmp_path / "somf" / "kernels" / "barrier.py"
    called.write_text(called.read_text() + "\nANOTHER = 1\n")
    assert found_on_disk() == 0


RACE = """
import threading
import numba
import numpy as np
from somf.kernels import _jit, gather

njit, n_left, errors = numba.njit, sum(k.plain is None for k in _jit._waiting), []

X = np.ones((2, 3))

def copy():
    try:
        gather.copy_samples(X, np.arange(2), np.empty((2, 3)), np.empty(2))
    except Exception as error:
        errors.append(error)

other = threading.Thread(target=copy)

def slow(*function, **options):
    global n_left
    n_left -= not function  # it calls itself, too
    if n_left == 0:  # the other thread comes when all kernels but one have been made
        n_left = -1
        other.start()
        other.join(1)
    return njit(*function, **options)

numba.njit = slow
copy()
other.join()
print(errors)
"""


@pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled"
)
def test_threads_that_need_the_first_kernels_at_the_same_time(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    run = [sys.executable, "-c", RACE]
    result = subprocess.run(run, env=environment, capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stdout + result.stderr
