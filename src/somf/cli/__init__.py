"""The command line: parse, call, print."""

from __future__ import annotations

import click

from somf import __version__
from somf.cli.base import Command, Group
from somf.cli.convert import convert
from somf.cli.fit import fit
from somf.cli.image import image
from somf.cli.inspect import inspect
from somf.cli.plan import plan
from somf.cli.report import report
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


for command in (fit, transform, score, plan, convert, inspect, report, image):
    main.add_command(command)


@main.command(cls=Command)
@click.option(
    "--seconds",
    default=20.0,
    show_default=True,
    type=click.FloatRange(1, 600),
    help="Training time of each of the two runs.",
)
@click.option(
    "--output",
    default="somf-demo.png",
    show_default=True,
    type=click.Path(dir_okay=False, writable=True),
    help="Where the picture goes.",
)
def demo(seconds: float, output: str) -> None:
    """Compare learning with and without subsampling.

    Takes the AVIRIS image of Indian Pines, learns a dictionary of its 16 x 16 patches
    over all bands (51 200 features) with plain online factorization and with SOMF for
    the same time, and writes one picture: the objective on held-out patches against
    time, and atoms of both.
    """
    from somf.cli.demo import run_demo

    run_demo(seconds, output)
