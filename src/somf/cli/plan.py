"""`somf plan`: what a fit would need, before it runs."""

from __future__ import annotations

from typing import Any

import click

from somf.cli.base import data_argument, json_option, open_data, show
from somf.cli.options import EstimatorCommand, estimator_parameters
from somf.cli.settings import asked_settings, check_settings, complete, make_parameters


@click.command(cls=EstimatorCommand)
@data_argument(required=False)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Plan a fit on so many workers of a Dask cluster, machines like this one.",
)
@click.option(
    "--bandwidth",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Network of the cluster where somf runs, in GB/s; with --workers.",
)
@click.option(
    "--latency",
    type=click.FloatRange(min=0),
    default=0.5,
    show_default=True,
    help="What a message of the cluster takes one way, in ms; with --workers.",
)
@estimator_parameters
@json_option
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    data: tuple[str, ...],
    workers: int | None,
    bandwidth: float,
    latency: float,
    preset: str | None,
    config: str | None,
    as_json: bool,
    **parameters: Any,
) -> None:
    """Predict memory and time of a fit, before it runs.

    Also recommends parameters. Takes the options of somf fit, and a few seconds to
    measure this machine.
    """
    import somf

    settings = complete(ctx, asked_settings(ctx, data, (), preset, config))
    check_settings(ctx, settings)
    model = somf.SOMF(**make_parameters(settings))
    planned = somf.plan(
        open_data(settings.data),
        model,
        n_workers=workers,
        bandwidth=1e9 * bandwidth,
        latency=latency / 1000,
    )
    show(as_json, planned.as_dict(), planned.lines())
