"""A peer's reader with the number of workers that serves it best on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace_bench.laps import Reader, read_lap
from headrace_bench.records import Lap


class Tuned:
    """Tries every number of workers in the warm-up and keeps the fastest.

    Args:
        workers: Numbers of workers to try.
        make: Opens a reader with so many workers.
        settings: How the peer is used.
    """

    def __init__(
        self, workers: Sequence[int], make: Callable[[int], Reader], settings: str
    ) -> None:
        self._choices = tuple(workers)
        self._make = make
        self._settings = settings
        self._reader: Reader | None = None
        self._num_workers = self._choices[0]

    def lap(self, is_warm_up: bool) -> Lap:
        """A lap; in the warm-up, the best one of all choices."""
        if self._reader is None or is_warm_up:
            return self._choose()
        return read_lap(self._reader, is_warm_up=False)

    def settings(self) -> str:
        """How the peer is used, with the workers chosen."""
        workers = f"best of {' and '.join(map(str, self._choices))} workers: {self._num_workers}"
        return f"{self._settings}; {workers}" if len(self._choices) > 1 else self._settings

    def _choose(self) -> Lap:
        best: Lap | None = None
        for num_workers in self._choices:
            reader = self._make(num_workers)
            lap = read_lap(reader, is_warm_up=best is None)
            if best is None or lap.bytes_per_s > best.bytes_per_s:
                best, self._reader, self._num_workers = lap, reader, num_workers
        if best is None:
            raise ValueError("no number of workers to try")
        return best
