"""`--without-satellites`: only the engine, and Airflow's operators, can be imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from headrace import entry_points as lookup

SATELLITES = (
    "headrace_ec2",
    "headrace_foresight",
    "headrace_pages",
    "headrace_probes",
    "headrace_queues",
)


class _Hidden(MetaPathFinder):
    """They are not there."""

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: Any = None) -> None:
        if name.partition(".")[0] in SATELLITES:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def _of_others(**chosen: str) -> EntryPoints:
    kept = (each for each in entry_points(**chosen) if each.module.split(".")[0] not in SATELLITES)
    return EntryPoints(kept)


def hide_satellites() -> None:
    """Neither imports nor entry points find them any more in this process."""
    sys.meta_path.insert(0, _Hidden())
    lookup.entry_points = _of_others  # type: ignore[attr-defined]
