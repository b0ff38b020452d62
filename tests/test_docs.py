"""The Python of README and docs runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
if not PAGES[0].exists():  # the tests of an installed wheel
    PAGES = []


def python_of(page):
    """Return the Python blocks of a page, one after the other."""
    return "\n".join(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if python_of(page)], ids=lambda page: page.name
)
def test_code_of_a_page_runs(page, tmp_path):
    result = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", "-c", python_of(page)],
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
