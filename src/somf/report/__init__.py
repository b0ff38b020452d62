"""Reports of runs: one HTML page that needs nothing else, for people to look at.

`SOMF.report` makes them; `compare` puts several runs on one page. How atoms are shown
is told by an object: `HeatMaps`, `PatchGrid` or `BrainMaps`.
"""

from somf.sources.checks import need

for package in ("jinja2", "matplotlib"):  # before the modules that need them
    need(package, "report", "A report")

from somf.report.advice import Advice, advise  # noqa: E402
from somf.report.atoms import Atoms, HeatMaps, PatchGrid  # noqa: E402
from somf.report.brains import BrainMaps  # noqa: E402
from somf.report.compare import compare, match_atoms  # noqa: E402
from somf.report.facts import Facts, code_samples, facts_of  # noqa: E402
from somf.report.page import Page, make_report  # noqa: E402

__all__ = [
    "Advice",
    "Atoms",
    "BrainMaps",
    "Facts",
    "HeatMaps",
    "Page",
    "PatchGrid",
    "advise",
    "code_samples",
    "compare",
    "facts_of",
    "make_report",
    "match_atoms",
]
