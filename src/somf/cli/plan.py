"""`somf plan`: what a fit would need, before it runs."""

from __future__ import annotations

from typing import Any

import click

from somf.cli.base import data_argument, json_option, open_data, show
from somf.cli.options import EstimatorCommand, estimator_parameters
from somf.cli.settings import asked_settings, check_settings, complete, make_parameters


@click.command(cls=EstimatorCommand)
@data_argument(required=False)
@estimator_parameters
@json_option
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    data: tuple[str, ...],
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
    planned = somf.plan(open_data(settings.data), model)
    show(as_json, planned.as_dict(), planned.lines())
