"""`somf image`: from the file of an image to a dictionary, or to one without noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from somf.cli.base import (
    Command,
    Function,
    Group,
    checked_parameters,
    json_option,
    show,
)

if TYPE_CHECKING:
    from somf.image import PatchDictionary

PICTURE_WIDTH = 800  # pixels that a grid of small atoms is enlarged to


@click.group(cls=Group)
def image() -> None:
    """Dictionaries of the patches of images."""


def dictionary_options(function: Function) -> Function:
    """Add the parameters of `PatchDictionary` that one changes most."""
    options: list[Callable[[Any], Any]] = [
        click.option("--n-components", type=int, help="Number of atoms [256]."),
        click.option(
            "--setting",
            type=click.Choice(["dictionary", "non-negative"]),
            help="Centred patches, any sign; or patches as they are [dictionary].",
        ),
        click.option(
            "--patch-size",
            type=int,
            nargs=2,
            metavar="HEIGHT WIDTH",
            help="Pixels of a patch [16 16].",
        ),
        click.option("--nonzero", type=float, help="Share of non-zero codes [0.03]."),
        click.option("--n-epochs", type=int, help="Most passes over patches [10]."),
        click.option("--n-threads", type=int, help="Threads [all cores]."),
        click.option("--random-state", type=int, help="Seed of all that is drawn."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@image.command(cls=Command)
@click.argument("images", nargs=-1, required=True, type=click.Path())
@click.option(
    "--output",
    required=True,
    type=click.Path(file_okay=False),
    help="Folder for model.safetensors, atoms.png and report.html.",
)
@click.option("--overwrite", is_flag=True, help="Replace a model that is there.")
@dictionary_options
@json_option
@click.pass_context
def learn(
    ctx: click.Context,
    /,
    images: tuple[str, ...],
    output: str,
    overwrite: bool,
    as_json: bool,
    **parameters: Any,
) -> None:
    """Learn a dictionary from IMAGES, draw and report it.

    An image is a file: .npy, ENVI (.hdr), .mat or .mat::name, .tif, or a photo.
    """
    folder = Path(output)
    target, picture = folder / "model.safetensors", folder / "atoms.png"
    _check_free(ctx, target, overwrite)
    import somf.report  # noqa: F401  if it cannot be written, say so at once

    model = _learn(ctx, images, parameters)
    folder.mkdir(parents=True, exist_ok=True)
    model.save(target)
    grid = model.atom_grid()
    zoom = max(1, PICTURE_WIDTH // grid.shape[1])
    _write_png(picture, 255 * grid.repeat(zoom, axis=0).repeat(zoom, axis=1))
    model.report(folder / "report.html", image=images[0])
    facts = {
        "model": str(target),
        "picture": str(picture),
        "report": str(folder / "report.html"),
        "alpha": model.alpha_,
        "n_components": len(model.components_),
        "n_bands": model.n_bands_,
        "stop_reason": model.model_.stop_reason_,
    }
    lines = [
        f"{len(model.components_)} atoms of {tuple(model.patch_size)} pixels and "
        f"{model.n_bands_} bands: {model.model_.stop_reason_}.",
        f"Model: {target}",
        f"Picture: {picture}",
        f"Report: {folder / 'report.html'}",
    ]
    show(as_json, facts, lines)


@image.command(cls=Command)
@click.argument("source", metavar="IMAGE", type=click.Path())
@click.argument("output", metavar="OUTPUT", type=click.Path(dir_okay=False))
@click.option(
    "--model",
    type=click.Path(),
    help="Model, or folder of one, that `learn` wrote; else it learns from IMAGE.",
)
@click.option("--sigma", type=float, help="Size of the noise [measured].")
@click.option("--step", type=int, help="Distance of patches [a quarter of them].")
@click.option("--overwrite", is_flag=True, help="Replace an output that is there.")
@dictionary_options
@json_option
@click.pass_context
def denoise(
    ctx: click.Context,
    /,
    source: str,
    output: str,
    model: str | None,
    sigma: float | None,
    step: int | None,
    overwrite: bool,
    as_json: bool,
    **parameters: Any,
) -> None:
    """Write IMAGE without its noise to OUTPUT, .npy or .png."""
    import numpy as np

    from somf.cli.runs import written_beside
    from somf.image import read_image
    from somf.image.noise import estimate_sigma
    from somf.image.restoration import check_finite

    target = Path(output)
    if target.suffix not in (".npy", ".png"):
        raise click.UsageError(f"OUTPUT {target} must end with .npy or .png.", ctx)
    _check_free(ctx, target, overwrite)
    if not target.parent.is_dir():
        text = f"There is no folder {target.parent} for OUTPUT: make it first."
        raise click.UsageError(text, ctx)
    if model:
        _check_only_threads(ctx, parameters)
    noisy = read_image(source)
    for row in noisy:
        check_finite(row)  # before a long training
    if target.suffix == ".png":
        _check_suits_png(ctx, target, noisy)
    fitted = _load(model) if model else _learn(ctx, (source,), parameters)
    if parameters["n_threads"] is not None:
        fitted.set_params(n_threads=parameters["n_threads"])
    opened = fitted._known_image(noisy)  # with the bands that the model knows
    if sigma is None:
        sigma = estimate_sigma(opened.cube)
    shape = opened.result_shape
    with written_beside(target) as beside:
        if target.suffix == ".npy":  # row by row, whatever its size
            out = np.lib.format.open_memmap(beside, "w+", np.float32, shape)
            fitted.denoise(noisy, sigma, step=step, out=out)
            out.flush()
        else:
            dtype = "uint16" if noisy.dtype == np.uint16 else "uint8"
            _write_png(beside, fitted.denoise(noisy, sigma, step=step), dtype)
    facts = {"output": output, "sigma": sigma, "shape": shape}
    lines = [f"Noise of size {sigma:.4g} taken off: {output}"]
    show(as_json, facts, lines)


def _learn(
    ctx: click.Context, images: tuple[str, ...], parameters: dict[str, Any]
) -> PatchDictionary:
    from somf.image import PatchDictionary

    given = {name: value for name, value in parameters.items() if value is not None}
    dictionary = PatchDictionary(**given)
    with checked_parameters(ctx):
        dictionary._check_parameters()
    return dictionary.fit(list(images))


def _load(path: str) -> PatchDictionary:
    from somf.image import PatchDictionary
    from somf.sources.checks import existing_file

    place = Path(path)
    if place.is_dir():
        place = place / "model.safetensors"
    return PatchDictionary.load(existing_file(place))


def _write_png(path: Path, picture: Any, dtype: str = "uint8") -> None:
    """Write an image of 1 or 3 bands, as whole numbers of a type."""
    import numpy as np

    from somf.sources.checks import need

    pillow = need("PIL.Image", "image", "A .png file")
    if picture.ndim == 3 and picture.shape[2] == 1:
        picture = picture[:, :, 0]
    pixels = np.clip(np.rint(picture), 0, np.iinfo(dtype).max).astype(dtype)
    pillow.fromarray(pixels).save(path, "PNG")


def _check_suits_png(ctx: click.Context, target: Path, noisy: Any) -> None:
    """Raise for an image that would be cut off, or all black, in a .png file."""
    import numpy as np

    if noisy.shape[2:] not in ((), (1,), (3,)):
        text = f"{target} can hold 1 or 3 bands, not {noisy.shape[2]}: write .npy."
        raise click.UsageError(text, ctx)
    if noisy.dtype == np.uint16:
        if noisy.shape[2:] == (3,):
            text = f"{target} can hold 3 bands of 8 bits, not of 16: write .npy."
            raise click.UsageError(text, ctx)
    elif noisy.dtype != np.uint8:
        low, high = float(noisy.min()), float(noisy.max())
        if low < 0 or not 1 < high <= 255:
            raise click.UsageError(
                f"IMAGE has values from {low:.4g} to {high:.4g}, but {target} holds 0 "
                "to 255: write .npy.",
                ctx,
            )


def _check_only_threads(ctx: click.Context, parameters: dict[str, Any]) -> None:
    """Raise for options of the training, of which a model has had its own."""
    given = [name for name, value in parameters.items() if value is not None]
    useless = [f"--{n.replace('_', '-')}" for n in given if n != "n_threads"]
    if useless:
        text = f"--model has been learned, so leave {', '.join(useless)} out."
        raise click.UsageError(text, ctx)


def _check_free(ctx: click.Context, target: Path, overwrite: bool) -> None:
    if target.exists() and not overwrite:
        text = f"{target} is there already: use --overwrite, or another place."
        raise click.UsageError(text, ctx)
