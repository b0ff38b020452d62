"""A run in its folder: fitted or resumed, and cleaned up after."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from somf.checkpoints import Interrupted, find
from somf.cli.base import Failure, open_data
from somf.cli.live import LivePage
from somf.cli.runs import RunFolder, write_trace
from somf.cli.settings import Settings, make_parameters
from somf.distributed.cluster import local_client
from somf.estimator import SOMF
from somf.progress import observed_by
from somf.sources.checks import need
from somf.sources.nifti import NiftiSource
from somf.threads import resolve_n_threads

ANSWER = 5.0  # seconds in which a scheduler has to answer


@contextmanager
def dask_client(address: str | None, n_workers: int | None = None) -> Iterator[Any]:
    """Connect to a Dask scheduler; "local" starts one, with a worker for each core.

    `n_workers` are started by "local"; others are waited for.

    Without an address there is no client.
    """
    if address is None:
        yield None
        return
    distributed = need("distributed", "dask", "--dask")
    if address == "local":
        with ExitStack() as stack:
            with _children_ignore_ctrl_c():  # it would end them before the checkpoint
                started = local_client(n_workers or resolve_n_threads(None))
                client = stack.enter_context(started)
            _show_cluster(client)
            yield client
        return
    with _connect(distributed, address) as client:
        _wait_for_workers(client, n_workers or 0)
        _show_cluster(client)
        yield client


def _wait_for_workers(client: Any, n_workers: int) -> None:
    """Wait until there are so many workers: those of a batch queue take their time."""
    here = len(client.nthreads())
    if here < n_workers:
        click.echo(f"{here} of {n_workers} workers are there; waiting.", err=True)
        client.wait_for_workers(n_workers)


def _connect(distributed: Any, address: str) -> Any:
    none = f"--dask {address}: there is no Dask scheduler"
    try:
        distributed.comm.get_address_host_port(address)
    except ValueError as error:
        raise ValueError(
            f"{none} of this name ({error}). Give an address such as tcp://host:8786, "
            'or "local" for workers on this machine.'
        ) from error
    try:
        return distributed.Client(address, timeout=ANSWER, set_as_default=False)
    except OSError as error:
        raise OSError(
            f"{none} that answers within {ANSWER:g} seconds. Start one with `dask "
            f"scheduler`, and workers with `dask worker {address}` where the data can "
            'be read; or use "local" for workers on this machine.'
        ) from error


@contextmanager
def _children_ignore_ctrl_c() -> Iterator[None]:
    """Let processes that are started inside ignore SIGINT, which they inherit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _show_cluster(client: Any) -> None:
    n_workers = len(client.nthreads())
    click.echo(
        f"{n_workers} worker{'' if n_workers == 1 else 's'} at "
        f"{client.scheduler.address}. Dask's dashboard: {client.dashboard_link}",
        err=True,
    )


def run(
    folder: RunFolder,
    settings: Settings,
    resume: bool,
    overwrite: bool = False,
    watch: bool = False,
    client: Any = None,
) -> SOMF:
    """Fit or resume, and write the files of the run; what failed can be resumed.

    If there is no checkpoint to resume from, nothing is left. With `watch`, the page of
    the run is there from its first iteration on. A Dask client runs it on its workers.
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
                model = SOMF.resume(checkpoints, X, X_val=X_val, client=client)
            else:
                model = _fit(folder, settings, checkpoints, X, X_val, client)
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
    X = open_data(settings.data)
    if not settings.val:
        return X, None
    mask = X.masker.mask_img_ if isinstance(X, NiftiSource) else None
    return X, open_data(settings.val, mask)


def _fit(
    folder: RunFolder,
    settings: Settings,
    checkpoints: Path,
    X: Any,
    X_val: Any,
    client: Any,
) -> SOMF:
    parameters = make_parameters(settings) | {"checkpoint": checkpoints}
    folder.path.mkdir(parents=True, exist_ok=True)
    settings.write(folder.settings)
    if isinstance(X, NiftiSource):  # without it, components are no maps
        X.masker.mask_img_.to_filename(folder.mask)
    if parameters["progress"] == "auto":  # lines in a log, too
        parameters["progress"] = True
    model = SOMF(**parameters)
    model.fit(X, X_val=X_val, client=client)
    return model
