"""`somf report` and `somf compare`: pages about runs, to look at in a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from somf.cli.base import Command, json_option, show
from somf.cli.runs import RunFolder, written_beside
from somf.cli.settings import Settings

if TYPE_CHECKING:
    from somf.estimator import SOMF
    from somf.report import Atoms
    from somf.report.facts import CodedSamples


@click.command(cls=Command)
@click.argument("run", type=click.Path(file_okay=False))
@json_option
def report(run: str, as_json: bool) -> None:
    """Write a page about a run: curves, atoms, warnings.

    Writes report.html into the folder of the run; it needs no network and no other
    file. If the data of the run are still where they were, it shows reconstructions.
    """
    from somf.cli.runs import newest_model

    folder = RunFolder(run)
    model = newest_model(folder)
    write_report(folder, model, "finished" if folder.finished else "stopped")
    show(as_json, {"report": str(folder.report)}, [f"Report: {folder.report}"])


def write_report(folder: RunFolder, model: SOMF, status: str) -> None:
    """Write the page of a run that has ended."""
    from somf.report import facts_of, make_report

    reason = None if status == "finished" else f"to continue: {folder.resume_command}"
    facts = facts_of(
        model,
        name=folder.name,
        status=status,
        stop_reason=reason,
        coded=_coded(folder, model),
    )
    page = make_report(facts, _atoms(folder, model))
    with written_beside(folder.report) as beside:
        page.save(beside)


def _atoms(folder: RunFolder, model: SOMF) -> Atoms | None:
    """Return what shows the atoms of a run: brain maps or patches, if they are such."""
    if not folder.mask.exists():
        return _patches(folder)
    from nilearn.image import load_img
    from nilearn.masking import unmask

    from somf.report import BrainMaps

    mask = load_img(str(folder.mask))
    if folder.maps.exists():
        return BrainMaps(load_img(str(folder.maps)), mask)
    return BrainMaps(unmask(model.components_, mask), mask)


def _patches(folder: RunFolder) -> Atoms | None:
    from somf.image import PatchDictionary
    from somf.report import PatchGrid

    if not folder.finished:
        return None
    try:
        return PatchGrid(PatchDictionary.load(folder.model).atoms_)
    except ValueError:  # it knows of no patches
        return None


def _components(folder: RunFolder, model: SOMF) -> Any:
    """Return the atoms as they are drawn: maps may have other signs than the model."""
    if not folder.maps.exists():
        return model.components_
    from nilearn.masking import apply_mask

    return apply_mask(str(folder.maps), str(folder.mask))


def _coded(folder: RunFolder, model: SOMF) -> CodedSamples | None:
    """Return codes of data of a run, held-out ones if there were some.

    None if they are gone, or are no longer what they were.
    """
    from somf.cli.base import open_data
    from somf.report import code_samples
    from somf.sources.nifti import NiftiSource

    if not folder.settings.exists():
        return None
    settings = Settings.read(folder.settings)
    paths = settings.val or settings.data
    try:
        if folder.mask.exists():  # one image is enough, and the others take long
            samples = NiftiSource(paths[:1], mask_img=str(folder.mask))
        else:
            samples = open_data(paths)
        return code_samples(model, samples)
    except (OSError, ValueError) as error:
        click.echo(f"No reconstructions, {paths[0]} is of no use: {error}", err=True)
        return None


@click.command(cls=Command)
@click.argument(
    "runs",
    metavar="RUN RUN...",
    nargs=-1,
    required=True,
    type=click.Path(file_okay=False),
)
@click.option(
    "--output",
    default="compare.html",
    show_default=True,
    type=click.Path(dir_okay=False),
    help="Where the page goes.",
)
@click.option("--overwrite", is_flag=True, help="Replace a page that is there.")
@json_option
@click.pass_context
def compare(
    ctx: click.Context,
    runs: tuple[str, ...],
    output: str,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Put several runs on one page, atoms side by side.

    Curves are overlaid, and atoms matched one to one with those of the first run.
    """
    from somf.cli.runs import newest_model

    if len(runs) < 2:
        raise click.UsageError("Give two runs or more to compare.", ctx)
    target = Path(output)
    if target.exists() and not overwrite:
        text = f"{target} is there already: use --overwrite, or another --output."
        raise click.UsageError(text, ctx)
    folders = [RunFolder(run) for run in runs]
    models = [newest_model(folder) for folder in folders]
    from somf.report import compare as compare_runs
    from somf.report import facts_of

    names = distinct_names(folders)
    facts = [
        replace(facts_of(m, name=n), components=_components(f, m))
        for f, m, n in zip(folders, models, names, strict=True)
    ]
    atoms = [_atoms(f, m) for f, m in zip(folders, models, strict=True)]
    page = compare_runs(facts, atoms)
    with written_beside(target) as beside:
        page.save(beside)
    show(as_json, {"output": str(target)}, [f"Comparison: {target}"])


def distinct_names(folders: list[RunFolder]) -> list[str]:
    """Return the names of folders, or their paths where names are the same."""
    names = [folder.name for folder in folders]
    if len(set(names)) == len(names):
        return names
    return [str(folder.path) for folder in folders]
