"""`somf inspect`: what a file or a folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from somf.cli.base import Command, json_option, open_data, show
from somf.cli.runs import RunFolder

if TYPE_CHECKING:
    from somf.estimator import SOMF

Description = tuple[dict[str, Any], list[str]]


@click.command(cls=Command)
@click.argument("path", type=click.Path())
@json_option
def inspect(path: str, as_json: bool) -> None:
    """Tell what a model, run, checkpoint or input holds.

    Of a model, its parameters and how its run ended; of data, shape, type and chunks.
    """
    facts, lines = describe(path)
    show(as_json, facts, lines)


def describe(path: str) -> Description:
    """Return the facts of anything that somf reads or writes, and lines about them."""
    from somf.checkpoints import find
    from somf.estimator import SOMF

    folder = RunFolder(path)
    if folder.started and not folder.finished:
        return _describe_unfinished(folder)
    if folder.finished:
        return _describe_model("run", path, SOMF.load(folder.model))
    if find(path):
        newest = find(path)[0]
        return _describe_model("checkpoint", str(newest), SOMF.load(newest))
    if Path(path).suffix == ".safetensors":
        return _describe_model("model", path, SOMF.load(path))
    return describe_data(path)


def _describe_unfinished(folder: RunFolder) -> Description:
    from somf.checkpoints import find
    from somf.estimator import SOMF

    found = find(folder.checkpoints)
    if not found:
        facts = {"kind": "run", "path": str(folder.path), "stop_reason": None}
        return facts, [f"{folder.path}: a run without a checkpoint yet"]
    facts, lines = _describe_model("run", str(folder.path), SOMF.load(found[0]))
    return facts | {"checkpoint": str(found[0])}, [*lines, f"checkpoint: {found[0]}"]


def _describe_model(kind: str, path: str, model: SOMF) -> Description:
    parameters = model.get_params()
    if not isinstance(parameters["dict_init"], str):
        parameters["dict_init"] = f"given, {parameters['dict_init'].shape}"
    facts = {
        "kind": kind,
        "path": path,
        "n_components": model.n_components_,
        "n_features": model.n_features_in_,
        "dtype": str(model.components_.dtype),
        "n_iter": model.n_iter_,
        "n_steps": model.n_steps_,
        "objective": model.objective_,
        "stop_reason": getattr(model, "stop_reason_", None),
        "parameters": parameters,
    }
    lines = [
        f"{path}: a {kind}",
        f"components: {model.n_components_} x {model.n_features_in_}, {facts['dtype']}",
        f"progress: {model.n_iter_} epochs, {model.n_steps_} iterations, "
        f"objective {model.objective_:.6g}",
        f"stopped: {facts['stop_reason'] or 'not finished'}",
        "parameters:",
        *(f"  {name} = {value!r}" for name, value in parameters.items()),
    ]
    return facts, lines


def describe_data(path: str) -> Description:
    """Return the facts of an input, and lines about them."""
    source = open_data([path])
    n_samples, n_features = source.shape
    order = source.feature_order
    facts = {
        "kind": "data",
        "path": path,
        "n_samples": n_samples,
        "n_features": n_features,
        "dtype": str(source.dtype),
        "gigabytes": n_samples * source.row_bytes / 1e9,
        "chunk_samples": source.longest_chunk
        if source.row_chunks is not None
        else None,
        "chunk_features": source.feature_chunk,
        "shuffled_features": order is not None,
    }
    together = facts["chunk_samples"] or 1, facts["chunk_features"] or n_features
    lines = [
        f"{path}: {n_samples} samples of {n_features} features, {facts['dtype']}, "
        f"{facts['gigabytes']:.3g} GB in memory",
        f"read together: {together[0]} samples x {together[1]} features",
        *(["features are shuffled"] if order is not None else []),
    ]
    return facts, lines
