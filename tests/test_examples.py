"""The short scripts of the gallery run as they stand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "start"
SCRIPTS = sorted(FOLDER.glob("plot_*.py"))


@pytest.mark.skipif(
    not FOLDER.exists(), reason="examples/ is not here: an installed wheel"
)
def test_there_are_examples():
    assert SCRIPTS


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_example_runs(script, tmp_path):
    result = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", script],
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert not list(tmp_path.iterdir()), "an example leaves files behind"
