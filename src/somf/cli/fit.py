"""`somf fit`: learn a dictionary, in a folder that keeps all there is to know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from somf.cli.base import data_argument, json_option, show
from somf.cli.options import (
    EstimatorCommand,
    dask_option,
    estimator_parameters,
    parameter_defaults,
)
from somf.cli.runs import RunFolder, load_model
from somf.cli.settings import Settings, asked_settings, check_settings, complete

if TYPE_CHECKING:
    from somf.estimator import SOMF


@click.command(cls=EstimatorCommand)
@data_argument(required=False)
@click.option(
    "--output",
    required=True,
    type=click.Path(file_okay=False),
    help="Folder of the run: model, trace, settings, checkpoints, page.",
)
@click.option(
    "--val",
    multiple=True,
    type=click.Path(),
    help="Held-out samples that judge the run after each epoch; several are stacked.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the run of the folder, or start it if it has not begun.",
)
@click.option(
    "--overwrite", is_flag=True, help="Replace a run that the folder holds already."
)
@click.option(
    "--watch",
    is_flag=True,
    help="Serve the page of the run on this machine, and print its address.",
)
@dask_option
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Processes that --dask local starts, by default one for each core; with the "
    "address of a cluster, how many workers to wait for.",
)
@estimator_parameters
@json_option
@click.pass_context
def fit(
    ctx: click.Context,
    /,
    data: tuple[str, ...],
    output: str,
    val: tuple[str, ...],
    resume: bool,
    overwrite: bool,
    watch: bool,
    dask: str | None,
    workers: int | None,
    preset: str | None,
    config: str | None,
    as_json: bool,
    **parameters: Any,
) -> None:
    """Learn a dictionary from DATA; leave a folder with it.

    DATA is one file or several that are stacked by rows: .npy, .npz (SciPy sparse),
    .h5 or .h5::dataset, .zarr, .nii or .nii.gz. A run that was stopped goes on with
    --resume, bit for bit on as many threads and workers. With --dask it runs on the
    workers of a cluster, each of which must be able to open DATA under the same name.
    """
    if resume and overwrite:
        raise click.UsageError("--resume keeps what --overwrite removes; use one.", ctx)
    if workers and dask is None:
        raise click.UsageError("--workers is about the workers of --dask.", ctx)
    folder = RunFolder(output, dask)
    asked = asked_settings(ctx, data, val, preset, config)
    if resume and folder.settings.exists():
        settings = _settings_of(ctx, folder, asked)
    else:
        settings = complete(ctx, asked)
    check_settings(ctx, settings)
    if folder.started and not resume:
        _make_way(ctx, folder, overwrite)
    if folder.finished and not overwrite:
        _show_result(folder, load_model(output), as_json)
        return
    from somf.cli.running import dask_client, run

    # The page may wait at the end.
    with dask_client(dask, workers) as client, _watched(folder, watch):
        model = run(folder, settings, resume, overwrite, watch, client)
        _show_result(folder, model, as_json)


@contextmanager
def _watched(folder: RunFolder, wanted: bool) -> Iterator[None]:
    """Serve the page of a run, if it is wanted, until the run ends."""
    if not wanted:
        yield
        return
    from somf.report.watch import Watch

    with Watch(folder.path) as watch:
        click.echo(f"Watch the run: {watch.address}", err=True)
        yield


def _settings_of(ctx: click.Context, folder: RunFolder, asked: Settings) -> Settings:
    """Return the settings of a run; what is asked for must agree with them."""
    settings = Settings.read(folder.settings)
    settings.parameters = parameter_defaults() | settings.parameters
    there = {"data": settings.data, "val": settings.val, **settings.parameters}
    here = {"data": asked.data, "val": asked.val, **asked.parameters}
    for name, value in here.items():
        if value not in ([], there[name]):
            raise click.UsageError(
                f"{name} is {there[name]!r} in the run of {folder.path}, not "
                f"{value!r}. Leave it out to resume that run, or use another --output.",
                ctx,
            )
    return settings


def _make_way(ctx: click.Context, folder: RunFolder, overwrite: bool) -> None:
    if overwrite:
        return  # when the data are open
    what, way = (
        "an unfinished run",
        "--resume to continue it, --overwrite to replace it",
    )
    if folder.finished:
        what, way = "a finished run", "--overwrite to replace it"
    raise click.UsageError(
        f"{folder.path} holds {what}: use {way}, or another --output.", ctx
    )


def _show_result(folder: RunFolder, model: SOMF, as_json: bool) -> None:
    facts = {
        "output": str(folder.path),
        "model": str(folder.model),
        "objective": model.objective_,
        "stop_reason": model.stop_reason_,
        "n_iter": model.n_iter_,
        "n_steps": model.n_steps_,
        "n_components": model.n_components_,
        "n_features": model.n_features_in_,
        "seconds": model.trace_["time"][-1],
    }
    lines = [
        f"Objective {model.objective_:.6g} after {model.n_iter_} epochs, "
        f"{model.n_steps_} iterations, {facts['seconds']:.1f} s: {model.stop_reason_}.",
        f"Model: {folder.model}",
    ]
    show(as_json, facts, lines)
