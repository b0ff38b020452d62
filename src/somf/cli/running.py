"""A run in its folder: fitted or resumed, and cleaned up after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from somf.checkpoints import Interrupted, find
from somf.cli.base import Failure, open_data
from somf.cli.live import LivePage
from somf.cli.runs import RunFolder, write_trace
from somf.cli.settings import Settings, make_parameters
from somf.estimator import SOMF
from somf.progress import observed_by
from somf.sources.checks import need
from somf.sources.nifti import NiftiSource
from somf.threads import resolve_n_threads


def run(
    folder: RunFolder,
    settings: Settings,
    resume: bool,
    overwrite: bool = False,
    watch: bool = False,
) -> SOMF:
    """Fit or resume, and write the files of the run; what failed can be resumed.

    If there is no checkpoint to resume from, nothing is left. With `watch`, the page of
    the run is there from its first iteration on.
    """
    X, X_val = _open(settings)
    if overwrite:
        folder.clear()
    checkpoints = Path(settings.parameters["checkpoint"] or folder.checkpoints)
    before = _newest(checkpoints)
    live = LivePage(folder, soon=watch)
    try:
        with observed_by(live):
            if resume and before:
                model = SOMF.resume(checkpoints, X, X_val=X_val)
            else:
                model = _fit(folder, settings, checkpoints, X, X_val)
    except Interrupted as error:
        live.stop()
        text = f"{error}, on the command line: {folder.resume_command}"
        raise Failure(text, 128 + error.signal) from error
    except BaseException as error:
        newest = _newest(checkpoints)
        if newest is None or (before and not resume):
            folder.clear()
        elif isinstance(error, Exception):
            live.stop()
            text = f"{error} {newest} is kept; to continue: {folder.resume_command}"
            raise Failure(text) from error
        raise
    for name in ("checkpoint", "progress"):
        setattr(model, name, settings.parameters[name])
    write_trace(folder.trace, model.trace_)
    model.save(folder.model)
    folder.remove_checkpoints()
    live.finish()
    return model


def _newest(checkpoints: Path) -> Path | None:
    return next(iter(find(checkpoints)), None)


def _open(settings: Settings) -> tuple[Any, Any]:
    val = open_data(settings.val) if settings.val else None
    return open_data(settings.data), val


def _fit(
    folder: RunFolder, settings: Settings, checkpoints: Path, X: Any, X_val: Any
) -> SOMF:
    parameters = make_parameters(settings) | {"checkpoint": checkpoints}
    folder.path.mkdir(parents=True, exist_ok=True)
    settings.write(folder.settings)
    if isinstance(X, NiftiSource):  # without it, components are no maps
        X.masker.mask_img_.to_filename(folder.mask)
    if parameters["progress"] == "auto":  # lines in a log, too
        parameters["progress"] = True
    model = SOMF(**parameters)
    model.fit(X, X_val=X_val)
    return model


@contextmanager
def dask_client(address: str | None) -> Iterator[Any]:
    """Connect to a Dask scheduler, or start one with workers here for "local".

    Without an address there is no client.
    """
    if address is None:
        yield None
        return
    distributed = need("distributed", "dask", "--dask")
    if address == "local":
        from somf.distributed.cluster import local_client

        with local_client(resolve_n_threads(None)) as client:
            yield client
        return
    try:
        connected = distributed.Client(address, set_as_default=False)
    except (OSError, ValueError) as error:
        raise Failure(
            f"--dask {address}: there is no Dask scheduler ({error}). Give the address "
            'that "dask scheduler" prints, such as tcp://10.0.0.1:8786, or "local".'
        ) from error
    with connected as client:
        yield client
