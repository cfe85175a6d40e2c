"""Profiles and traces that a run's code wrote into its folder."""

from __future__ import annotations

import shlex
from fnmatch import fnmatch
from itertools import chain, islice

from headrace.files.layout import RunFolder
from headrace.record import Record

_OPENED_BY = {
    "*trace*.json": "https://ui.perfetto.dev opens {}",
    "*trace*.json.gz": "https://ui.perfetto.dev opens {}",
    "*.lprof": "python -m line_profiler -tmz {}",
    "*.prof": "python -m pstats {}",
    "*.pstats": "python -m pstats {}",
    "*.nsys-rep": "nsys-ui {}",
    "*.ncu-rep": "ncu-ui {}",
    "*snapshot*.pickle": "https://docs.pytorch.org/memory_viz opens {}",
}
_MOST_FILES = 5000


class Trace(Record):
    """A profile or trace."""

    path: str
    opened_by: str
    """The command that opens it, or the page that does."""


def traces_of(run: RunFolder) -> tuple[Trace, ...]:
    """Return profiles and traces in a run's folder, and three levels deep in those of its code."""
    places = ("*", *(f"{each.name}{depth}" for each in (run.work, run.tensorboard)
                     for depth in ("/*", "/*/*", "/*/*/*")))  # fmt: skip
    return tuple(
        Trace(path=str(file), opened_by=how.format(shlex.quote(str(file))))
        for file in sorted(islice(chain.from_iterable(map(run.path.glob, places)), _MOST_FILES))
        for pattern, how in _OPENED_BY.items()
        if fnmatch(file.name, pattern)
    )
