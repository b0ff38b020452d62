"""The command line: parse, call, print."""

from __future__ import annotations

import click

from somf import __version__
from somf.cli.base import Group
from somf.cli.convert import convert
from somf.cli.demos import demo
from somf.cli.fit import fit
from somf.cli.fmri import fmri
from somf.cli.image import image
from somf.cli.inspect import inspect
from somf.cli.plan import plan
from somf.cli.report import compare, report
from somf.cli.transform import score, transform

EXIT_CODES = """\b
Exit codes:
  0    done
  1    the data could not be read, or the run failed
  2    wrong usage: an option, a parameter, an output that exists
  130  stopped by SIGINT (Ctrl-C)
  143  stopped by SIGTERM
"""


@click.group(cls=Group, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="somf")
def main() -> None:
    """Factorize matrices that are huge in both dimensions."""


COMMANDS = (
    *(fit, transform, score, plan, convert, inspect, report, compare),
    *(fmri, image, demo),
)
for command in COMMANDS:
    main.add_command(command)
