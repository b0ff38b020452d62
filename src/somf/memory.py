"""How much memory there is."""

from __future__ import annotations

import os
from pathlib import Path


def available_memory() -> int:
    """Bytes that new arrays may take without swapping, as far as the system tells."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30  # a system that tells nothing: a cautious guess
