"""Profiles and traces that a run's code wrote into its folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import chain, islice
from pathlib import Path

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
    files = chain(_files(run.path, 1), _files(run.work, 3), _files(run.tensorboard, 3))
    return tuple(
        Trace(path=str(file), opened_by=how.format(shlex.quote(str(file))))
        for file in sorted(islice(files, _MOST_FILES))
        for pattern, how in _OPENED_BY.items()
        if fnmatch(file.name, pattern) and str(file).isprintable() and file.is_file()
    )


def _files(top: Path, levels: int) -> Iterator[Path]:
    for at, folders, names in os.walk(top):
        if len(Path(at).relative_to(top).parts) + 1 >= levels:
            folders.clear()
        yield from (Path(at, name) for name in names)
