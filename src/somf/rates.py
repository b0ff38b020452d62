"""How fast the workers of a cluster are, in lines for people."""

from __future__ import annotations

import time
from collections.abc import Sequence

from somf.solver.run import WorkerProgress


class WorkerRates:
    """How fast each worker of a cluster is, who is behind, and who was lost."""

    MOST = 8  # workers that are named one by one

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._since: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._before: list[int] = []

    def follow(self, workers: Sequence[WorkerProgress]) -> list[str]:
        """Take in how far workers have come; return lines about them."""
        if not workers:
            return []
        now = time.perf_counter()
        if len(self._before) != len(workers):  # samples have been shared out anew
            self._before = [0] * len(workers)
        begin = now if self._since else self._start
        for worker, before in zip(workers, self._before, strict=True):
            done = worker.n_samples
            self._since.setdefault(worker.address, begin)
            self._counts.setdefault(worker.address, 0)
            self._counts[worker.address] += done - before if done >= before else done
        self._before = [worker.n_samples for worker in workers]
        return self._lines(workers, now)

    def _lines(self, workers: Sequence[WorkerProgress], now: float) -> list[str]:
        behind: dict[str, int] = {}
        for worker in workers:
            most = max(worker.behind, behind.get(worker.address, 0))
            behind[worker.address] = most
        rates = {a: self._counts[a] / max(now - self._since[a], 1e-9) for a in behind}
        speed = sum(self._counts.values()) / max(now - self._start, 1e-9)
        plural = "" if len(behind) == 1 else "s"
        lines = [f"{len(behind)} worker{plural}, {speed:,.0f} samples/s"]
        if len(behind) > self.MOST:
            slowest, fastest = min(rates.values()), max(rates.values())
            lines[0] += f", {slowest:,.0f} to {fastest:,.0f} each"
            late = [f"{a} by {n}" for a, n in behind.items() if n]
            if late:
                lines.append(f"behind (exchanges): {self._names(late)}")
        else:
            for address, rate in rates.items():
                n = behind[address]
                late_by = f", {n} exchange{'s' * (n > 1)} behind" if n else ""
                lines.append(f"{address} {rate:,.0f} samples/s{late_by}")
        lost = [address for address in self._since if address not in behind]
        return [*lines, f"lost: {self._names(lost)}"] if lost else lines

    def _names(self, names: Sequence[str]) -> str:
        more = len(names) - self.MOST
        shown = ", ".join(names[: self.MOST])
        return f"{shown} and {more} more" if more > 0 else shown
