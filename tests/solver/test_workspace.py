"""What a buffer held before has no effect."""

import numpy as np
import pytest
from scripted import make_draws, make_problem, run_scripted

from somf.sampling import MaskSampler
from somf.solver.workspace import Workspace


@pytest.mark.parametrize("code_l1_ratio", [0.0, 1.0])  # dense and sparse codes
@pytest.mark.parametrize("aggregation", ["full", "async", "masked"])
@pytest.mark.parametrize("reduction", [1, 3])
def test_garbage_in_buffers_has_no_effect(
    code_l1_ratio, aggregation, reduction, monkeypatch
):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 60))
    problem = make_problem(4.0, code_l1_ratio, 0.0, False, False)
    atoms = problem.constraint.rescale(X[:12])
    draws = make_draws(30, 60, 12, 5, 6, MaskSampler(60), reduction, rng)
    clean, codes = run_scripted(X, atoms, draws, problem, aggregation=aggregation)
    if code_l1_ratio:  # sparse enough for the sparse sums
        assert np.mean(np.array(codes) != 0) < 0.15

    plain = Workspace.array

    def filled(self, name, shape, dtype):
        buffer = plain(self, name, shape, dtype)
        buffer[:] = np.nan
        return buffer

    monkeypatch.setattr(Workspace, "array", filled)
    dirty, _ = run_scripted(X, atoms, draws, problem, aggregation=aggregation)
    np.testing.assert_array_equal(dirty.D, clean.D)
    np.testing.assert_array_equal(dirty.B, clean.B)


def test_buffers_are_reused_and_grow():
    workspace = Workspace()
    first = workspace.array("a", (4, 5), np.float32)
    assert np.shares_memory(first, workspace.array("a", (2, 3), np.float32))
    assert not np.shares_memory(first, workspace.array("b", (2, 3), np.float32))
    assert workspace.array("a", (40, 5), np.float32).shape == (40, 5)
    assert workspace.array("a", (4, 5), np.float64).dtype == np.float64
