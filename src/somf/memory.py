"""How much memory there is."""

from __future__ import annotations

import os
from pathlib import Path


def available_memory() -> int:
    """Bytes that new arrays may take without swapping, as far as the system tells."""
    lefts = [_left_to_container(folder) for folder in _groups()]
    return min([_left_to_machine(), *(left for left in lefts if left is not None)])


def _groups(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> list[Path]:
    """Return the folders of the control groups of this process, down from the root."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        return []
    name = next((line[4:] for line in lines if line.startswith("0::/")), "")
    parts = Path(name).parts
    return [root.joinpath(*parts[:i]) for i in range(len(parts) + 1)]


def _left_to_container(folder: Path) -> int | None:
    """Bytes below the limit of a container or a job, if there is one."""
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
        counts = dict(line.split() for line in lines)
        cached = int(counts["inactive_file"])  # counted as used, but free to take
    except (OSError, ValueError, KeyError):  # no limit, or none that we can read
        return None
    return max(0, limit - used + cached)


def _left_to_machine() -> int:
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
