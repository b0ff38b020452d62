"""The command line: parse, call, print."""

from __future__ import annotations

import click

from somf import __version__


@click.group()
@click.version_option(__version__, prog_name="somf")
def main() -> None:
    """Factorize matrices that are huge in both dimensions."""


@main.command()
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
    """Learn hyperspectral patches with and without subsampling, and compare.

    Takes the AVIRIS image of Indian Pines, learns a dictionary of its 16 x 16 patches
    over all bands (51 200 features) with plain online factorization and with SOMF for
    the same time, and writes one picture: the objective on held-out patches against
    time, and atoms of both.
    """
    from somf.cli.demo import run_demo

    run_demo(seconds, output)
