"""Arrays that an iteration needs anew each time, allocated once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Workspace:
    """Named buffers: fresh megabytes cost a page fault every 4 KiB, old ones none."""

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[Any]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return an uninitialised array, valid until `name` is asked for again."""
        size = int(np.prod(shape))
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size or buffer.dtype != dtype:
            buffer = self._buffers[name] = np.empty(size, dtype)
        return buffer[:size].reshape(shape)

    def __getstate__(self) -> dict[str, Any]:
        """Nothing in here outlives an iteration."""
        return {"_buffers": {}}
