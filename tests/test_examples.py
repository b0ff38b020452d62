"""The short scripts of the gallery run as they stand."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
# Those of examples/image take minutes; tests/image do the same on smaller data.
SCRIPTS = sorted([*FOLDER.glob("start/plot_*.py"), *FOLDER.glob("fmri/plot_*.py")])


@pytest.mark.skipif(
    not FOLDER.exists(), reason="examples/ is not here: an installed wheel"
)
def test_there_are_examples():
    assert SCRIPTS


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
