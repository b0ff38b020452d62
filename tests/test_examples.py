"""The short scripts of the gallery run as they stand."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
# Those of examples/image take minutes; tests/image do the same on smaller data.
SCRIPTS = sorted(FOLDER.glob("start/plot_*.py"))
BRAINS = sorted(FOLDER.glob("fmri/plot_*.py"))
WORKERS = sorted(FOLDER.glob("distributed/plot_*.py"))


@pytest.mark.skipif(
    not FOLDER.exists(), reason="examples/ is not here: an installed wheel"
)
def test_there_are_examples():
    assert SCRIPTS
    assert BRAINS
    assert WORKERS


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_example_runs(script, tmp_path, monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot", reason="needs the extra demo")
    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: None)  # it warns on a desktop
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script))
    assert plt.get_fignums(), "an example shows something"
    plt.close("all")
    assert not list(tmp_path.iterdir()), "an example leaves files behind"


@pytest.mark.slow
@pytest.mark.parametrize("script", BRAINS, ids=lambda script: script.stem)
def test_example_of_brains_runs(script, tmp_path):
    """In a process of its own: nilearn's plots do not know SciPy's array API."""
    environment = {k: v for k, v in os.environ.items() if k != "SCIPY_ARRAY_API"}
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment | {"MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    ours, theirs = re.findall(r"(?:somf|nilearn): ([\d.]+) on average", result.stdout)
    assert float(ours) > float(theirs)
    assert not list(tmp_path.iterdir()), "an example leaves files behind"


@pytest.mark.slow
@pytest.mark.parametrize("script", WORKERS, ids=lambda script: script.stem)
def test_example_of_workers_runs(script, tmp_path):
    """As a script, which Python imports again wherever it starts processes."""
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"Worker \S+ was lost in exchange 51", result.stdout)
    ends = re.findall(r": (\d+) iterations, objective ([\d.]+)", result.stdout)
    assert [n_steps for n_steps, _ in ends] == ["120"] * 3
    here, two, killed = (float(objective) for _, objective in ends)
    assert two == pytest.approx(here, rel=0.02)
    assert killed == pytest.approx(two, rel=0.02)
    assert not list(tmp_path.iterdir()), "an example leaves files behind"
