"""Power that CPUs draw."""

from __future__ import annotations

import time
from pathlib import Path


class CpuPackages:
    """The energy counters of CPU packages, RAPL; most systems let only root read them.

    Source: https://docs.kernel.org/power/powercap/powercap.html.
    """

    def __init__(self, folder: Path = Path("/sys/class/powercap")) -> None:
        names = folder.glob("intel-rapl:*/name")  # AMD's have it, too; psys counts packages again
        self._zones = sorted(
            each.parent for each in names if each.read_text().startswith("package")
        )
        self._before = self._look()

    def power_w(self) -> float | None:
        """Return the mean power since the last call in watts; None if a counter is unreadable."""
        before, self._before = self._before, self._look()
        if before is None or self._before is None or self._before[0] <= before[0]:
            return None
        moved = zip(self._before[1], before[1], strict=True)
        joules = sum((now - then) % limit for (now, limit), (then, _) in moved) / 1e6
        return joules / (self._before[0] - before[0])

    def _look(self) -> tuple[float, list[tuple[int, int]]] | None:
        names = ("energy_uj", "max_energy_range_uj")
        try:
            found = [
                tuple(int((zone / name).read_text()) for name in names) for zone in self._zones
            ]
        except (OSError, ValueError):
            return None
        counters = [(energy, limit + 1) for energy, limit in found]
        return (time.monotonic(), counters) if counters else None
