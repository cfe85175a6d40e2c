"""What is known of a run from its beginning on, and does not change: read once a process."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast, get_args

from headrace.errors import HeadraceError
from headrace.files.atomic import read_bytes
from headrace.files.layout import RunFolder
from headrace.ledger.rows import RunRecord
from headrace.recipe.suite import Objective
from headrace.record import Record
from headrace.runs.provenance import user_of
from headrace.runs.suites import is_suite, log_keys_of, objectives_of
from headrace.suites.records import FOLD

Kind = Literal["train", "pack", "evaluate", "suite", "probe"]

_MOST = 10_000


class Facts(Record):
    """What a run is."""

    kind: Kind = "train"
    user: str
    """Who asked for it."""
    monitor: str | None = None
    """`trainer.monitor` of its recipe."""
    monitor_mode: str = "min"
    """Whether lower values of that are better, `min`, or higher ones, `max`."""
    own_data: bool = False
    """Whether what it trains brings its own data: nothing is packed or staged."""
    objectives: tuple[Objective, ...] = ()
    """Of a suite: what it seeks."""
    log_keys: tuple[str, ...] = ()
    """Of a suite: keys that it samples on a logarithmic scale."""
    is_folded: bool = False
    """Whether its trials are folds of a cross-validation."""


def facts_of(record: RunRecord) -> Facts:
    """What a run is, as far as its folder tells: it may be gone or damaged."""
    try:
        return _read(record.folder, record.owner, is_suite=is_suite(record))
    except (ValueError, OSError, HeadraceError):  # the list shows the run nonetheless
        return Facts(user=record.owner)


@lru_cache(maxsize=_MOST)
def _read(path: str, owner: str, *, is_suite: bool) -> Facts:
    folder = RunFolder(Path(path))
    request, recipe = _json(folder.request), _json(folder.recipe)
    trainer, suite = (_part(recipe.get(name)) for name in ("trainer", "suite"))
    monitor = trainer.get("monitor")
    kind = "suite" if is_suite else request.get("kind")
    return Facts(
        kind=cast("Kind", kind) if kind in get_args(Kind) else "train",
        user=user_of(folder, owner),
        monitor=monitor if isinstance(monitor, str) else None,
        monitor_mode=str(trainer.get("monitor_mode", "min")),
        own_data=kind in ("train", "suite") and "dataset" in recipe and recipe["dataset"] is None,
        objectives=objectives_of(folder) if is_suite else (),
        log_keys=log_keys_of(folder) if is_suite else (),
        is_folded=suite.get("folds") is True or FOLD in _part(suite.get("grid")),
    )


def _part(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _json(file: Path) -> dict[str, Any]:
    content = json.loads(read_bytes(file) or b"")
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds no record")  # noqa: TRY004  as of what is no JSON
    return content
