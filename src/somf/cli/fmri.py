"""`somf fmri learn`: maps of the brain from images, in a folder to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from somf.cli.base import (
    Command,
    Failure,
    Group,
    checked_parameters,
    json_option,
    show,
)
from somf.cli.runs import RunFolder, write_trace


@click.group(cls=Group)
def fmri() -> None:
    """Maps of the brain from fMRI."""


@fmri.command(cls=Command)
@click.argument("images", nargs=-1, required=True, type=click.Path())
@click.option(
    "--output",
    required=True,
    type=click.Path(file_okay=False),
    help="Folder for maps, table, report and model.",
)
@click.option("--n-components", default=70, show_default=True, help="Number of maps.")
@click.option(
    "--coverage",
    default=2.0,
    show_default=True,
    help="Maps that a voxel belongs to on average: the less, the sparser.",
)
@click.option("--alpha", type=float, help="In place of the one that coverage chooses.")
@click.option("--positive-maps", is_flag=True, help="Non-negative maps.")
@click.option("--mask", type=click.Path(), help="Image; default computed.")
@click.option(
    "--confounds",
    multiple=True,
    type=click.Path(),
    help="Table of confounds, one for each image, in their order.",
)
@click.option("--task", help="Of BIDS derivatives: the runs of one task.")
@click.option("--space", help="Of BIDS derivatives: the runs in one space.")
@click.option(
    "--smoothing-fwhm", default=4.0, show_default=True, help="Millimetres; 0 for none."
)
@click.option("--n-epochs", default=10, show_default=True, help="Passes at most.")
@click.option("--n-threads", type=int, help="Default all cores.")
@click.option("--random-state", type=int, help="For the same maps every time.")
@click.option(
    "--memory", type=click.Path(file_okay=False), help="Folder for masked images."
)
@click.option("--resume", is_flag=True, help="Go on after a run that was stopped.")
@json_option
@click.pass_context
def learn(
    ctx: click.Context,
    /,
    images: tuple[str, ...],
    output: str,
    resume: bool,
    as_json: bool,
    smoothing_fwhm: float,
    alpha: float | None,
    confounds: tuple[str, ...],
    task: str | None,
    space: str | None,
    **parameters: Any,
) -> None:
    """Learn sparse maps from IMAGES, or from a folder of BIDS derivatives.

    Leaves in --output: maps.nii.gz and maps.tsv, which nilearn reads as an atlas, the
    report, and the model.
    """
    folder = RunFolder(output)
    if folder.finished or (folder.started and not resume):
        raise click.UsageError(
            f"{output} holds a run already: use another --output, or --resume to go on "
            "with one that was stopped."
        )
    import somf.report  # noqa: F401  if it cannot be written, say so at once
    from somf.checkpoints import Interrupted
    from somf.fmri import BrainDictionary

    model = BrainDictionary(
        alpha="auto" if alpha is None else alpha,
        smoothing_fwhm=smoothing_fwhm or None,
        checkpoint=folder.checkpoints,
        verbose=1,
        **parameters,
    )
    with checked_parameters(ctx):
        model._check(resume)
    records = _records(images, confounds, task, space)
    try:
        model.fit(records[0], confounds=records[1], resume=resume)
    except Interrupted as error:
        text = f"Stopped; to continue: {folder.resume_command}"
        raise Failure(text, 128 + error.signal) from error
    atlas = folder.path / "maps.nii.gz"
    model.save_atlas(atlas)
    model.mask_img_.to_filename(folder.mask)
    write_trace(folder.trace, model.model_.trace_)
    model.model_.save(folder.model)
    folder.remove_checkpoints()
    first = [part and part[:1] for part in records]
    model.report(folder.report, imgs=first[0], confounds=first[1])
    _show_result(folder, atlas, model, as_json)


def _records(
    images: tuple[str, ...],
    confounds: tuple[str, ...],
    task: str | None,
    space: str | None,
) -> tuple[list[Any], Any]:
    """Return the images, and the confounds of each or None."""
    from somf.fmri import load_bids
    from somf.fmri.records import as_records

    if task is None and space is None:
        data: Any = images[0] if len(images) == 1 else list(images)
        return as_records(data, list(confounds) or None)
    if len(images) > 1 or not Path(images[0]).is_dir() or confounds:
        raise click.UsageError(
            "--task and --space choose runs of one folder of BIDS derivatives, with "
            "its own confounds; leave them out where you name images or confounds."
        )
    return load_bids(images[0], task=task, space=space)


def _show_result(folder: RunFolder, atlas: Path, model: Any, as_json: bool) -> None:
    n_maps, n_voxels = model.components_.shape
    covered = float((model.components_ != 0).any(axis=0).mean())
    facts = {
        "output": str(folder.path),
        "atlas": str(atlas),
        "report": str(folder.report),
        "alpha": model.alpha_,
        "n_components": n_maps,
        "n_voxels": n_voxels,
        "covered": covered,
        "stop_reason": model.model_.stop_reason_,
    }
    lines = [
        f"{n_maps} maps that cover {covered:.0%} of {n_voxels:,} voxels "
        f"(alpha {model.alpha_:.2g}).",
        f"Maps: {atlas}",
        f"Report: {folder.report}",
    ]
    show(as_json, facts, lines)
