"""How long the processes of a run live in each of its phases."""

from __future__ import annotations

import time
from pathlib import Path

from headrace_chaos.phases import phase_of
from headrace_chaos.processes import Processes

_EVERY_S = 0.2


class Spans:
    """Notes when each kind of process is there.

    Args:
        home: Home of the run.
        processes: Its processes.
    """

    def __init__(self, home: Path, processes: Processes) -> None:
        self._home = home
        self._processes = processes
        self._seen: dict[str, tuple[float, float]] = {}
        self._next = 0.0

    def tick(self) -> None:
        """Look now, unless it was looked just before; to be called often."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        phase = phase_of(self._home)
        for role in set(self._processes.living().values()):
            name = f"{phase}/{role}"
            self._seen[name] = (self._seen.get(name, (now, now))[0], now)

    def lengths(self) -> dict[str, float]:
        """Seconds from first to last sight, by `phase/role`."""
        return {name: last - first for name, (first, last) in self._seen.items()}
