"""`somf convert`: rewrite data in the layout that is read best."""

from __future__ import annotations

from pathlib import Path

import click

from somf.cli.base import Command, data_argument, json_option, show


@click.command(cls=Command)
@data_argument()
@click.argument("target", metavar="TARGET.zarr", type=click.Path())
@click.option(
    "--chunk-samples",
    type=click.IntRange(1),
    help="Samples in a chunk; by default as many as make half a megabyte, 64 to 256.",
)
@click.option(
    "--chunk-features",
    type=click.IntRange(1),
    help="Features in a chunk; by default a 48th of them, but 16 to 2048.",
)
@click.option(
    "--shuffle-features/--no-shuffle-features",
    default=False,
    show_default=True,
    help="Store features in one random order; components come out in the original one.",
)
@click.option("--random-state", type=int, help="Seed of that order.")
@click.option(
    "--dtype", type=click.Choice(["float32", "float64"]), help="Type of the values."
)
@click.option("--overwrite", is_flag=True, help="Replace a group that is there.")
@json_option
@click.pass_context
def convert(
    ctx: click.Context,
    /,
    data: tuple[str, ...],
    target: str,
    chunk_samples: int | None,
    chunk_features: int | None,
    shuffle_features: bool,
    random_state: int | None,
    dtype: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Rewrite DATA as Zarr, in chunks that suit a fit.

    A fit with --aggregation masked then reads only the chunks that it observes. What
    was stopped goes on where it was when the same command is given again.
    """
    from somf.cli.inspect import describe_data
    from somf.conversion import convert as convert_data
    from somf.progress import CountProgress

    try:
        with CountProgress("convert") as progress:
            convert_data(
                data[0] if len(data) == 1 else list(data),
                target,
                chunk_samples=chunk_samples,
                chunk_features=chunk_features,
                shuffle_features=shuffle_features,
                random_state=random_state,
                dtype=dtype,
                progress=progress,
                overwrite=overwrite,
            )
    except FileExistsError as error:
        raise click.UsageError(str(error), ctx) from error
    facts, lines = describe_data(target)
    show(as_json, {"output": str(Path(target)), **facts}, [f"Wrote {target}", *lines])
