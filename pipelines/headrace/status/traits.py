"""What a run is: its kind, metric and objectives, as its recipe and request say."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.files.atomic import is_there, read_bytes
from headrace.files.layout import RunFolder
from headrace.recipe.suite import Objective
from headrace.record import Record
from headrace.runs.suites import Sought, sought_by
from headrace.suites.analysis import REPEATS
from headrace.suites.records import FOLD


class RunTraits(Record):
    """What a run is; fixed at its beginning, and read once a process."""

    kind: str = "train"
    monitor: str | None = None
    """`trainer.monitor` of its recipe."""
    monitor_mode: str = "min"
    """Whether lower (`min`) or higher (`max`) values of that metric are better."""
    own_data: bool = False
    """Whether the training reads its own data: nothing is packed or staged."""
    objectives: tuple[Objective, ...] = ()
    """Objectives of a suite."""
    log_keys: tuple[str, ...] = ()
    """Keys that a suite samples on a logarithmic scale."""
    repeats: frozenset[str] = frozenset()
    """Keys in which trials of one point differ: those of seeds and of folds."""

    @property
    def main(self) -> str | None:
        """Name of the main metric: the first objective, else the monitored one."""
        return self.objectives[0].metric if self.objectives else self.monitor


def traits_of(folder: str) -> RunTraits:
    """Return the traits of the run in a folder; defaults if that is gone or damaged."""
    try:
        return _traits(folder)
    except (ValueError, OSError, HeadraceError):  # the list shows the run nonetheless
        return RunTraits()


@lru_cache(maxsize=10_000)
def _traits(path: str) -> RunTraits:
    folder = RunFolder(Path(path))
    recipe = _json(folder.recipe)
    request = _json(folder.request) if is_there(folder.request) else {}  # a trial has none
    trainer, suite = (_part(recipe.get(name)) for name in ("trainer", "suite"))
    monitor = trainer.get("monitor")
    kind = "suite" if is_there(folder.source) else request.get("kind")
    is_of_suite = kind == "suite" or folder.is_trial
    sought = sought_by(folder.whole) if is_of_suite else Sought()
    seeds, grid = suite.get("seeds") not in (None, 1), _part(suite.get("grid"))
    repeated = {"seed": seeds, FOLD: suite.get("folds"), **grid}
    return RunTraits(
        kind=kind if isinstance(kind, str) else "train",
        monitor=monitor if isinstance(monitor, str) else None,
        monitor_mode=str(trainer.get("monitor_mode", "min")),
        own_data=kind in ("train", "suite") and "dataset" in recipe and recipe["dataset"] is None,
        objectives=sought.objectives,
        log_keys=sought.log_keys,
        repeats=frozenset(key for key in REPEATS if repeated[key]),
    )


def _part(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _json(file: Path) -> dict[str, Any]:
    content = None
    with suppress(RecursionError):
        content = json.loads(read_bytes(file) or b"")
    if not isinstance(content, dict):
        raise ValueError(f"{file} is not a record")  # noqa: TRY004  the same as for invalid JSON
    return content
