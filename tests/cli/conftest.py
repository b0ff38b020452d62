"""Data and runs of the tests of the command line."""

import numpy as np
import pytest
from commands import OPTIONS, check_error, somf

from somf.sources import MappedSource


@pytest.fixture(scope="session")
def X():
    rng = np.random.default_rng(0)
    return rng.standard_normal((60, 3)) @ rng.standard_normal((3, 40))


@pytest.fixture(scope="session")
def folder(X, tmp_path_factory):
    """Data, and a finished run; tests do not change them."""
    folder = tmp_path_factory.mktemp("cli")
    np.save(folder / "X.npy", X)
    np.save(folder / "first.npy", X[:25])
    np.save(folder / "rest.npy", X[25:])
    result = somf("fit", folder / "X.npy", "--output", folder / "run", *OPTIONS)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="session")
def data(folder):
    return folder / "X.npy"


@pytest.fixture(scope="session")
def run(folder):
    return folder / "run"


@pytest.fixture
def unfinished(data, tmp_path, monkeypatch):
    """A run that failed after some iterations, for a reason that is gone."""
    read, calls = MappedSource.batch, iter(range(100))

    def fail(self, *arguments):
        if next(calls) == 5:
            raise OSError("the disk is gone")
        return read(self, *arguments)

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(MappedSource, "batch", fail)
        options = ["--checkpoint-steps", 1]
        result = somf("fit", data, "--output", run, *OPTIONS, *options)
    check_error(result, 1, "the disk is gone", f"somf fit --output {run} --resume")
    return run
