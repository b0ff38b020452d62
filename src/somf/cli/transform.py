"""`somf transform` and `somf score`: use a model on data of any size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from somf.cli.base import Command, data_argument, json_option, open_data, show
from somf.cli.options import dask_option

model_argument = click.argument("model", type=click.Path())


@click.command(cls=Command)
@model_argument
@data_argument()
@click.option(
    "--output",
    required=True,
    type=click.Path(),
    help="Where the codes go: a .npy file or a .zarr array.",
)
@click.option("--overwrite", is_flag=True, help="Replace an output that is there.")
@dask_option
@json_option
@click.pass_context
def transform(
    ctx: click.Context,
    model: str,
    data: tuple[str, ...],
    output: str,
    overwrite: bool,
    dask: str | None,
    as_json: bool,
) -> None:
    """Write the codes of DATA, batch by batch.

    MODEL is a model file or the folder of a run. The output appears when it is
    complete. With --dask, workers read DATA, so they must find it under the same path,
    and the codes come here to be written.
    """
    from somf.cli.running import dask_client
    from somf.cli.runs import load_model, mask_of
    from somf.progress import CountProgress

    target = Path(output)
    _check_output(ctx, target, data, overwrite)
    fitted = load_model(model)
    source = open_data(data, mask_of(model))
    shape = (source.shape[0], fitted.n_components_)
    with dask_client(dask) as client, CountProgress("transform") as progress:
        dtype = fitted.components_.dtype
        codes = _told(fitted.iter_transform(source, client=client), shape[0], progress)
        WRITERS[target.suffix](target, shape, dtype, codes)
    facts = {"output": output, "shape": shape, "dtype": str(dtype)}
    lines = [f"Codes of {shape[0]} samples, {shape[1]} each: {output}"]
    show(as_json, facts, lines)


def _check_output(
    ctx: click.Context, target: Path, data: tuple[str, ...], overwrite: bool
) -> None:
    if target.suffix not in WRITERS:
        words = " or ".join(WRITERS)
        raise click.UsageError(f"--output {target} must end with {words}.", ctx)
    if target.exists() and not overwrite:
        text = f"{target} is there already: use --overwrite, or another --output."
        raise click.UsageError(text, ctx)
    if not target.parent.is_dir():
        raise click.UsageError(f"There is no folder {target.parent} to write to.", ctx)
    if target.resolve() in [Path(path).resolve() for path in data]:
        raise click.UsageError(f"--output {target} is an input.", ctx)
    if target.is_dir() and not (target / ".zarray").exists():
        text = f"{target} is a folder and holds no codes; use another --output."
        raise click.UsageError(text, ctx)


def _told(codes: Iterator[Any], n_samples: int, progress: Any) -> Iterator[Any]:
    done = 0
    for part in codes:
        yield part
        done += len(part)
        progress(done, n_samples)


def _write_npy(
    target: Path, shape: tuple[int, int], dtype: Any, codes: Iterator[Any]
) -> None:
    """Write codes one after the other: a full disk is an error, not a crash."""
    import numpy as np

    from somf.cli.runs import written_beside

    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    with written_beside(target) as beside, open(beside, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part in codes:
            file.write(np.ascontiguousarray(part, dtype).data)


def _write_zarr(
    target: Path, shape: tuple[int, int], dtype: Any, codes: Iterator[Any]
) -> None:
    from somf.cli.runs import written_beside
    from somf.conversion import create_array
    from somf.solver.evaluation import CHUNK

    rows = min(CHUNK, shape[0])  # as they come: every chunk is written once
    with written_beside(target) as beside:
        array = create_array(beside, shape, (rows, shape[1]), dtype)
        start = 0
        for part in codes:
            array[start : start + len(part)] = part
            start += len(part)


WRITERS = {".npy": _write_npy, ".zarr": _write_zarr}


@click.command(cls=Command)
@model_argument
@data_argument()
@dask_option
@json_option
def score(model: str, data: tuple[str, ...], dask: str | None, as_json: bool) -> None:
    """Print how well a model explains DATA.

    The score is minus the mean objective: higher is better. MODEL is a model file or
    the folder of a run.
    """
    from somf.cli.running import dask_client
    from somf.cli.runs import load_model, mask_of

    fitted = load_model(model)
    source = open_data(data, mask_of(model))
    with dask_client(dask) as client:
        value = fitted.score(source, client=client)
    facts = {"score": value, "objective": -value, "n_samples": source.shape[0]}
    show(as_json, facts, [f"Score {value:.6g} on {source.shape[0]} samples."])
