"""`somf demo` and `somf demo fmri`: a first look."""

from __future__ import annotations

import click

from somf.cli.base import Command, Group


class DemoGroup(Group, Command):
    """A command that has others under it."""


@click.group(cls=DemoGroup, invoke_without_command=True)
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
    help="Where the picture goes, and the report beside it.",
)
@click.pass_context
def demo(ctx: click.Context, seconds: float, output: str) -> None:
    """Compare learning with and without subsampling.

    Takes the AVIRIS image of Indian Pines, learns a dictionary of its 16 x 16 patches
    over all bands (51 200 features) with plain online factorization and with SOMF for
    the same time. Writes a picture, the objective on held-out patches against time and
    atoms of both, and a report of the SOMF run.
    """
    if ctx.invoked_subcommand is None:
        from somf.cli.demo import run_demo

        run_demo(seconds, output)


@demo.command("fmri", cls=Command)
@click.argument("images", nargs=-1, type=click.Path(exists=True))
@click.option("--n-components", default=40, show_default=True, help="Number of maps.")
@click.option(
    "--output",
    default="somf-demo-fmri.html",
    show_default=True,
    type=click.Path(dir_okay=False, writable=True),
    help="Where the report goes.",
)
def demo_fmri(images: tuple[str, ...], n_components: int, output: str) -> None:
    """Learn maps of the brain, from IMAGES or from simulated ones.

    With and without subsampling; the last image tells how well the maps do. Writes a
    report with the maps.
    """
    from somf.cli.demo_fmri import run_demo_fmri

    run_demo_fmri(images, n_components, output)
