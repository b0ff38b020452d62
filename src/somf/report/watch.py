"""A run to watch in a browser: its page, served on this machine only."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from somf.report.page import REFRESH, render

TYPES = {"report.html": "text/html; charset=utf-8", "trace.csv": "text/csv"}
PATIENCE = 2 * REFRESH  # seconds in which a browser that looks asks again


class Watch:
    """Serves report.html and trace.csv of a folder on a free port of loopback.

    What was in the folder before is not served. At the end it waits for a browser that
    looks on, until that has the last page; Ctrl-C ends the wait.

    Examples
    --------
    >>> import tempfile
    >>> with Watch(tempfile.mkdtemp()) as watch:
    ...     watch.address
    'http://127.0.0.1:.../'
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._earlier = {name: _stamp(self.folder / name) for name in TYPES}
        self._asked = threading.Event()
        self._last = -float("inf")
        watch = self

        class Handler(_Handler):
            """Knows what it serves."""

            served = watch

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._asked.clear()
        if time.monotonic() - self._last < PATIENCE and kind is None:
            with suppress(KeyboardInterrupt):
                self._asked.wait(PATIENCE)
        self._server.shutdown()
        self._server.server_close()

    def page(self, name: str) -> bytes | None:
        """Return a file of the folder, or a page that waits for it."""
        if name not in TYPES:
            return None
        path = self.folder / name
        if _stamp(path) not in (None, self._earlier[name]):
            return path.read_bytes()
        if name != "report.html":
            return None
        return render("waiting.html", title="somf", refresh=1).html.encode()

    def note(self) -> None:
        """Remember that somebody looks on."""
        self._last = time.monotonic()
        self._asked.set()


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from the one that replaces it; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


class _Handler(BaseHTTPRequestHandler):
    served: Watch

    def do_GET(self) -> None:
        """Answer with a page."""
        name = self.path.partition("?")[0].lstrip("/") or "report.html"
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        body = None
        if host in ("127.0.0.1", "localhost"):  # not under a name from elsewhere
            body = self.served.page(name)
        if body is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", TYPES[name])
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)
        self.served.note()

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent: the run has the terminal."""
